"""Readers of the values that people write in a job file with units, names and paths."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from outlast_jobs.contract import OURS, Env
from outlast_jobs.units import (
    DURATION_FORMS,
    RANGE_FORMS,
    SIZE_FORMS,
    UnitError,
    parse_duration,
    parse_range,
    parse_size,
)

Plain = str | int | float | bool | None

_HANDLED = (
    *("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "ALRM", "VTALRM"),
    *("PROF", "URG", "WINCH", "IO", "PWR", "XCPU", "RTMIN", "RTMAX"),
)
_OURS = OURS - {Env.ALLOW_RNG_LOSS}
_FORMS = (DURATION_FORMS, SIZE_FORMS, RANGE_FORMS)
_VARIABLE = re.compile(r"\$[A-Za-z_{]")
_SLURM_TIME = re.compile(r"(\d{1,4}-)?\d{1,6}(:[0-5]\d){0,2}")


class ReadError(ValueError):
    """The value is not what the key takes; ``hint`` says what to do, where there is more to say."""

    def __init__(self, hint: str = "") -> None:
        super().__init__(hint)
        self.hint = hint


def read_value(reader: str, value: Plain) -> object:
    """What the value means to the named reader; raises ReadError where it means nothing."""
    try:
        return _READERS[reader](value)
    except UnitError as error:
        # the usual forms are what the message says was expected
        raise ReadError("" if error.cure in _FORMS else error.cure) from error


def _text(value: Plain) -> str:
    if not isinstance(value, str):
        raise ReadError
    if "\0" in value:
        raise ReadError("a null character can't be passed to a program")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ReadError("it is not valid utf-8") from error
    return value


def _duration(value: Plain) -> float:
    if value is None:
        raise ReadError
    return parse_duration(value)


def _size(value: Plain) -> int:
    if isinstance(value, float) or value is None:
        raise ReadError
    return parse_size(value)


def _range(value: Plain) -> tuple[float, float]:
    low, high = parse_range(_text(value))
    if low <= 0:
        raise ReadError
    return low, high


def _name(value: Plain) -> str:
    name = _text(value)
    fits = 0 < len(name) <= 100 and len(name.encode()) <= 200 and name.isprintable() and name == name.strip()
    if not fits or "/" in name or name[0] in ".-":
        raise ReadError
    return name


def _path(value: Plain) -> str:
    path = _text(value)
    if _VARIABLE.search(path):
        raise ReadError("variables are not replaced here, since cron and Slurm may know others; write it out")
    if not path:
        raise ReadError
    return path


def _shell(value: Plain) -> str:
    command = _text(value)
    if not command.strip():
        raise ReadError
    return command


def _signal(value: Plain) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ReadError("write its name, since numbers differ between machines")
    name = _text(value).upper().removeprefix("SIG")
    if name in _HANDLED:
        return f"SIG{name}"
    if name in ("KILL", "STOP"):
        raise ReadError(f"no program can handle SIG{name}")
    if f"SIG{name}" in signal.Signals.__members__:
        raise ReadError(f"SIG{name} has a meaning of its own; take one of {', '.join(_HANDLED)}")
    raise ReadError


def _env_name(value: Plain) -> str:
    name = _text(value)
    if name in _OURS:
        raise ReadError("outlast sets it itself")
    if not name or "=" in name:
        raise ReadError
    return name


def _slurm_time(value: Plain) -> str:
    time = _text(value)
    if not _SLURM_TIME.fullmatch(time):
        raise ReadError
    return time


_READERS: dict[str, Callable[[Plain], object]] = {
    "word": _text,
    "duration": _duration,
    "size": _size,
    "range": _range,
    "name": _name,
    "path": _path,
    "shell": _shell,
    "signal": _signal,
    "env_name": _env_name,
    "slurm_time": _slurm_time,
}
