"""Compare what the four flows left, and write verification.json: what held, and every difference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from compare import ABSOLUTE, Aspect, compare, finite
from flow import CHECKPOINT, SCHEMA, SUMMARY
from task import CUT, ROWS, STEPS

from outlast_jobs.safejson import parse_object
from outlast_worker import atomic_write_json
from outlast_worker.single import read_checkpoint

REPORT = "verification.json"
DIVERGED = 0.001
"""The weights must differ by more than this where the random streams were not restored."""


class Left:
    """What one flow left, read with all the loader's checks."""

    def __init__(self, folder: Path) -> None:
        self.summary = parse_object((folder / SUMMARY).read_bytes(), what=SUMMARY, limit=1 << 20)
        if self.summary.get("schema") != SCHEMA:
            raise ValueError(
                f"{folder.name}/{SUMMARY} has schema {self.summary.get('schema')!r}, not {SCHEMA!r}"
            )
        self.checkpoint = read_checkpoint(folder / CHECKPOINT)

    def column(self, name: str) -> list[Any]:
        """One value of each step."""
        return [step[name] for step in self.summary["steps"]]


def aspects(whole: Left, cut: Left, resumed: Left) -> dict[str, Aspect]:
    """Everything in which the run that was cut must be the one that was not."""
    parts, others = whole.checkpoint["parts"], resumed.checkpoint["parts"]

    def both(name: str) -> list[Any]:
        return cut.column(name) + resumed.column(name)

    found = {
        "row_ids": compare(whole.column("ids"), both("ids")),
        "learning_rates": compare(whole.column("lr"), both("lr")),
        "next_learning_rate": compare(whole.summary["next_lr"], resumed.summary["next_lr"]),
        "losses": compare(whole.column("loss"), both("loss")),
        "loss_history": compare(whole.checkpoint["losses"], resumed.checkpoint["losses"]),
        "parameters": compare(parts["model"], others["model"]),
        "optimizer": compare(parts["optimizer"], others["optimizer"]),
        "scheduler": compare(parts["scheduler"], others["scheduler"]),
        "rows": compare(parts["rows"], others["rows"]),
        "counters": compare(whole.checkpoint["counters"], resumed.checkpoint["counters"]),
        "random_streams": compare(
            {"noise": parts["noise"], **whole.checkpoint["rng"]},
            {"noise": others["noise"], **resumed.checkpoint["rng"]},
        ),
    }
    for name in ("progress", "evaluation", "next_draws"):
        found[name] = compare(whole.summary[name], resumed.summary[name])
    return found


def protocol(whole: Left, cut: Left) -> dict[str, bool]:
    """What makes the runs those of the protocol: without it, the comparison would prove something else."""
    before, after = cut.summary["progress"], whole.summary["progress"]
    return {
        "the network has 33 parameters": whole.summary["parameters"] == 33,
        f"{STEPS} updates, cut after {CUT}": (after["step"], before["step"]) == (STEPS, CUT),
        f"the cut is at row 20 of {ROWS}": before["rows"]["cursor"] == 20 and before["epoch"] == 0,
        "40 observations are consumed, over a new permutation": after["consumed"] == 40
        and after["epoch"] == 1,
        "the next learning rate is 0.00375": abs(whole.summary["next_lr"] - 0.00375) <= ABSOLUTE,
    }


def verification(folder: Path) -> dict[str, Any]:
    """The whole report over the flows in a folder."""
    whole, cut, resumed, without = (
        Left(folder / name) for name in ("continuous", "cut", "resumed", "without-rng")
    )
    positive, negative = aspects(whole, cut, resumed), aspects(whole, cut, without)
    passed = all(aspect.passed for aspect in positive.values())
    weights = negative["parameters"].largest
    detected = finite(weights) and weights is not None and weights > DIVERGED
    held = protocol(whole, cut)
    sizes = [aspect.largest for aspect in positive.values()]
    return {
        "schema": "proof24.verification/1",
        "all_checks_passed": passed and detected and all(held.values()),
        "positive": {
            "passed": passed,
            "largest_difference": None if None in sizes else max(size for size in sizes if size is not None),
            "aspects": {name: aspect.plain() for name, aspect in positive.items()},
        },
        "negative_divergence_detected": detected,
        "negative": {
            "left_out": "the restore of every random stream",
            "largest_weight_difference": weights,
            "needed": DIVERGED,
            "aspects": {name: aspect.plain() for name, aspect in negative.items()},
        },
        "tolerance": {"absolute": ABSOLUTE, "relative": 0},
        "protocol": held,
        "environment": whole.summary["environment"],
    }


def main(folder: str) -> int:
    """0: it held; 1: it did not; 2: there was something that could not be compared."""
    try:
        report = verification(Path(folder))
        atomic_write_json(report, Path(folder) / REPORT)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        print(
            f"proof24: the comparison could not be completed: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return 2
    positive, negative = report["positive"], report["negative"]
    for name, aspect in positive["aspects"].items():
        print(f"{name:<20} {'equal' if aspect['largest_difference'] == 0 else _differs(aspect)}")
    print(f"full resume: largest difference {positive['largest_difference']!r}")
    print(
        f"without the random streams: largest weight difference {negative['largest_weight_difference']!r}, "
        f"{'detected' if report['negative_divergence_detected'] else 'NOT DETECTED'}"
    )
    for what, held in report["protocol"].items():
        if not held:
            print(f"not the protocol: {what}: no")
    print("held" if report["all_checks_passed"] else "DID NOT HOLD")
    return 0 if report["all_checks_passed"] else 1


def _differs(aspect: dict[str, Any]) -> str:
    first = next((d for d in aspect["differences"] if d["size"] is None or d["size"] > ABSOLUTE), None)
    if first is None:
        return f"within the tolerance, by {aspect['largest_difference']!r}"
    return f"DIFFERS at {first['path']}: {first['what']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
