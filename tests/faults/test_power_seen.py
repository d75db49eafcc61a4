"""The tests of lost power are themselves tested: one sync left out, and they see it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.faults.disk import Disk
from tests.faults.saving import Cut, Saving
from tests.realparts import needs

from outlast_jobs.generation import INDEX, INDEX_DIGEST, GenerationName, Index, writing_folder
from outlast_jobs.journal import JournalWriter, read_journal
from outlast_jobs.look import Verdict, look
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sealer import Sealer

pytestmark = needs("loopback disks", "namespaces")

FILES = {"meta.pt": b"m" * 3000, "model.shard-000.pt": b"s" * 9000}


FSYNC = os.fsync


class Syncs:
    """`os.fsync`, which counts its calls, notes what they are about, and leaves one of them out."""

    def __init__(self, left_out: int | None = None) -> None:
        self.seen: list[str] = []
        self._left_out = left_out

    def __call__(self, fd: int) -> None:
        self.seen.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        if len(self.seen) - 1 != self._left_out:
            FSYNC(fd)


@pytest.fixture
def run(disk: Disk) -> RunDirectory:
    made = RunDirectory(disk.path / "run")
    made.create()
    return made


def save(run: RunDirectory, step: int) -> Path:
    """One save, as any attempt does it; it is acknowledged when this returns."""
    writing_folder(run.checkpoints, 1).mkdir(exist_ok=True)
    sealer = Sealer(run.checkpoints, 1, GenerationName(step, 1))
    sealer.begin()
    for name, content in FILES.items():
        sealer.add(name, content)
    return sealer.seal(Index(run_id=run.read_run().run_id, attempt=1, step=step, healthy=True))


def test_a_save_without_one_of_its_syncs_is_seen(
    disk: Disk, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all its syncs a save that was acknowledged is whole after a cut; without that of a file it is corrupt,
    and without that of the checkpoints folder it is gone."""
    syncs = Syncs()
    monkeypatch.setattr(os, "fsync", syncs)
    kept = save(run, 1)
    disk.cut()
    disk.back()
    assert look(kept, None, full=True).verdict is Verdict.VERIFIED
    folder = kept.name
    assert syncs.seen == [*FILES, INDEX, INDEX_DIGEST, folder, "checkpoints"]

    found = {}
    for number, what in enumerate(syncs.seen):
        monkeypatch.setattr(os, "fsync", Syncs(left_out=number))
        path = save(run, number + 2)
        disk.cut()
        disk.back()
        found["the folder" if what == folder else what] = look(path, None, full=True).verdict
        assert look(kept, None, full=True).verdict is Verdict.VERIFIED
    # a file that was synced in it takes the folder along on these file systems, which POSIX does not promise
    assert found.pop("the folder") is Verdict.VERIFIED
    assert found.pop("checkpoints") is Verdict.INCOMPLETE, "a folder that is not there"
    assert set(found) == {*FILES, INDEX, INDEX_DIGEST}
    assert set(found.values()) == {Verdict.CORRUPT}, found


@pytest.mark.parametrize("synced", [True, False])
def test_a_journal_without_its_sync_is_seen(
    disk: Disk, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    """A record whose write returned is there after a cut; without its sync it is not."""
    writer = JournalWriter.open(run)
    writer.write([writer.append("supervisor_started")])
    if not synced:
        monkeypatch.setattr(os, "fsync", lambda fd: None)
    writer.write([writer.append("sealed")])
    disk.cut()
    writer.close()
    disk.back()
    found = read_journal(run)
    assert not found.damage
    assert [r.event for r in found.records] == ["supervisor_started", "sealed"][: 1 + synced]


def test_a_worker_that_leaves_its_files_to_the_system_is_seen(tmp_path: Path, disk: Disk) -> None:
    """The campaign itself, with a worker that does not sync its files, and the cut right after its second seal: it
    finds generations that are acknowledged and empty."""
    saving = Saving(tmp_path, disk, "--without-fsync")
    try:
        saving.cut_when("sealed 2")
        with pytest.raises(Cut, match=r"step-\d+\.a0001 is corrupt"):
            saving.hold()
    finally:
        saving.run.close()


def test_a_deletion_that_the_cut_overtakes_is_no_loss(tmp_path: Path, disk: Disk) -> None:
    """What is dropped between the word that the power goes and the cut was not lost. A generation of the last ones
    that is gone was, also where somebody says that it was to be deleted."""
    saving = Saving(tmp_path, disk)

    def deletions() -> int:
        return saving.told_in.read_text().count('"discarded"') if saving.told_in.exists() else 0

    try:
        supervisor = saving.start()
        supervisor.until(lambda: deletions() > 0, "a deletion")

        def further() -> None:
            enough = deletions() + 3  # the first of them has been synced when the third begins
            supervisor.until(lambda: deletions() >= enough, "deletions after the word")

        saving.cut(further)
        saving.hold()
        newest = saving.run.findings()[0].path
        shutil.rmtree(newest)
        with saving.told_in.open("a") as told:
            told.write(json.dumps({"kind": "sealed", "name": newest.name}) + "\n")
        with pytest.raises(Cut, match="acknowledged, and not there"):
            saving.hold()
        with saving.told_in.open("a") as told:
            told.write(json.dumps({"kind": "discarded", "name": newest.name}) + "\n")
        with pytest.raises(Cut, match="deleted before that was on record"):
            saving.hold()
        writer = JournalWriter.open(saving.run.directory)
        writer.write([writer.append("dropped", {"generation": newest.name, "reason": "none"})])
        writer.close()
        with pytest.raises(Cut, match="deleted, and one of the last 3"):
            saving.hold()
    finally:
        saving.run.close()
