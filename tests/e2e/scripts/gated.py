"""Runs a Python program, loaded and waiting at a gate, and notes every change it makes in the file system.

    gated.py PROGRAM ARGS…

GATE names a fifo: whoever opens it for writing lets all that wait there through at the same moment. Before
that, `GATE.PID` shows that this process waits; afterwards it lists what was opened for writing, made, renamed
or removed, a line each.
"""

from __future__ import annotations

import importlib
import os
import sys

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


def main() -> None:
    gate = os.environ["GATE"]
    del sys.argv[0]

    from outlast_supervisor.cli import main as outlast

    for module in ("outlast_supervisor.commands.run", "outlast_supervisor.supervise"):
        importlib.import_module(module)  # all that takes time is done before the race

    notes = os.open(f"{gate}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def note(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and isinstance(args[2], int) and args[2] & _WRITES:
            how = "open, cut" if args[2] & os.O_TRUNC else "open"
            os.write(notes, f"{how} {args[0]}\n".encode())
        elif event in _CHANGES:
            os.write(notes, f"{event} {args[0]}\n".encode())

    os.close(os.open(gate, os.O_RDONLY))
    sys.addaudithook(note)
    outlast()


if __name__ == "__main__":
    main()
