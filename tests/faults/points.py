"""Lists the system calls of an operation, and runs it again with one of them killed or failing: strace's injection.

The operation lies between two marks (marks.py), so that the start of the interpreter is not attacked. strace counts
the calls of one name in each thread from where it began to look; a point is named by that count.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.faults.marks import BEGIN, END

KILL = "KILL"
"""The action that ends the process right before the call is carried out. Every other action is an errno's name."""
CALLS = "%file,%desc"
"""All that names a file or uses a descriptor."""

SHOWN = ("-y", "-s", "256", "-e", "signal=none")
"""Options of strace's: what its lines show."""

TRIES = 3
"""To strike the point that is meant, where the machine deals the calls out among threads otherwise than before."""
_MARKS = "?access,?faccessat,?faccessat2"
_LINE = re.compile(r"(?:(?P<pid>\d+)\s+)?(?P<name>\w+)\((?P<rest>.*)")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"|\d+<([^>]*)>')
_LEFT_OUT = {"mmap"}  # follows the allocator's chances, and changes no file
_PATIENCE = 120.0


class Missed(AssertionError):
    """The call that was struck is not the one that was meant: the operation does not do the same each time."""


@dataclass(frozen=True)
class Point:
    """One system call of an operation."""

    number: int
    """Its place among the operation's calls, from 1."""
    name: str
    when: int
    """Which call of this name in its thread, as strace counts."""
    thread: int
    """Which thread or process, by the order in which they first called anything; 0 is the first."""
    ordinal: int
    """Which call of this name in the operation, from 1, over all threads."""
    path: str
    """The first file that it names or whose descriptor it has; empty where there is none."""
    text: str
    """What strace shows of it."""

    def __str__(self) -> str:
        return f"call {self.number}, {self.name}({self.path}), {self.name} number {self.ordinal}"


@dataclass(frozen=True)
class Struck:
    """What became of a command in which one call was struck."""

    code: int
    """The exit code; negative: the signal that ended it."""
    out: str
    err: str
    hit: str
    """What strace shows of the call that was struck."""

    @property
    def acknowledged(self) -> list[str]:
        """What the command said was done: the lines of its stdout that were written whole."""
        return [line[:-1] for line in self.out.splitlines(keepends=True) if line.endswith("\n")]


@dataclass(frozen=True)
class Outcome:
    """How a traced command ended, what it said, and the lines of the trace."""

    code: int
    out: str
    err: str
    trace: list[str]


class Target(Protocol):
    """Something that can be carried out again and again under strace."""

    def traced(self, options: Sequence[str], *, kills: bool) -> Outcome:
        """Carry it out with these options of strace's; ``kills`` where they inject a signal, which needs all stops."""
        ...


@dataclass(frozen=True)
class Command:
    """A command that strace starts; see `python`."""

    words: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None

    def traced(self, options: Sequence[str], *, kills: bool) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="points-") as folder:
            trace = Path(folder) / "trace"
            few = [] if kills else ["--seccomp-bpf"]
            done = subprocess.run(
                ["strace", "-f", "-qq", *few, *SHOWN, "-o", str(trace), *options, "--", *self.words],
                env=dict(self.env) if self.env is not None else environment(),
                cwd=self.cwd,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
            )
            lines = trace.read_text(errors="replace").splitlines() if trace.exists() else []
        return Outcome(done.returncode, done.stdout, done.stderr, lines)


def python(script: Path, *arguments: object) -> Command:
    """A script run by an interpreter that does the same each time."""
    return Command([sys.executable, "-S", "-s", str(script), *map(str, arguments)])


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which a script's calls do not depend on chance: no bytecode is written, hashes are fixed.

    Modules are found without `site`, whose looks into folders would only be traced.
    """
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return {**os.environ, **fixed, **(more or {})}


def points(target: Target, *, calls: str = CALLS) -> list[Point]:
    """Carry it out unharmed and list the calls between its marks. What it does is done: give it a copy.

    AssertionError where it fails. ``calls`` is what strace's ``-e trace=`` takes.
    """
    outcome = target.traced(["-e", f"trace={calls},{_MARKS}"], kills=False)
    if outcome.code:
        raise AssertionError(f"{target} ended with {outcome.code}\n{outcome.err[-4000:]}")
    return list(_between(outcome.trace))


def strike(target: Target, point: Point, action: str = KILL, *, lasting: bool = False) -> Struck:
    """Carry it out again, with the one point killed or failing with an errno such as "EIO"; once, or from there on.

    Missed where another call than the one meant was struck, or none, in each of some tries: which of its threads makes
    a call is up to the machine.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(Missed):
            return _strike(target, point, action, lasting=lasting)
    return _strike(target, point, action, lasting=lasting)


def _strike(target: Target, point: Point, action: str, *, lasting: bool) -> Struck:
    when = f"{point.when}+" if lasting else str(point.when)
    what = "signal=KILL" if action == KILL else f"error={action}"
    options = ["-e", f"trace={point.name},{_MARKS}", "-e", f"inject={point.name}:{what}:when={when}"]
    outcome = target.traced(options, kills=action == KILL)
    found = list(_between(outcome.trace))
    struck = found[-1:] if action == KILL else [p for p in found if p.text.endswith("(INJECTED)")][:1]
    meant = (point.name, point.when, point.ordinal)
    survived = action == KILL and outcome.code != -9
    if survived or [(p.name, p.when, p.ordinal) for p in struck] != [meant]:
        shown = struck[0] if struck else "nothing between the marks"
        raise Missed(f"meant {point}, struck {shown}, ended with {outcome.code}\n{outcome.err[-2000:]}")
    return Struck(outcome.code, outcome.out, outcome.err, struck[0].text)


def _between(lines: Sequence[str]) -> Iterator[Point]:
    """The calls between the marks. A call that was interrupted in the trace counts where it began."""
    counts: Counter[tuple[str, str]] = Counter()  # of a thread, by name
    ordinals: Counter[str] = Counter()
    threads: list[str] = []
    number, within = 0, False
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:  # the second half of a call that was interrupted, or the end of a process
            continue
        pid, name, rest = match["pid"] or "", match["name"], match["rest"]
        if pid not in threads:
            threads.append(pid)
        counts[pid, name] += 1
        if f'"{BEGIN}"' in rest or f'"{END}"' in rest:
            within = f'"{BEGIN}"' in rest
        elif within and name not in _LEFT_OUT:
            number += 1
            ordinals[name] += 1
            path = _PATH.search(rest)
            yield Point(
                number,
                name,
                counts[pid, name],
                threads.index(pid),
                ordinals[name],
                (path[1] or path[2]) if path else "",
                f"{name}({rest}",
            )
