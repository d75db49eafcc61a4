"""A hundred job files at random under kills: the folder is always what runs, and nothing runs twice."""

from __future__ import annotations

import random
import shutil
from collections import Counter

import pytest
from tests.daemon.yard import ENDS, STAYS, Yard
from tests.e2e.harness import kill
from tests.e2e.reference import chance, pause

FILES = {"stays": 14, "ends": 36, "copy": 24, "wrong": 26}
PLACES = 10
ROUNDS = 4
DAEMON_KILLS, SUPERVISOR_KILLS = 6, 6


class Chaos:
    """What was done to a folder, and so what it has to look like when it has come to rest."""

    def __init__(self, yard: Yard, instants: random.Random) -> None:
        self.yard, self.instants = yard, instants
        self.files: dict[str, str] = {}  # file -> the run that it names; "" for a wrong one
        self.staying: set[str] = set()  # runs whose worker does not end by itself
        self.changes: Counter[str] = Counter()
        self.dropped = 0

    @property
    def runs(self) -> set[str]:
        """The runs that the folder asks for."""
        return set(self.files.values()) - {""}

    def do(self, what: str) -> None:
        """One act, at a random instant after the one before."""
        pause(self.instants.uniform(0, 0.05))
        if what in FILES:
            self.dropped += 1
            self._drop(f"j{self.dropped:03d}", what)
        else:
            getattr(self, f"_{what}")()
        assert len(self.yard.supervisors()) <= PLACES, self.yard.report()

    def _drop(self, name: str, kind: str) -> None:
        first = self._any(file for file, run in self.files.items() if run)
        if kind == "wrong":
            (self.yard.folder / f"{name}.yaml").write_text("name: [\n")
            self.files[name] = ""
        elif kind == "copy" and first:
            shutil.copy(self.yard.folder / f"{first}.yaml", self.yard.folder / f"{name}.yaml")
            self.files[name] = self.files[first]
        else:
            if kind == "stays" and len(self.staying & self.runs) < PLACES - 2:
                self.staying.add(name)
            self._write(name, name, priority=self.instants.randrange(3))
            self.files[name] = name

    def _write(self, file: str, run: str, priority: int) -> None:
        script = STAYS if run in self.staying else ENDS
        job = {"keep": {"last": 3 + self.changes[file]}, "daemon": {"priority": priority}}
        self.yard.write(run, script, file=file, **job)

    def _change(self) -> None:
        """Another policy, which neither starts a worker anew nor undoes what is done."""
        file = self._any(file for file, run in self.files.items() if run)
        if file:
            self.changes[file] += 1
            self._write(file, self.files[file], priority=0)

    def _remove(self) -> None:
        file = self._any(self.files)
        if file:
            del self.files[file]
            (self.yard.folder / f"{file}.yaml").unlink()

    def _kill_daemon(self) -> None:
        self.yard.kill_daemon()
        pause(self.instants.uniform(0, 0.3))
        self.begin()

    def _kill_supervisor(self) -> None:
        """One of a job that stays: what ended unseen may be done again, and rightly."""
        alive = self.yard.supervisors()
        run = self._any(self.staying & alive.keys())
        if run:
            kill(alive[run].pid)  # one whose file was removed may have ended by itself

    def _any(self, names: object) -> str | None:
        found = sorted(names)  # type: ignore[call-overload]
        return self.instants.choice(found) if found else None

    def begin(self) -> None:
        self.yard.start("--max-running", str(PLACES))

    def settled(self) -> bool:
        """Each run that the folder asks for runs or is done, by one file; whatever else is there is refused."""
        states = self.yard.states()
        good = Counter(
            self.files.get(file, file)
            for file, state in states.items()
            if state == ("running" if self.files.get(file) in self.staying else "done")
        )
        refused = sum(1 for state in states.values() if state == "refused")
        return (
            states.keys() == self.files.keys()
            and good == Counter(self.runs)
            and len(good) + refused == len(states)
            and self.yard.running() == set(self.yard.supervisors()) == self.staying & self.runs
        )

    def at_rest(self) -> None:
        """The folder is what runs, and no job that is done was done twice."""
        self.yard.until(self.settled, f"{sorted(self.staying & self.runs)} to run and the others to be done")
        for run in self.runs - self.staying:
            assert self.yard.lines(run).count("end") == 1, f"{run}\n{self.yard.report()}"
        self.yard.no_doubles()


@pytest.mark.timeout(600)
def test_the_folder_is_what_runs(yard: Yard, request: pytest.FixtureRequest) -> None:
    """A hundred files are dropped, changed and removed at random while daemons and supervisors are killed."""
    instants = chance(request)
    chaos = Chaos(yard, instants)
    acts = [kind for kind, count in FILES.items() for _ in range(count)] + ["change"] * 25 + ["remove"] * 40
    acts += ["kill_daemon"] * DAEMON_KILLS + ["kill_supervisor"] * SUPERVISOR_KILLS
    instants.shuffle(acts)
    chaos.begin()
    share = -(-len(acts) // ROUNDS)
    for begin in range(0, len(acts), share):
        for act in acts[begin : begin + share]:
            chaos.do(act)
        chaos.at_rest()
    assert chaos.dropped == 100
    assert len(yard.daemons) == DAEMON_KILLS + 1
    assert yard.drain().returncode == 0
    assert yard.supervisors() == {}
