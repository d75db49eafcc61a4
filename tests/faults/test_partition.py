"""Two nodes that cannot see each other, and one run: one of them writes, whatever the other one believes."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import PATIENCE, Run, Supervisor
from tests.faults.node import Node
from tests.faults.saving import SCRIPTS, read_told, undisturbed
from tests.faults.scale import WHOLE, chance, scaled, told
from tests.realparts import needs

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_jobs.generation import GenerationName
from outlast_jobs.lease import STALE

pytestmark = needs("namespaces", "strace")

ROUNDS = scaled(2, 10)
# as on a file system that knows no flock
NO_FLOCK = ("strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=flock")
NO_FLOCK += ("-e", "inject=flock:error=ENOLCK")


class Two:
    """Two nodes and the folder that they share."""

    def __init__(self, folder: Path, **how: Any) -> None:
        folder.mkdir()
        self.enough = folder / "enough"
        self._told = folder / "told"
        env = {"TOLD": str(self._told), "ENOUGH": str(self.enough)}
        self.run = Run(folder, {"command": [sys.executable, str(SCRIPTS / "saver.py")]}, env=env)
        self.one, self.other = (Node(folder, name, **_each(how, name)) for name in ("node-a", "node-b"))

    def sealed(self, attempt: int, number: int = 1) -> None:
        """Wait until an attempt has sealed so many."""
        mark = f".a{attempt:04d}"
        enough = lambda: sum(mark in name for name in self.seals()) >= number  # noqa: E731
        self.run.until(enough, f"seals of attempt {attempt}", STALE + PATIENCE)

    def seals(self) -> list[str]:
        return [one["name"] for one in read_told(self._told, "sealed")]

    def complete(self, last: Supervisor) -> None:
        """Let the one that has the run complete it, and hold it against a run that nothing disturbed."""
        self.enough.touch()
        assert last.wait() == 0, self.run.report()
        newest = self.run.verified()[0].index
        assert newest is not None
        assert newest.final
        assert newest.state_sha256 == undisturbed(newest.step)
        assert [line["step"] for line in self.run.history()] == list(range(1, newest.step + 1))
        assert len(self.run.verified()) == len(self.run.generations())
        for start in read_told(self._told, "started"):
            before = [
                n for s in self.seals() if (n := GenerationName.parse(s)) and n.attempt < start["attempt"]
            ]
            resumed = GenerationName.parse(start["resumed"] or "")
            assert not before or (resumed is not None and resumed >= max(before)), (
                "sealed after it was fenced off"
            )
        self.run.nothing_left()

    def hosts(self) -> list[str]:
        """Where each attempt trained."""
        return [one["host"] for one in read_told(self._told, "started")]


def _each(how: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value.format(node=name) if key == "setup" else value for key, value in how.items()}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[Two]]:
    """The pairs of a test, ended after it."""
    pairs: list[Two] = []
    yield pairs
    for pair in pairs:
        pair.run.close()


def tree(folder: Path) -> dict[str, object]:
    """All that can be told of a folder: names, inodes, lengths, times of change and contents."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        found[str(path.relative_to(folder))] = (stat.st_ino, stat.st_size, stat.st_ctime_ns, content)
    return found


def grow_old(run: Run) -> None:
    """A minute passes in which the holder of the lease gives no sign; where there is time for it, a real one."""
    (lease,) = run.directory.path.glob("lease-*")
    if not WHOLE:
        old = time.time() - STALE - 1
        os.utime(lease, (old, old))


@pytest.mark.timeout(900)
def test_a_node_that_was_away_comes_back_and_writes_nothing(tmp_path: Path, made: list[Two]) -> None:
    """A node that stood still until its lease was another's finds the run taken: its supervisor exits 69, and what is
    sealed, who has the run, and what the other node recorded stay as they were, to the byte."""
    two = Two(tmp_path / "two", prefix=NO_FLOCK)
    made.append(two)
    first = two.one.boot(two.run)
    two.sealed(1, 2)
    two.run.until_status(lambda status: str(status["exclusion"]).startswith("lease"), "a lease")
    two.one.freeze()
    grow_old(two.run)
    second = two.other.boot(two.run)
    two.sealed(2, 2)
    two.other.freeze()  # so that whatever changes from here on is the first one's doing
    before = tree(two.run.directory.path)
    two.one.thaw()
    assert first.wait() == ExitCode.BUSY, two.run.report()
    after = tree(two.run.directory.path)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    own = {"journal/0001-node-a.jsonl", "logs/attempt-0001.log", "metrics/attempt-0001.jsonl"}
    assert changed <= own, sorted(changed - own)
    two.other.thaw()
    two.complete(second)
    assert two.hosts() == ["node-a", "node-b"]
    told("nodes that came back", 1)


@pytest.mark.timeout(900)
def test_of_two_nodes_that_start_at_once_by_lease_one_has_the_run(tmp_path: Path, made: list[Two]) -> None:
    """Without flock, of two nodes that start in one moment one trains; the other waits as long as a lease lives, and
    exits 69 when it is still renewed."""
    for number in range(ROUNDS):
        two = Two(tmp_path / f"two-{number}", prefix=NO_FLOCK)
        made.append(two)
        both = [two.one.boot(two.run), two.other.boot(two.run)]
        two.sealed(1, 2)
        # its supervisor may say so after the first seals
        two.run.until(lambda both=both: any(map(_attached, both)), "a winner")  # type: ignore[misc]
        winner, loser = sorted(both, key=_attached, reverse=True)
        loser.until(lambda loser=loser: "waiting" in loser.output, "the other one to wait")  # type: ignore[misc]
        if WHOLE and number == 0:
            assert loser.wait(STALE + PATIENCE) == ExitCode.BUSY, two.run.report()
        assert len(two.run.records(journal.SUPERVISOR_STARTED)) == 1, two.run.report()
        (two.one if loser is both[0] else two.other).cut()
        two.complete(winner)
        assert len(two.hosts()) == 1
    told("starts of two nodes at once, by lease", ROUNDS)


def _attached(supervisor: Supervisor) -> bool:
    return "attempt 1 attached" in supervisor.output


# flock, granted by each node to itself
OWN_LOCKS = 'for f in lock alive; do mount --bind "$PWD/$f-of-{node}" "$PWD/run/$f"; done'


@pytest.mark.timeout(900)
def test_of_two_nodes_whose_locks_do_not_meet_one_goes_on(tmp_path: Path, made: list[Two]) -> None:
    """Where each node has a lock of its own, of two that start at nearly one moment the later claim has the run; the
    other seals nothing after it, ends with 69, and claims nothing back."""
    instants = chance("partition")
    for number in range(ROUNDS):
        two = Two(tmp_path / f"apart-{number}", setup=OWN_LOCKS)
        made.append(two)
        _locks_apart(two)
        both = [two.one.boot(two.run)]
        if number % 2:
            time.sleep(instants.uniform(0.0, 1.0))  # an instant of its own, nothing is waited for
        both.append(two.other.boot(two.run))
        two.run.until(lambda both=both: not all(one.running() for one in both), "one to give way")  # type: ignore[misc]
        winner, loser = sorted(both, key=lambda one: not one.running())
        assert loser.wait() == ExitCode.BUSY, two.run.report()
        claims = sorted(path.name for path in two.run.directory.checkpoints.glob(".writing-*"))
        two.sealed(int(claims[-1].rpartition("-")[2]))
        two.complete(winner)
        assert len(claims) == 1
    told("starts of two nodes whose locks do not meet", ROUNDS)


def _locks_apart(two: Two) -> None:
    run = two.run.directory.path
    run.mkdir()
    for name in ("lock", "alive"):
        (run / name).touch()
        for node in (two.one, two.other):
            (run.parent / f"{name}-of-{node.name}").touch()
