"""Endings and counters for the tests of the rules of restarting."""

from __future__ import annotations

from outlast_jobs.restart import (
    Action,
    Counters,
    Ending,
    Failure,
    Policy,
    classify,
    decide,
)

POLICY = Policy()
AT_137 = Failure("ValueError", "no", "train.py:12 in step", 137, "train")
TRAINER = Ending(attached=True, trained=10)
RESTORE = Ending(
    code=1, phase="restore", failure=Failure("RuntimeError", "size mismatch", "train.py:5", None, "restore")
)


def after(
    *endings: Ending, policy: Policy = POLICY, counters: Counters | None = None
) -> tuple[Counters, Action]:
    """The counters and the action after these endings, one after the other."""
    counters, action = counters or Counters(), None
    for ending in endings:
        counters, action = decide(counters, classify(ending, policy), policy, 0.5)
    if action is None:
        raise ValueError("no ending")
    return counters, action
