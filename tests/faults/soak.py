"""A run of the toy that is struck for minutes on end: what is drawn, what is struck, and when it is started again."""

from __future__ import annotations

import math
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.harness import Run, Supervisor, kill, kill_group, light
from tests.e2e.reference import BATCH, SAMPLES, TOY
from tests.faults.watching import Watch

from outlast_jobs.generation import Index
from outlast_jobs.look import Verdict

SHAPE = 0.65
"""Of the Weibull distribution of the gaps: failures of large machines come in heaps, with long gaps between."""
BURST = 0.12
"""The share of strikes that have more right behind them: at most so many, at most so many seconds apart."""
BURST_LENGTH, BURST_GAP = 5, 0.4
IN_A_SAVE = 0.35
"""The share of strikes that wait for a save to be in flight."""
SAVE_WAIT, SAVE_LASTS = 5.0, 0.03
NEXT_WAIT = 2.0
"""Seconds at most for a worker to strike, where the last one has just ended."""
AS_CRON = 1.0
"""Seconds at most until a supervisor that has ended is started again."""
LOOKS = 6
"""Looks at what is used, at least."""
FINISH = 600.0
"""Seconds for what is left when nothing strikes any more."""
TARGETS = {
    ("trainer", "KILL"): 30,
    ("trainer", "TERM"): 12,
    ("trainer", "USR1"): 8,
    ("trainer", "STOP"): 6,
    ("group", "KILL"): 12,
    ("group", "TERM"): 5,
    ("group", "USR1"): 4,
    ("supervisor", "KILL"): 12,
    ("supervisor", "TERM"): 6,
    ("both", "KILL"): 5,
}
"""What is struck with what, by weight. STOP is followed by CONT."""

Lines = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Scale:
    """How long, and how fast: so many steps that the time is over before they are."""

    seconds: float
    step_seconds: float
    gap: float  # seconds between two strikes, on average
    every: int = 5  # steps between saves

    @property
    def steps(self) -> int:
        return math.ceil(self.seconds / self.step_seconds) + 100

    def job(self, *, step_seconds: float, **sections: Any) -> dict[str, Any]:
        """The same training, at whatever pace."""
        words = ["--steps", self.steps, "--step-seconds", step_seconds, "--workers", 1]
        words += ["--samples", SAMPLES, "--batch", BATCH]
        env = {"OUTLAST_RECORD_IDS": "1", "OMP_NUM_THREADS": "1", **light()}
        command = ["{python}", TOY, *map(str, words)]
        return {"name": "soak", "command": command, "env": env, "stop": {"grace": "20s"}, **sections}


class Soak:
    """Strikes one run until its time is over, keeps it started, and lets it finish."""

    def __init__(self, folder: Path, short: Path, scale: Scale, dice: random.Random) -> None:
        self.scale = scale
        self.dice = dice
        self.struck: Counter[str] = Counter()
        self.in_a_save = 0
        self.starts = 0
        self._settings: dict[str, Any] = {"save": {"every_steps": scale.every}, "keep": {"last": 2}}
        outside = {"XDG_RUNTIME_DIR": short / "sockets", "TMPDIR": short / "tmp"}
        for path in outside.values():
            path.mkdir()
        env = {name: str(path) for name, path in outside.items()}
        job = scale.job(step_seconds=scale.step_seconds, **self._settings)
        self.run = Run(folder / "soak", job, env=env)
        self.watch = Watch(self.run.directory.path, tuple(outside.values()), scale.seconds / 120)
        self.supervisor = self._start()

    def suffer(self) -> None:
        """Strike it; in the last third of the time the supervisor is spared, so that one life sees much."""
        begun = time.monotonic()
        end = begun + self.scale.seconds
        self.run.until_step(1)
        scale = self.scale.gap / math.gamma(1 + 1 / SHAPE)
        more = 0
        while (now := time.monotonic()) < end:
            more = max(more - 1, 0) or (self.dice.random() < BURST) * self.dice.randint(1, BURST_LENGTH)
            gap = self.dice.uniform(0, BURST_GAP) if more else self.dice.weibullvariate(scale, SHAPE)
            self._pass(min(gap, end - now))
            self._strike(spared=now - begun > self.scale.seconds * 2 / 3)
        while len(self.watch.samples) < LOOKS:  # a short one on a slow machine
            self._keep_started(0)
            self._pass(1)

    def finish(self) -> int:
        """Stop it once more as a machine that goes would, and let it run to its end at full speed."""
        self._keep_started(0)
        self.supervisor.send(signal.SIGTERM)
        code = self.supervisor.wait(FINISH)
        assert code == 75, f"exit {code}\n{self.run.report()}"
        self.run.write_job(self.scale.job(step_seconds=0, **self._settings))
        return self._start().wait(FINISH)

    def _pass(self, seconds: float) -> None:
        """Let time go by, with a look at what is used now and then."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.supervisor.running():
                self.watch.look(self.supervisor.pid)
            time.sleep(min(left, 0.5))

    def _strike(self, *, spared: bool) -> None:
        self._keep_started(AS_CRON)
        chosen = {what: weight for what, weight in TARGETS.items() if not spared or what[0] in _WORKERS}
        [(target, act)] = self.dice.choices(list(chosen), weights=list(chosen.values()))
        self._wait(lambda: self.supervisor.worker_now() is not None, NEXT_WAIT)
        if self.dice.random() < IN_A_SAVE and self._wait(self._saving, SAVE_WAIT):
            self.in_a_save += 1
            time.sleep(self.dice.uniform(0, SAVE_LASTS))
        worker = self.supervisor.worker_now()
        if target in _WORKERS and worker is None:
            return
        number = signal.Signals[f"SIG{act}"]
        if worker is not None and target != "supervisor":
            (kill if target == "trainer" else kill_group)(worker, number)
        if target not in _WORKERS:
            self.supervisor.send(number)
        self.struck[f"{target} {act}"] += 1
        if act == "STOP" and worker is not None:
            self._pass(self.dice.uniform(0, 2))
            kill(worker, signal.SIGCONT)
        self._all_whole()

    def _saving(self) -> bool:
        return any(self.run.directory.checkpoints.glob(".writing-*/step-*"))

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Be there at once, as a save lasts for some milliseconds; whether it came."""
        end = time.monotonic() + seconds
        while not (there := condition()) and time.monotonic() < end:
            time.sleep(0.001)
        return there

    def _all_whole(self) -> None:
        """Whatever has a final name is whole."""
        bad = [f for f in self.run.findings() if f.verdict is not Verdict.VERIFIED]
        assert not bad, f"{bad}\n{self.run.report()}"

    def _keep_started(self, within: float) -> None:
        """Start it again where it has ended by what struck it; any other end is one too many."""
        if self.supervisor.running():
            return
        code = self.supervisor.wait()
        assert code in (75, -signal.SIGKILL), f"exit {code}\n{self.run.report()}"
        time.sleep(self.dice.uniform(0, within))
        self.supervisor = self._start()

    def _start(self) -> Supervisor:
        self.starts += 1
        self.watch.begin()
        return self.run.start()


_WORKERS = ("trainer", "group")


def undisturbed(run: Run, seconds: float) -> tuple[Lines, str]:
    """Run it to its end: each step's line, and the digest of the last state."""
    assert run.start().wait(seconds) == 0, run.report()
    return {line["step"]: compared(line) for line in run.history()}, last_state(run).state_sha256 or ""


def last_state(run: Run) -> Index:
    """The final generation's index."""
    index = run.verified()[0].index
    assert index is not None
    assert index.final, run.report()
    return index


_COMPARED = ("step", "loss", "lr", "rng", "ids", "epoch", "batch")


def compared(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: line.get(key) for key in _COMPARED}


def hold_lines(run: Run, lines: Lines) -> None:
    """All that any attempt recorded is what the undisturbed run did; each step and each sample comes once."""
    for attempt in run.attempts():
        for line in run.metrics(attempt):
            assert compared(line) == lines[line["step"]], f"attempt {attempt}\n{run.report()}"
    history = run.history()
    assert [line["step"] for line in history] == sorted(lines), run.report()
    ids = [sample for line in history for sample in line["ids"]]
    for begin in range(0, len(ids), SAMPLES):
        epoch = ids[begin : begin + SAMPLES]
        assert len(set(epoch)) == len(epoch)
