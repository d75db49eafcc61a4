"""The batch script by which Slurm runs a job: whatever ends it, the warning reaches outlast before.

Why it has this form; each line was tried on a real cluster (Slurm 22.05, proctrack/cgroup):

- `--signal=B:USR1@…`: with `B:` the warning goes to the batch script's own process; without it, to srun steps
  alone. At a preemption the same signal comes first where the site says preempt_send_user_signal.
- `exec`: only that one process is signalled, at the warning and at SIGTERM, and not its children. A shell that waits
  for a child dies of either, and all that it started is killed at once.
- no `srun`: its step would get SIGTERM at the beginning of a preemption's grace, which can't be told from a cancel,
  and it could not start while the controller is away.
- `trap '' USR1` survives the exec, so a warning that comes while Python loads ends nothing. It is not lost either:
  outlast asks for the end time when it starts.
- `--open-mode=append`: a job that is queued again keeps its id and so its output file, and would empty it.
- `--requeue`: some sites switch it off by default, and then neither Slurm nor we may queue the job again.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from outlast_jobs.jobfile import Job, Slurm

from .start import start_command

TASK = "{task}"
"""In words for the worker: the number of the array's task."""

_MAX_WARN = 65535  # seconds; the largest that --signal takes (sbatch(1))
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_ARRAY = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OURS: Mapping[str, str] = {
    "array": "give it as --array",
    "no-requeue": "the job file's slurm.requeue says so",
    "open-mode": "the output is always appended, or a second start would empty it",
    "requeue": "the job file's slurm.requeue says so",
    "signal": "outlast needs the warning as it is; the job file's slurm.warn says when",
    "time": "the job file's slurm.time says so",
    **dict.fromkeys(
        ("help", "parsable", "quiet", "test-only", "usage", "verbose", "version", "wait", "wrap"),
        "it belongs to sbatch's command line, not to a script",
    ),
}
_MARK = "\0"  # stands for the task's number until the words are quoted; no word can have one
_TASK_VARIABLE = '"$SLURM_ARRAY_TASK_ID"'

Value = str | int | bool


class ScriptError(ValueError):
    """Something asked for can't stand in a batch script; the message names it and says what can."""


class Script(Struct, frozen=True):
    """What sbatch is to be given."""

    text: str
    output: str
    """Where the supervisor's messages go, with Slurm's own signs in it: %j is the job, %A_%a an array's task."""
    run_dir: str
    """The run directory; that of an array's task has {task} in it."""
    name: str
    """The job's name to Slurm."""


def slurm_script(
    job: Job,
    *,
    run_dir: str | None = None,
    array: str | None = None,
    options: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> Script:
    """The script for a job; `options` are the command line's, each `NAME` or `NAME=VALUE`, and win.

    Of an array each task has a run of its own, RUN-TASK, and `{task}` in `extra` is its number. Raises ScriptError
    for what can't stand in a script, and for options that would take away what outlast needs.
    """
    asked = job.slurm or Slurm()
    if array is not None and not _ARRAY.fullmatch(array):
        raise ScriptError(f'array "{array}": expected task numbers such as "1-5%2" or "0,3,7"')
    run = run_dir or job.run_dir
    place = str(Path(run).absolute())
    given = {**_checked(asked.options.items(), "slurm.options"), **_checked(map(_split, options), "--option")}
    output = str(given.get("output", f"{_literal(place)}.slurm-{'%A_%a' if array else '%j'}.log"))
    lines: dict[str, Value] = {"job-name": job.name}
    if asked.time is not None:
        lines["time"] = asked.time
    if array is not None:
        lines["array"] = array
    lines |= {"signal": f"B:USR1@{_seconds(asked.warn)}", "open-mode": "append"}
    lines["no-requeue" if asked.requeue == "never" else "requeue"] = True
    lines |= {"output": output, **given}
    words = start_command(
        job,
        run_dir=f"{place}-{_MARK}" if array else place if run_dir else None,
        extra=[word.replace(TASK, _MARK) for word in extra] if array else extra,
    )
    command = " ".join(map(_quoted, words))
    head = [line for name, value in lines.items() if (line := _directive(name, value))]
    text = "\n".join(["#!/bin/sh", *head, "trap '' USR1", f"exec {command}", ""])
    found = f"{place}-{TASK}" if array else place
    return Script(text=text, output=output, run_dir=found, name=str(lines["job-name"]))


def _split(option: str) -> tuple[str, Value]:
    name, sign, value = option.removeprefix("--").partition("=")
    return name, value if sign else True


def _checked(options: Iterable[tuple[str, Value]], where: str) -> dict[str, Value]:
    """Options by name. A line end in one would begin another option, or a command."""
    found: dict[str, Value] = {}
    for name, value in options:
        if not _NAME.fullmatch(name):
            raise ScriptError(
                f'{where}: "{_shown(name)}" is no name of an sbatch option; write it long, such as "partition"'
            )
        if cure := _OURS.get(name):
            raise ScriptError(f'{where}: "{name}" can\'t be set here: {cure}')
        if isinstance(value, str) and _CONTROL.search(value):
            raise ScriptError(f'{where}: the value of "{name}" has a line end or another control character')
        found[name] = value
    return found


def _shown(text: str) -> str:
    return _CONTROL.sub("?", text)


def _seconds(warn: float) -> int:
    if warn > _MAX_WARN:
        raise ScriptError(f"slurm.warn: Slurm warns at most {_MAX_WARN} s before the end, got {warn:g} s")
    return max(1, math.ceil(warn))


def _literal(path: str) -> str:
    """A path in which Slurm expands nothing.

    It reads `%` as the beginning of a sign, and after any backslash in a path it expands nothing at all; so that
    the job's number is in the name, a path with one is not taken.
    """
    if _CONTROL.search(path) or "\\" in path:
        raise ScriptError(
            f'run directory "{_shown(path)}": a backslash or control character in it can\'t be told to Slurm; '
            "give another with --run-dir"
        )
    return path.replace("%", "%%")


def _directive(name: str, value: Value) -> str:
    """One #SBATCH line; sbatch reads double quotes and backslashes in it as a shell does."""
    if value is False:
        return ""
    if value is True:
        return f"#SBATCH --{name}"
    text = str(value)
    if not re.fullmatch(r"[\w@%+=:,./-]*", text, re.ASCII):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{name}={text}"


def _quoted(word: str) -> str:
    """A word for the shell, with the number of the array's task where the mark stands."""
    return _TASK_VARIABLE.join(shlex.quote(part) if part else "" for part in word.split(_MARK)) or "''"
