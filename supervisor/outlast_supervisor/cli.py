"""The console command. Next to nothing is imported here: a signal that comes while one loads must be kept."""

import io
import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    _have_streams()
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if words[:1] in (["run"], ["daemon"]):
        from outlast_supervisor import early

        early.install()
    sys.exit(_carried_out(sys.argv[1:]))


def _carried_out(line: list[str]) -> int:
    """The exit code of a command line; a plain one of those that have to be quick is read without click."""
    from outlast_supervisor.quick import words

    name, options = words.plain(line) or ("", {})
    if name and words.can_be_folder(options.get("run_dir")):
        from outlast_supervisor.quick import loading

        loading.begin()
        from outlast_supervisor.quick.ends import ended

        if name == "run":
            from outlast_supervisor.quick.start import start

            return ended(lambda: start(**options))
        from outlast_supervisor.quick.show import show

        return ended(lambda: show(**options))
    from outlast_supervisor.commands import invoke

    return invoke(line)


def _have_streams() -> None:
    """Open what the caller has closed (`>&-`): a run's lock must not become anybody's standard output."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a path need not be text in the locale of who looks
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
