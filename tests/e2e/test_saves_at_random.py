"""Saves at random instants: each is the state of a boundary, whatever the signal interrupted."""

from __future__ import annotations

import random
import signal
import time

from tests.e2e.conftest import MakeRun
from tests.e2e.harness import kill
from tests.e2e.reference import STEPS, Reference, pause, toy

SAVES = 200
GAP = 0.01
"""Seconds between a save and the next signal at most: within a step or two."""


def test_two_hundred_saves_are_states_of_the_undisturbed_run(
    make_run: MakeRun, reference: Reference, instants: random.Random
) -> None:
    """Each of 200 saves at random instants is the state that the undisturbed run had at that boundary."""
    done = 0
    while done < SAVES:  # the training goes on during a save: it may end before there were so many
        found = _saves_of_a_run(make_run, reference, instants, SAVES - done)
        assert found > 5, "hardly a save in a whole run"
        done += found


def _saves_of_a_run(make_run: MakeRun, reference: Reference, instants: random.Random, most: int) -> int:
    """So many saves at most of a whole run, all held against the reference; how many there were."""
    run = make_run(toy(save={"every_steps": 10 * STEPS}, keep={"last": 10 * STEPS}))
    supervisor = run.start()
    run.until_step(1)
    [attached] = run.records("attempt_attached")
    trainer = attached.data["pid"]

    def sealed() -> int:
        return len(list(run.directory.checkpoints.glob("step-*")))

    begun = time.monotonic()
    while (before := sealed()) < most and supervisor.running():
        pause(instants.uniform(0, GAP))
        kill(trainer, signal.SIGUSR1)
        if instants.random() < 0.2:  # one more, perhaps in the middle of the save, which may mean another
            pause(instants.uniform(0, GAP))
            kill(trainer, signal.SIGUSR1)
        run.until(lambda n=before: sealed() > n or not supervisor.running(), "a save")
    print(f"{sealed()} saves in {time.monotonic() - begun:.1f} s, at step {run.last_step()}")
    assert supervisor.wait() == 0, run.report()
    findings = run.verified()
    for finding in findings:
        reference.hold_state(finding)
    reference.hold_end(run)
    return sum(1 for finding in findings if finding.index and finding.index.reason == "asked for")
