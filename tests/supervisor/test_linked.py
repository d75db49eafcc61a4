"""Generations that share files: what was verified stays so, what is bad is bad in each, and retention goes on."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from outlast_jobs import durable, verify
from outlast_jobs.claim import claim
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.hardlink import Stamp
from outlast_jobs.jobfile import job_from_command
from outlast_jobs.jobfile_model import Keep
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sealer import Sealer
from outlast_supervisor.chores import Desk, prune, set_aside, verified

JOB = job_from_command(["true"], None, Path("/"))
BIG = b"frozen" * 10_000


class Folder:
    """A run whose generations share every other one's large file."""

    def __init__(self, path: Path) -> None:
        run = RunDirectory(path)
        path.mkdir()
        self.records: list[str] = []
        self.desk = Desk(run, run.create().run.run_id, lambda event, data: self.records.append(event))
        claim(run.checkpoints, 1)
        self.desk.claimed = self.desk.claiming = 1
        self.names: list[str] = []

    def seal(self) -> str:
        step = len(self.names) + 1
        checkpoints = self.desk.run.checkpoints
        sealer = Sealer(checkpoints, 1, GenerationName(step, 1))
        sealer.begin()
        sealer.add("meta.pt", str(step).encode())
        if step > 2:
            source = checkpoints / self.names[-2]
            index = verify.look(source, None, full=False).index
            assert index is not None
            sealer.link("big.pt", source, index.files["big.pt"], Stamp.of(os.stat(source / "big.pt")))
        else:
            sealer.add("big.pt", BIG)
        path = sealer.seal(Index(run_id=self.desk.run_id, attempt=1, step=step, healthy=True))
        self.names.append(path.name)
        return path.name

    def verify(self, name: str) -> bool:
        return verified(self.desk, name, lambda: False) is not None

    def known(self, name: str) -> bool:
        """Whether it need not be read again."""
        path = self.desk.run.checkpoints / name
        remembered = self.desk.remembered.get(name)
        return remembered is not None and verify.look(path, None, full=False, remembered=remembered).full

    def inode(self, name: str) -> int:
        return (self.desk.run.checkpoints / name / "big.pt").stat().st_ino

    def left(self) -> list[str]:
        return sorted(path.name for path in verify.scan(self.desk.run.checkpoints))


@pytest.fixture
def run(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


def test_what_was_verified_need_not_be_read_again_for_a_link(run: Folder) -> None:
    """A link changes the ctime of what it shares; the read-back of the one says that of the other as well."""
    one, two = run.seal(), run.seal()
    assert run.verify(one)
    assert run.verify(two)
    three = run.seal()
    assert not run.known(one)
    assert run.verify(three)
    assert all(run.known(name) for name in (one, two, three))
    assert run.records.count("verified") == 4  # so that the next life knows it too


def test_a_change_beside_a_link_is_not_passed_over(run: Folder) -> None:
    """What was touched in the older one is not taken to be verified with the newer."""
    one, two = run.seal(), run.seal()
    assert run.verify(one)
    assert run.verify(two)
    (run.desk.run.checkpoints / one / "meta.pt").write_bytes(b"1")  # the same again, but who knows
    assert run.verify(run.seal())
    assert not run.known(one)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_retention_goes_on_and_two_copies_are_left(run: Folder, last: int) -> None:
    """So many are kept as without links, all known to be whole after deletions too, and two of them share no file."""
    job = msgspec.structs.replace(JOB, keep=Keep(last=last))
    for count in range(1, 9):
        if last == 1 and count > 2:
            break  # nothing is left to link from but the newest, which is never linked
        assert run.verify(run.seal())
        prune(run.desk, job, None)
        assert run.left() == run.names[-last:]
        assert all(run.known(name) for name in run.left())
        assert len({run.inode(name) for name in run.left()}) == min(last, 2, count)


@pytest.mark.parametrize("member", ["big.pt", "meta.pt"])
@pytest.mark.parametrize("during", [False, True])
def test_a_deletion_does_not_hide_a_change(
    run: Folder, monkeypatch: pytest.MonkeyPatch, during: bool, member: str
) -> None:
    """What was written to before or while another's name for it went is read again."""
    names = [run.seal() for _ in range(3)]
    for name in names:
        assert run.verify(name)
    empty = durable.empty_trash

    def touch() -> None:
        with (run.desk.run.checkpoints / names[2] / member).open("r+b") as file:
            file.write(b"x")

    def emptied(parent: Path) -> OSError | None:
        some = any(name.startswith(durable.TRASH) for name in os.listdir(parent))
        found = empty(parent)
        if some:
            touch()
        return found

    if during:
        monkeypatch.setattr(durable, "empty_trash", emptied)
    else:
        touch()
    prune(run.desk, msgspec.structs.replace(JOB, keep=Keep(last=1)), None)
    assert names[0] not in run.left()
    assert not run.known(names[2])


def test_what_is_bad_in_one_is_doubted_in_each(run: Folder) -> None:
    """A bit flips on the disk and no time tells of it: both that share the file are found bad, the third is whole."""
    names = [run.seal() for _ in range(3)]
    for name in names:
        assert run.verify(name)
    big = run.desk.run.checkpoints / names[2] / "big.pt"
    with big.open("r+b") as file:
        file.seek(100)
        file.write(bytes([BIG[100] ^ 1]))
    for name in (names[0], names[2]):  # as if the disk had done it: what is remembered still fits
        stats = verify.stats_of(big.parent.with_name(name), index_of(run, name))
        run.desk.remembered[name] = stats
    assert run.known(names[0])
    set_aside(run.desk, names[2], "big.pt has another sha256")
    assert not run.known(names[0])
    assert run.known(names[1])
    choice = verify.newest_usable(run.desk.run.checkpoints, None, run.desk.remembered)
    assert choice.chosen is not None
    assert choice.chosen.path.name == names[1]
    bad = verify.look(run.desk.run.checkpoints / names[0], None, full=True)
    assert bad.verdict is verify.Verdict.CORRUPT


def index_of(run: Folder, name: str) -> Index:
    found = verify.look(run.desk.run.checkpoints / name, None, full=False).index
    assert found is not None
    return found
