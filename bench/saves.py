"""What a save costs the training, side by side: every contender on the same model, in turn, in fresh processes.

Each line: the stall of the call, the training time lost a save (the same steps with and without one), until the save
is on disk, and the peak of memory; medians over all rounds. Run it on a quiet machine: python bench/saves.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = (
    *("memcpy", "raw write", "raw direct write", "torch.save", "torch.save in a thread"),
    *("DCP async", "DCP process", "Lightning async", "outlast"),
)
SCRIPT = Path(__file__).parent / "saves" / "measure.py"
ENV = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NO_COLOR": "1"}


def measure(name: str, megabytes: int, rounds: int) -> list[dict[str, float]]:
    """What each save of a fresh process cost; nothing where the contender could not be run."""
    folder = Path(tempfile.mkdtemp(prefix="saves-"))
    command = [sys.executable, str(SCRIPT), name, str(folder), str(megabytes), str(rounds)]
    if name == "outlast":
        job = folder / "job.yaml"
        job.write_text(
            f"name: saves\nrun_dir: run\nsignals: outlast\ncommand: {json.dumps(command)}\n"
            "save: {every_steps: 1000000}\n"
        )
        command = [str(Path(sys.executable).with_name("outlast")), "run", "--quiet", str(job)]
    try:
        ended = subprocess.run(
            command,
            env=ENV,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        told = folder / "measured"
        if not told.exists():
            lines = (ended.stderr or ended.stdout).strip().splitlines()
            print(f"{name}: not measured: {lines[-1][:150] if lines else ended.returncode}", file=sys.stderr)
            return []
        return [json.loads(line) for line in told.read_text().splitlines()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(megabytes: int, rounds: int, turns: int, names: list[str]) -> dict[str, dict[str, float]]:
    """Measure all in turn, print a line each, and return the medians by name."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(turns):
        for name in names:
            found[name] += measure(name, megabytes, rounds)
    medians = {
        name: {key: statistics.median(line[key] for line in lines) for key in lines[0]}
        for name, lines in found.items()
        if lines
    }
    copied = medians.get("memcpy", {}).get("stall")
    print(
        f"\n{megabytes} MB of model and AdamW state, medians of {rounds * turns} saves in {turns} processes"
    )
    print(f"{'':<24}{'stall':>10}{'lost':>10}{'durable':>10}{'peak':>9}   stall and lost by memcpy")
    for name, m in medians.items():
        ratio = f"{m['stall'] / copied:>10.2f}{m['lost'] / copied:>8.2f}" if copied else ""
        print(
            f"{name:<24}{m['stall'] * 1e3:>7.1f} ms{m['lost'] * 1e3:>7.0f} ms{m['durable'] * 1e3:>7.0f} ms"
            f"{m['peak'] / 1e6:>6.0f} MB   {ratio}"
        )
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few saves: only to see that it runs")
    parser.add_argument("--megabytes", type=int, nargs="*", default=[300, 1200])
    parser.add_argument("--rounds", type=int, default=3, help="saves a process")
    parser.add_argument("--turns", type=int, default=3, help="processes a contender")
    parser.add_argument(
        "--only", default="", help="contenders whose name begins with one of these, by commas"
    )
    options = parser.parse_args()
    names = [n for n in NAMES if any(n.startswith(o) for o in options.only.split(","))]
    for megabytes in options.megabytes:
        rounds, turns = (1, 1) if options.quick else (options.rounds, options.turns)
        table(megabytes, rounds, turns, names)


if __name__ == "__main__":
    main()
