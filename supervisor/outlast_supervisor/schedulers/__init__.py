"""What each scheduler needs to start a job, and what a job inside one asks of it."""
