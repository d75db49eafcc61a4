"""Run every measurement in turn, show what each says, and keep it in bench/RESULTS.md with the machine and versions.

    python bench/results.py [--quick] [--fire] [--only PART]… [--alone PYTHON]

At the head of RESULTS.md, and at the end in the terminal, stands a table of each figure that has a goal, beside its
limit or the best of the others. A part that was not run keeps what was found last, with its date; one that fails
says so, and the others go on. Parts that need no peers are run by the interpreter --alone. It takes two cores for
itself: over an hour, and 40 minutes more for goodput under fire, which runs only when asked for.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import family
import goals
import psutil

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
COLUMNS = ("part", "figure", "found", "beside", "ratio", "goal", "")


@dataclass(frozen=True)
class Part:
    """One measurement: its name, the script and its words, and the minutes after which it is ended."""

    name: str
    words: tuple[str, ...]
    minutes: float
    short: bool = True
    """Whether it can be shortened."""
    peers: bool = False
    """Whether it needs the peers. What they hang into every start of their Python is not ours to be measured."""


PARTS = (
    Part("The supervisor", ("bench.py",), 10),
    Part("What a save costs", ("saves.py",), 90, peers=True),
    Part("A verified restore", ("restore.py",), 10, peers=True),
    Part("Coming back", ("standby.py",), 10),
    Part("At scale", ("scale.py",), 20),
    Part("The automatic cadence", ("replay.py", "--synthetic"), 10, short=False),
)
FIRE = Part("Goodput under fire", ("under_fire.py", "--standby"), 60, peers=True)


@dataclass(frozen=True)
class Kept:
    """What RESULTS.md holds: the rows of the table at its head, and a section of each part."""

    rows: dict[str, list[str]]
    sections: dict[str, str]


# -- running --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a part said, what it held against its goals, and how it ended."""

    text: str
    found: list[goals.Goal]
    seconds: float
    failure: str


def run(part: Part, words: Sequence[str], python: str) -> Outcome:
    """Run it and show its lines as they come."""
    lines: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        records = Path(folder) / "goals"
        process = subprocess.Popen(
            [python, str(HERE / words[0]), *words[1:]],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {goals.RECORDS: str(records)},
        )
        late = threading.Event()
        timer = threading.Timer(part.minutes * 60, lambda: (late.set(), family.end(process)))
        timer.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                lines.append(line)
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                family.end(process)
        failure = "" if process.returncode == 0 else f"ended with {process.returncode}"
        if late.is_set():
            failure = f"not done after {part.minutes:g} minutes"
        return Outcome("".join(lines), goals.read(records), time.monotonic() - began, failure)


def machine() -> str:
    """What the figures were taken on."""
    names = ("outlast", "torch", "numpy", "lightning", "dlrover")
    versions = ", ".join(f"{name} {_version(name)}" for name in names if _version(name))
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), ""
    )
    memory = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{len(os.sched_getaffinity(0))} cores ({cpu}), {memory:.0f} GiB, {_file_system()}, Linux "
        f"{platform.release()}, Python {platform.python_version()}, {versions}"
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _file_system() -> str:
    """Of the folder that what is saved goes to."""
    folder = Path(tempfile.gettempdir()).resolve()
    mounts = [m for m in psutil.disk_partitions(all=True) if folder.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else "unknown file system"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


# -- keeping --------------------------------------------------------------------------------------------------


def kept(text: str) -> Kept:
    """What a RESULTS.md says."""
    head, *parts = text.split("\n## ")
    rows: dict[str, list[str]] = {}
    for line in head.splitlines():
        cells = line.split(" | ")
        if line.startswith("| ") and cells[0][2:] != COLUMNS[0]:
            rows.setdefault(cells[0][2:], []).append(line)
    sections = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}
    return Kept(rows, sections)


def written(found: Kept) -> str:
    """The text of RESULTS.md."""
    names = [part.name for part in (*PARTS, FIRE)]
    table = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for name in names:
        why = "it has no goal; see below" if name in found.sections else "not measured: it was not run"
        table += found.rows.get(name, [f"| {name} | | | | | | {why} |"])
    text = (
        "# Results\n\nBy `make bench`: medians of what was taken side by side, in turn. Each figure stands beside its "
        "limit or the best\nof the others. What each is, its script says.\n\n" + "\n".join(table) + "\n"
    )
    for name in names:
        if name in found.sections:
            text += f"\n## {name}\n\n{found.sections[name]}\n"
    return text


def row(part: str, goal: goals.Goal) -> tuple[str, ...]:
    """A goal as a line of the table."""
    return (part, goal.what, goal.found, goal.beside, goal.ratio, goal.bound, goal.verdict)


def section(words: Sequence[str], outcome: Outcome, load: float) -> str:
    """A part's own text."""
    how = (
        f"`python bench/{' '.join(words)}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {outcome.seconds:.0f} s, load at "
        f"the start {load:.1f}.\n{machine()}."
    )
    failed = f"\n**Failed: {outcome.failure}.**\n" if outcome.failure else ""
    return f"{how}\n{failed}\n```\n{outcome.text.strip()}\n```"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table for the terminal."""
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="short, and keeps nothing: only to see that it runs"
    )
    parser.add_argument("--fire", action="store_true", help="goodput under fire as well")
    parser.add_argument(
        "--only", action="append", metavar="PART", help="parts whose name begins so; again for more"
    )
    parser.add_argument(
        "--alone",
        metavar="PYTHON",
        default=sys.executable,
        help="the interpreter of an environment without the peers, for the parts that do without them",
    )
    options = parser.parse_args()
    parts = [*PARTS, FIRE] if options.fire or options.only else [*PARTS]
    if options.only:
        starts = tuple(only.lower() for only in options.only)
        parts = [part for part in parts if part.name.lower().startswith(starts)]
        if not parts:
            names = ", ".join(f'"{part.name}"' for part in (*PARTS, FIRE))
            parser.error(f"no part begins with {' or '.join(options.only)}; there are {names}")
    print(machine(), flush=True)
    table, times, failed = [COLUMNS], [], 0
    for part in parts:
        print(f"\n## {part.name}", flush=True)
        load = os.getloadavg()[0]
        words = (*part.words, "--quick") if options.quick and part.short else part.words
        outcome = run(part, words, sys.executable if part.peers else options.alone)
        found = list(outcome.found)
        if outcome.failure:
            failed += 1
            found.append(goals.Goal("all of it", "", "", "", "", f"not measured: {outcome.failure}"))
        rows = [row(part.name, goal) for goal in found]
        table += rows
        times.append(
            f"{part.name} {outcome.seconds:.0f} s{', ' + outcome.failure if outcome.failure else ''}"
        )
        if not options.quick:  # at once: what is interrupted later stays
            old = kept(RESULTS.read_text()) if RESULTS.exists() else Kept({}, {})
            old.rows[part.name] = [f"| {' | '.join(cells)} |" for cells in rows]
            old.sections[part.name] = section(words, outcome, load)
            RESULTS.write_text(written(old))
    print(f"\n{aligned(table)}\n\n{'; '.join(times)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
