"""The daemon of a folder: one supervisor process a job file, steered by adding, changing and removing files."""
