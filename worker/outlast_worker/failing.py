"""What a worker says about the exception that ends it: enough to tell a repeated failure from a new one."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch

from outlast_jobs.failure import says_passing, shortened

# What storage, the network, memory or a person did may go away by itself; it never counts as deterministic.
_PASSING = (OSError, ConnectionError, MemoryError, torch.OutOfMemoryError, KeyboardInterrupt)


def failure(error: BaseException, step: int, phase: str) -> dict[str, Any]:
    """The failure as the supervisor reads it; exception and place are written as a traceback writes them.

    Where an exception of ours wraps one of the script's, the place and the kind of trouble are the script's.
    """
    origin = _origin(error)
    return {
        "exception": _exception_name(error),
        "message": shortened(str(error)),
        "where": _where(origin),
        "step": step,
        "phase": phase,
        "passing": isinstance(origin, _PASSING) or says_passing(str(origin)),
    }


def _origin(error: BaseException) -> BaseException:
    while error.__cause__ is not None and type(error).__module__.partition(".")[0] == __package__:
        error = error.__cause__
    return error


def _exception_name(error: BaseException) -> str:
    kind = type(error)
    plain = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"


def _where(error: BaseException) -> str:
    """The last line of the traceback, by file name only: folders differ from node to node."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    frame, line = frames[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"
