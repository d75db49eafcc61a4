"""The daemon and its command line: processes, signals, time, logs, reports."""
