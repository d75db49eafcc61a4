"""Lists the system calls of an operation, and runs it again with one of them killed or failing: strace's injection.

The operation lies between two marks (marks.py), so that the start of the interpreter is
not attacked. strace counts the calls of one name in each thread from its beginning; a point is named by that count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.marks import BEGIN, END

KILL = "KILL"
"""The action that ends the process right before the call is carried out. Every other action is an errno's name."""
CALLS = "%file,%desc"
"""All that names a file or uses a descriptor."""

_MARKS = "?access,?faccessat,?faccessat2"
_LINE = re.compile(r"(?P<pid>\d+)\s+(?P<name>\w+)\((?P<rest>.*)")
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
    """Which call of this name in its thread, from the thread's beginning, as strace counts."""
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


def python(script: Path, *arguments: object) -> list[str]:
    """The command that runs a script by an interpreter that does the same each time; `environment` goes with it."""
    return [sys.executable, "-S", "-s", str(script), *map(str, arguments)]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which a script's calls do not depend on chance: no bytecode is written, hashes are fixed.

    Modules are found without `site`, whose looks into folders would only be traced.
    """
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return {**os.environ, **fixed, **(more or {})}


def points(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    calls: str = CALLS,
) -> list[Point]:
    """Run the command unharmed and list the calls between its marks. What it does is done: give it a copy.

    AssertionError where it fails. ``calls`` is what strace's ``-e trace=`` takes.
    """
    done, lines = _traced(command, ["-e", f"trace={calls},{_MARKS}"], env, cwd)
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stderr[-4000:]}")
    return list(_between(lines))


def strike(
    command: Sequence[str],
    point: Point,
    action: str = KILL,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    lasting: bool = False,
) -> Struck:
    """Run the command again, with the one point killed or failing with an errno such as "EIO"; once, or from there on.

    Missed where another call than the one meant was struck, or none.
    """
    when = f"{point.when}+" if lasting else str(point.when)
    what = "signal=KILL" if action == KILL else f"error={action}"
    options = ["-e", f"trace={point.name},{_MARKS}", "-e", f"inject={point.name}:{what}:when={when}"]
    if action != KILL:
        options.append("--seccomp-bpf")  # stops at these calls alone; a signal is not injected with it
    done, lines = _traced(command, options, env, cwd)
    found = list(_between(lines))
    struck = found[-1:] if action == KILL else [p for p in found if p.text.endswith("(INJECTED)")][:1]
    meant = (point.name, point.when, point.ordinal)
    if [(p.name, p.when, p.ordinal) for p in struck] != [meant] or (action == KILL and done.returncode != -9):
        shown = struck[0] if struck else "nothing between the marks"
        raise Missed(f"meant {point}, struck {shown}, ended with {done.returncode}\n{done.stderr[-2000:]}")
    return Struck(done.returncode, done.stdout, done.stderr, struck[0].text)


def _traced(
    command: Sequence[str], options: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    with tempfile.TemporaryDirectory(prefix="points-") as folder:
        trace = Path(folder) / "trace"
        strace = ["strace", "-f", "-qq", "-y", "-s", "256", "-e", "signal=none"]
        done = subprocess.run(
            [*strace, "-o", str(trace), *options, "--", *command],
            env=dict(env) if env is not None else environment(),
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
        )
        lines = trace.read_text(errors="replace").splitlines() if trace.exists() else []
    return done, lines


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
        pid, name, rest = match["pid"], match["name"], match["rest"]
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
