"""Before the run: checks of machine, place and run, each a pure verdict over facts that a probe looked up."""
