"""Attacking a copy of a job, and holding what it did against what is promised."""
