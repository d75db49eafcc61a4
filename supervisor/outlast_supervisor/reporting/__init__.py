"""`outlast report`: what a run has been through, on one page."""
