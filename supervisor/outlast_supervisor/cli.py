"""The console command. Nothing is imported up here: a signal that comes while `run` loads must be kept."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if words[:1] == ["run"]:
        from outlast_supervisor import early

        early.install()
    from outlast_supervisor.commands import invoke

    sys.exit(invoke(sys.argv[1:]))


if __name__ == "__main__":
    main()
