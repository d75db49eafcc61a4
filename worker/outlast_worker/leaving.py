"""Leave the process as Python does, but for taking apart what it holds: of gigabytes that lasts longer than a save."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
from typing import Any

from outlast_jobs.contract import ExitCode

OWN_EXITS = (None, 0, ExitCode.SAVED, ExitCode.UNUSABLE, ExitCode.CANNOT_WRITE)
"""Codes of a SystemExit that is no failure of the script: it says so by itself, or we raised it."""


class Leaving(SystemExit):
    """A SystemExit; where it is what ends the process, the memory is left to the system to be freed.

    Before that all is done as always: ``finally`` and ``with`` blocks, threads that are waited for, exit handlers,
    and what was printed or written to open files is passed on. Destructors of what still lives are not called.
    A script that catches it ends as it likes, and as slowly.
    """

    @property
    def code(self) -> Any:
        code = _CODE.__get__(self, type(self))
        # The interpreter itself asks, from no frame of Python, once nothing has caught it: right before the end.
        if type(code) is int and sys._getframe().f_back is None:
            _leave_at_exit(code)
        return code

    @code.setter
    def code(self, value: Any) -> None:
        _CODE.__set__(self, value)


_CODE: Any = SystemExit.__dict__["code"]
_FILE = io.IOBase.__mro__[1]  # that of files written in C, too


def _leave_at_exit(code: int) -> None:
    run = getattr(atexit, "_run_exitfuncs", None)
    if run is None:  # another Python: its own way is slower, and as good
        return

    def leave() -> None:
        """The first of the exit handlers, being the last that was registered: it calls the others, and ends."""
        atexit.unregister(leave)
        run()
        _pass_on()
        os._exit(code)

    atexit.register(leave)


def _pass_on() -> None:
    """What waits in buffers of files that nobody closed, as their destructors would."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    kinds = _and_below(_FILE, set())
    for found in [one for one in gc.get_objects() if type(one) in kinds]:
        with contextlib.suppress(Exception):
            if not found.closed and found.writable():
                found.flush()


def _and_below(kind: Any, found: set[Any]) -> set[Any]:
    """A class and all that are made from it: to ask each object would take four times as long."""
    if kind not in found:
        found.add(kind)
        for inner in kind.__subclasses__():
            _and_below(inner, found)
    return found
