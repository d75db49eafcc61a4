"""The library a training script imports."""
