"""`outlast export`: a generation with all that it takes to load it, copied, loaded there, and only then published."""
