"""Sixty SIGKILLs at random instants, and the run comes to the same end, to the last bit."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import PATIENCE, Run, kill
from tests.e2e.reference import Reference, pause, toy
from tests.e2e.watch import AlwaysOne

from outlast_jobs.look import Verdict

KILLS = 60
WHEN = {"save": 20, "training": 6, "any": 8, "start": 26}
"""How many kills fall where: by lot within it. Those that need no attached trainer cost the least time."""
EVERY = 5
"""Steps between saves: hardly has an attempt attached, it has one in flight."""
SAVE = 0.03
"""Seconds that a save takes, about: a kill falls somewhere in it, or right behind it."""
MOMENT = 0.15
"""Seconds of training: some steps and saves."""


class Campaign:
    """Kills one run again and again, and starts it again where its supervisor is what was killed."""

    def __init__(self, run: Run, instants: random.Random) -> None:
        self.run = run
        self.instants = instants
        self.counts: Counter[str] = Counter()
        begun = time.monotonic()
        self.supervisor = run.start()
        run.until_step(1)
        self.attach_seconds = time.monotonic() - begun

    def strike(self, when: str) -> None:
        """One kill; of what, is drawn too."""
        victim = self.instants.choice(("worker", "supervisor", "both"))
        {"save": self._in_a_save, "training": self._in_training, "any": self._any, "start": self._early}[
            when
        ]()
        worker = self.supervisor.worker_now()
        if victim != "supervisor" and worker is not None:
            kill(worker)
        if victim != "worker":
            self.supervisor.kill()
        self.counts[victim] += 1
        self.counts["torn"] += self._saving()
        self._all_whole()
        if victim != "worker":
            self.supervisor = self.run.start()

    def _in_a_save(self) -> None:
        """When files are being written, or a little later, so that each part of a save has its turn."""
        self._catch(self._saving, "a save")
        pause(self.instants.uniform(0, SAVE))

    def _in_training(self) -> None:
        self._catch(lambda: self.run.last_step() is not None, "a step")
        pause(self.instants.uniform(0, MOMENT))

    def _any(self) -> None:
        self.supervisor.worker()
        pause(self.instants.uniform(0, self.attach_seconds))

    def _early(self) -> None:
        """While a supervisor begins, or launches a worker, or this one its interpreter."""
        pause(self.instants.uniform(0, self.attach_seconds / 6))

    def _catch(self, moment: Callable[[], bool], what: str) -> None:
        """Be there at once: a save lasts for some milliseconds, too short for a patient wait."""
        self.supervisor.worker()
        end = time.monotonic() + PATIENCE
        while not moment():
            assert time.monotonic() < end, f"waited in vain for {what}\n{self.run.report()}"
            time.sleep(0.001)

    def _saving(self) -> bool:
        """Whether a save is in flight, or was when its writer died."""
        checkpoints = self.run.directory.checkpoints
        with contextlib.suppress(FileNotFoundError):  # asked a thousand times a second, so not by glob
            for name in os.listdir(checkpoints):
                if name.startswith(".writing-") and os.listdir(checkpoints / name):
                    return True
        return False

    def _all_whole(self) -> None:
        """Whatever has a final name is whole."""
        bad = [f for f in self.run.findings() if f.verdict is not Verdict.VERIFIED]
        assert not bad, f"{bad}\n{self.run.report()}"


@pytest.mark.timeout(900)
def test_sixty_kills_change_nothing(make_run: MakeRun, reference: Reference, instants: random.Random) -> None:
    """Killed 60 times, a third of them in a save, a run never lacks a good generation and ends the same."""
    run = make_run(toy(save={"every_steps": EVERY}, keep={"last": 1}))
    order = [when for when, count in WHEN.items() for _ in range(count)]
    instants.shuffle(order)
    with AlwaysOne(run) as always:
        campaign = Campaign(run, instants)
        begun = time.monotonic()
        for number, when in enumerate(order, 1):
            campaign.strike(when)
            assert not always.broken, f"after kill {number}: {always.broken}\n{run.report()}"
        print(f"{len(order)} kills in {time.monotonic() - begun:.0f} s: {dict(campaign.counts)}")
        code = campaign.supervisor.wait()
    assert code == 0, run.report()
    assert always.seen
    assert not always.broken, f"{always.broken}\n{run.report()}"
    assert len(order) == KILLS
    assert campaign.counts["torn"] >= WHEN["save"] // 5, "the kills have missed the saves"
    assert len(run.generations()) <= 2, "more is kept than the last and the one resumed from"
    reference.hold_end(run)
