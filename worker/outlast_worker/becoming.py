"""Run a script or a module in this process as ``python script`` or ``python -m module`` would in a new one."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from outlast_jobs.pythoncommand import PythonCommand


def set_path(command: PythonCommand) -> None:
    """Put in front of the import path what Python puts there: the script's folder, or the current one.

    Until now the place has what ``-c`` puts there, unless the options forbid any of it (-P, -I).
    """
    if sys.flags.safe_path:
        return
    folder = os.getcwd() if command.is_module else os.path.dirname(os.path.realpath(command.script))
    if sys.path and sys.path[0] == "":
        sys.path[0] = folder
    else:
        sys.path.insert(0, folder)


def run(command: PythonCommand, words: list[str]) -> None:
    """Run it as ``__main__``; what it raises is shown as by Python itself, and ends with the same code."""
    sys.orig_argv = list(words)
    main = sys.modules["__main__"]
    try:
        if command.is_module:
            _clear(main)
            sys.argv = ["-m", *command.arguments]
            # what python -m itself calls; run_module would put a passing module in the place of __main__
            getattr(runpy, "_run_module_as_main")(command.script)  # noqa: B009
        else:
            _run_script(main, command)
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        trace = _below(error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(1) from None


def _run_script(main: Any, command: PythonCommand) -> None:
    path = os.path.join(os.getcwd(), command.script)
    sys.argv = [command.script, *command.arguments]
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    _clear(main)
    main.__file__ = path
    main.__cached__ = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    exec(code, main.__dict__)


def _clear(main: Any) -> None:
    names = main.__dict__
    names.clear()
    names.update(
        __name__="__main__",
        __doc__=None,
        __package__=None,
        __loader__=None,
        __spec__=None,
        __annotations__={},
        __builtins__=builtins,
    )


def _below(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own first frame on."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
