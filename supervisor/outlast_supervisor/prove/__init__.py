"""Proving that a resumed run is the uninterrupted one: flows planned as values, run for real, and compared."""
