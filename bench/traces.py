"""Turn published traces of machines into what `replay.py` reads; on stdout.

    python bench/traces.py events FILE      milliseconds, add or remove, instance (Bamboo, AWS p3)
    python bench/traces.py sizes FILE       date, time, instances up (Bamboo, GCP)
    python bench/traces.py states FILE      trace, offset_s, duration_s, nodes_up, nodes_wanted (SkyPilot, run lengths)
    python bench/traces.py outages FILE     system, node, started, fixed (LANL LA-UR-05-7318, ISO times)
    python bench/traces.py outages --nodes 40 FILE      the same, single nodes of it (a seeded draw)

The traces are not part of this project; see their own licences. A fleet is one run that lives on its first place,
then on its second, and so on: each place's history in turn. A system of nodes runs while none of them is down.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

Row = tuple[str, float, float, int]
ENOUGH = 10  # outages of a node from which on it is worth a replay


def events(lines: Iterator[list[str]]) -> Iterator[Row]:
    """Instances that join and leave; each takes the first free place."""
    place: dict[str, int] = {}
    since: dict[str, float] = {}
    rows: list[tuple[int, float, float, int]] = []
    now = 0.0
    for at, what, instance in lines:
        now = float(at) / 1000
        if what == "add":
            place[instance] = min(set(range(len(place) + 1)) - set(place.values()))
            since[instance] = now
        else:
            rows.append((place.pop(instance), since.pop(instance), now, 1))
    rows += [(place[name], since[name], now, 0) for name in place]
    return (("fleet", up, down, lost) for _, up, down, lost in sorted(rows))


def sizes(lines: Iterator[list[str]]) -> Iterator[Row]:
    """Readings of a fleet's size; who leaves is drawn, with a seed."""
    chance = random.Random(1)
    since: dict[int, float] = {}
    rows: list[tuple[int, float, float, int]] = []
    now, begin = 0.0, None
    for date, time, size in lines:
        moment = datetime.fromisoformat(f"{date.strip()} {time.strip()}").timestamp()
        begin = moment if begin is None else begin
        now = moment - begin
        while len(since) < int(size):
            since[min(set(range(len(since) + 1)) - set(since))] = now
        while len(since) > int(size):
            gone = chance.choice(sorted(since))
            rows.append((gone, since.pop(gone), now, 1))
    rows += [(where, up, now, 0) for where, up in since.items()]
    return (("fleet", up, down, lost) for _, up, down, lost in sorted(rows))


def states(lines: Iterator[list[str]]) -> Iterator[Row]:
    """Stretches with so many nodes up; a run has its machines while all that it wants are."""
    header = next(lines)
    traces = defaultdict(list)
    for line in lines:
        row = dict(zip(header, line, strict=True))
        at = float(row["offset_s"])
        traces[row["trace"]].append(
            (at, at + float(row["duration_s"]), int(row["nodes_up"]) >= int(row["nodes_wanted"]))
        )
    for name, found in traces.items():
        since: float | None = None
        for begin, _, up in sorted(found):
            if up and since is None:
                since = begin
            elif not up and since is not None:
                yield name, since, begin, 1
                since = None
        if since is not None:
            yield name, since, max(end for _, end, _ in found), 0


def outages(lines: Iterator[list[str]], nodes: int = 0) -> Iterator[Row]:
    """Outages; between two of them a system, or a node, is up."""
    header = next(lines)
    found = defaultdict(list)
    for line in lines:
        row = dict(zip(header, line, strict=True))
        name = f"system {row['system']}" + (f" node {row['node']}" if nodes else "")
        began, fixed = (datetime.fromisoformat(row[key]).timestamp() for key in ("started", "fixed"))
        found[name].append((began, max(began, fixed)))
    names = sorted(name for name in found if not nodes or len(found[name]) >= ENOUGH)
    for name in random.Random(1).sample(names, min(nodes, len(names))) if nodes else names:
        first, *rest = sorted(found[name])
        back = first[1]
        for began, fixed in rest:
            if began > back:
                yield name, back - first[0], began - first[0], 1
            back = max(back, fixed)


def main(words: Sequence[str] | None = None) -> int:
    """Convert one file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("kind", choices=("events", "sizes", "states", "outages"))
    parser.add_argument("file")
    parser.add_argument("--nodes", type=int, default=0, help="of outages: so many single nodes")
    options = parser.parse_args(words)
    with open(options.file, newline="") as file:
        lines = csv.reader(file)
        kinds = {"events": events, "sizes": sizes, "states": states}
        rows = outages(lines, options.nodes) if options.kind == "outages" else kinds[options.kind](lines)
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("run", "up", "down", "lost"))
        writer.writerows((run, f"{up:.0f}", f"{down:.0f}", lost) for run, up, down, lost in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
