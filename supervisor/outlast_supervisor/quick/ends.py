"""How a command ends: the failure that it says, the exit code of each way out, and its JSON."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


class Failed(Exception):
    """The command cannot do what it was asked for; carries the message and the exit code."""

    def __init__(self, message: str, code: int = 64) -> None:
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def our_errors() -> Iterator[None]:
    """Turn what is wrong with a job file, a value, a disk, its rights or the locale into `Failed`."""
    try:
        yield
    except UnicodeEncodeError as error:
        if error.encoding.replace("-", "") == "utf8":
            raise
        raise Failed(
            f"cannot say {error.object[error.start : error.end]!r} in this locale, whose encoding is {error.encoding}; "
            "set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        ) from error
    except ValueError as error:
        if type(error).__module__.split(".")[0] in ("outlast_jobs", "outlast_supervisor"):
            raise Failed(str(error)) from error
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename is None:
            raise Failed("the current folder is gone; change to one that is there") from error
        if error.filename is None:  # nothing that a person named
            raise
        cure = "make room or give access, or choose another place"
        raise Failed(f'cannot use "{error.filename}": {error.strerror}; {cure}') from error


def ended(command: Callable[[], object]) -> int:
    """Carry out a command; every way out of it is an exit code of the documented table."""
    try:
        returned = command()
        sys.stdout.flush()
    except Failed as error:
        print(f"outlast: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the ^C of a terminal stands in a line of its own
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); without this the flush at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    return returned if isinstance(returned, int) else 0


def print_json(value: Any, *, indent: bool = True) -> None:
    """One JSON document on stdout. NaN is written as text, since JSON has none."""
    import json

    print(json.dumps(_plain(value), indent=2 if indent else None, ensure_ascii=False), flush=not indent)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
