"""A run on a disk that loses its power: started, cut at an instant, and held against what had been acknowledged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.harness import Run, Supervisor
from tests.e2e.reference import pause
from tests.faults.disk import Disk

from outlast_jobs import events as journal
from outlast_jobs.generation import GenerationName
from outlast_jobs.journal import read_journal
from outlast_jobs.look import Verdict
from outlast_jobs.requests import write_request
from outlast_jobs.rundir import RunDirectory

SCRIPTS = Path(__file__).parent / "scripts"
KEEP = 3
_TELLING = (sys.executable, str(SCRIPTS / "telling_run.py"))
_LONGEST = 0.8  # seconds from a start to a cut at an instant of the clock
_SEALS, _RECORDS = 8, 24  # at most, from a start to a cut after one of them


class Cut(AssertionError):
    """What was acknowledged and is not on disk."""


class Saving:
    """A run of the saver. The job file, the output and what was told lie beside the disk, and lose nothing."""

    def __init__(self, folder: Path, disk: Disk, *words: str) -> None:
        self.disk = disk
        self.told_in = folder / "told"
        self.enough = folder / "enough"
        job = {
            "command": [sys.executable, str(SCRIPTS / "saver.py"), *words],
            "run_dir": str(disk.path / "run"),
            "keep": {"last": KEEP},
        }
        told = {"TOLD": str(self.told_in), "CUT_DISK": str(disk.path), "ENOUGH": str(self.enough)}
        self.run = Run(folder, job, env=told)
        self.run.directory = RunDirectory(disk.path / "run")
        self.asked: list[str] = []
        self.cuts = 0

    # -- doing

    def cut_at(self, chance: random.Random) -> str:
        """Start it, and cut the power: after a time, or just when a seal or a record has been acknowledged."""
        match chance.randrange(5):
            case (0 | 1 | 2) as how:
                seconds = chance.uniform(0.0, _LONGEST)
                self.cut_after(seconds, chance, training=how > 0)
                return f"after {seconds:.3f} s of {'training' if how else 'life'}"
            case 3:
                after = f"sealed {chance.randint(1, _SEALS)}"
            case _:
                after = f"journal {chance.randint(1, _RECORDS)}"
        self.cut_when(after)
        return f"at {after}"

    def cut_after(self, seconds: float, chance: random.Random, training: bool) -> None:
        begun = len(self.told("started"))
        supervisor = self.start()
        if training:
            supervisor.until(lambda: len(self.told("started")) > begun, "a worker")
        early = seconds * chance.random()
        pause(early)
        self._ask()
        pause(seconds - early)
        self.cut()

    def cut(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Cut the power. What is done ``meanwhile`` comes too late to be acknowledged, and reaches the disk."""
        self._mark("cut")
        meanwhile()
        self.disk.cut()
        self._mark("off")
        self._end()

    def cut_when(self, after: str) -> None:
        """One of its processes cuts the power itself, in the moment after this acknowledgement."""
        cut, off = len(self.told("cut")), len(self.told("off"))
        supervisor = self.start(CUT=after)

        def is_dark() -> bool:
            # a supervisor that finds its disk gone may end before the thread that cut the power tells that it has
            ended = not supervisor.running() and len(self.told("cut")) > cut
            return ended or len(self.told("off")) > off

        supervisor.until(is_dark, f"the cut at {after!r}")
        self._end()

    def start(self, **env: str) -> Supervisor:
        return self.run.start(wrapper=_TELLING, env=env)

    def _mark(self, kind: str) -> None:
        with open(self.told_in, "a") as file:
            file.write(json.dumps({"kind": kind}) + "\n")

    def _ask(self) -> None:
        """Ask for a save, as somebody on another machine would."""
        if self.run.directory.requests.is_dir():
            self.asked.append(write_request(self.run.directory, "save", {}, "a person"))

    def _end(self) -> None:
        """The machine is off; its disk comes back."""
        self.run.close()
        self.disk.back()
        self._mark("back")
        self.cuts += 1

    # -- looking

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        """What was acknowledged so far, in order."""
        return read_told(self.told_in, *kinds)

    def hold(self) -> None:
        """All that was acknowledged is on disk, whole; nothing is there under a name that it does not deserve."""
        self._hold_generations()
        self._hold_journal()
        self._hold_starts()
        status = self.run.directory.status_json
        if status.exists() and status.stat().st_size:
            _require(self.run.status() is not None, f"the status is a part of one: {status.read_bytes()!r}")

    def _hold_generations(self) -> None:
        if not self.run.directory.checkpoints.is_dir():
            _require(not self.told("sealed"), "there are no checkpoints at all")
            return
        findings = {f.path.name: f for f in self.run.findings()}
        for name, found in findings.items():
            _require(found.verdict is Verdict.VERIFIED, f"{name} is {found.verdict}: {found.reason}")
        sealed = {one["name"] for one in self.told("sealed")}
        absent = sealed - findings.keys()
        missing = absent - {one["name"] for one in self.told("discarded")}
        _require(not missing, f"acknowledged, and not there: {sorted(missing)}")
        records = read_journal(self.run.directory).records
        unsaid = absent - {r.data["generation"] for r in records if r.event == journal.DROPPED}
        _require(not unsaid, f"deleted before that was on record: {sorted(unsaid)}")
        needed = sorted(sealed | findings.keys(), key=_name)[-KEEP:]
        early = absent.intersection(needed)
        _require(not early, f"deleted, and one of the last {KEEP}: {sorted(early)}")
        odd = [p.name for p in self.run.directory.checkpoints.iterdir() if ".corrupt-" in p.name]
        _require(not odd, f"set aside: {odd}")

    def _hold_journal(self) -> None:
        found = read_journal(self.run.directory)
        _require(not found.damage, f"the journal has damage: {found.damage}")
        for one in self.told("journal"):
            path = self.run.directory.journal / one["file"]
            on_disk = set(path.read_text().splitlines(keepends=True)) if path.exists() else set()
            missing = [line for line in one["lines"] if line not in on_disk]
            _require(not missing, f"acknowledged, and not in {one['file']}: {missing}")
        answered = {r.data["id"] for r in found.records if r.event == journal.ANSWERED}
        for request in self.asked:
            waits = (self.run.directory.requests / f"{request}.json").exists()
            _require(waits or request in answered, f"the request {request} is gone and has no answer")

    def _hold_starts(self) -> None:
        """No number is given to two attempts, a worker runs on a record alone, and what it resumes is the newest."""
        newest: GenerationName | None = None
        last = 0
        recorded = {
            r.data["attempt"]
            for r in read_journal(self.run.directory).records
            if r.event == journal.ATTEMPT_STARTED
        }
        for one in self.told("sealed", "started"):
            if one["kind"] == "sealed":
                name = GenerationName.parse(one["name"])
                newest = name if newest is None or (name is not None and newest < name) else newest
                continue
            _require(one["attempt"] > last, f"attempt {one['attempt']} began after attempt {last}")
            last = one["attempt"]
            _require(last in recorded, f"the worker of attempt {last} began without a record")
            resumed = GenerationName.parse(one["resumed"] or "")
            short = newest is not None and (resumed is None or resumed < newest)
            _require(not short, f"attempt {last} resumed from {resumed}, and {newest} had been sealed")


def read_told(path: Path, *kinds: str) -> list[dict[str, Any]]:
    """The lines of these kinds that were told to a file, in order; of acknowledgements those alone that were in time.

    A sync that is under way when the power goes may return as if all were well, on ext4 and on xfs. Of a machine that
    has lost its power nobody would have heard that. A deletion is none: begun between the word that the power goes and
    the cut itself it may have reached the disk.
    """
    found: list[dict[str, Any]] = []
    dark = False
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                one = json.loads(line)
                dark = (dark or one["kind"] == "cut") and one["kind"] != "back"
                heard = not dark or one["kind"] in ("cut", "off", "discarded")
                if heard and (not kinds or one["kind"] in kinds):
                    found.append(one)
    return found


def undisturbed(steps: int) -> str:
    """The saver's state after so many steps."""
    digest = ""
    for step in range(1, steps + 1):
        digest = hashlib.sha256(f"{digest} {step}".encode()).hexdigest()
    return digest


def _name(name: str) -> GenerationName:
    parsed = GenerationName.parse(name)
    if parsed is None:
        raise ValueError(f"{name!r} is no name of a generation")
    return parsed


def _require(held: bool, why: str) -> None:
    if not held:
        raise Cut(why)
