"""The folder as it is read: half-written files, links, renames, and what is no job file, on a real disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import wait_until

from outlast_jobs.jobfile import Job, load_job
from outlast_supervisor.daemon.folder import Folder, Look, Lost
from outlast_supervisor.daemon.settle import GONE, SETTLE

JOB = "name: {0}\ncommand: [sleep, '1']\n"


class Looking:
    """A folder that is looked at as the daemon does, whenever it says that something is due."""

    def __init__(self, path: Path, known: tuple[str, ...] = ()) -> None:
        self.path = path
        self.ours: bool | None = True
        self.folder = Folder(path, lambda: self.ours, known)

    def write(self, name: str, text: str | None = None) -> Path:
        file = self.path / name
        file.write_text(JOB.format(name.partition(".")[0]) if text is None else text)
        return file

    def until(self, condition: Callable[[Look], object], what: str) -> Look:
        found: list[Look] = []

        def look() -> bool:
            found[:] = [self.folder.look()]
            return bool(condition(found[0]))

        wait_until(look, 30, what)
        return found[0]

    def settled(self) -> Look:
        """Look until nothing is due."""
        return self.until(lambda look: look.due is None, "a folder at rest")


@pytest.fixture
def looking(tmp_path: Path) -> Looking:
    return Looking(tmp_path)


def names(look: Look) -> list[str]:
    return [entry.file for entry in look.snapshot.entries if not entry.leaving]


def test_job_files_are_taken_and_nothing_else(looking: Looking, tmp_path: Path) -> None:
    """Files with the right ending, in the folder itself; no hidden ones, no folders, no other files."""
    for name in ("a.yaml", "b.yml", ".c.yaml", "d.yaml~", "e.txt", ".#f.yaml", "a.yaml.swp"):
        looking.write(name)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    looking.write("runs/x/job.yaml")
    (tmp_path / "g.yaml").mkdir()
    look = looking.settled()
    assert names(look) == ["a.yaml", "b.yml"]
    assert look.snapshot.broken == {}
    assert look.snapshot.entries[0].run_dir == os.path.realpath(tmp_path / "runs" / "a")


def test_what_is_still_being_written_is_not_read(looking: Looking) -> None:
    """A file whose first half is a whole job is taken only when it was left alone; until then it is pending."""
    file = looking.write("a.yaml")
    first = looking.folder.look()
    assert first.snapshot.pending == {"a.yaml"}
    until = time.monotonic() + 3 * SETTLE
    number = 0
    while time.monotonic() < until:
        number += 1
        with file.open("a") as half:
            half.write(f"# {number}\n")
        assert looking.folder.look().snapshot.entries == ()
    with file.open("a") as half:
        half.write("run_dir: elsewhere\n")
    (entry,) = looking.settled().snapshot.entries
    assert entry.run_dir.endswith("/elsewhere")


def test_a_wrong_file_leaves_the_old_job(looking: Looking) -> None:
    """Truncated or wrong, it is told why; the job stays as it was, and comes right with the file."""
    looking.write("a.yaml")
    before = looking.settled().snapshot.entries[0]
    for text in ("", "name: [", "name: a\ncommand: [x]\nkeeep: 1\n"):
        looking.write("a.yaml", text)
        look = looking.until(lambda look: look.snapshot.entries[0].bad, "a reason")
        assert look.snapshot.entries[0].version == before.version
        looking.write("a.yaml")
        after = looking.until(lambda look: not look.snapshot.entries[0].bad, "the right file")
        assert after.snapshot.entries[0].digest == before.digest
        assert after.snapshot.entries[0].version != before.version
        before = after.snapshot.entries[0]


def test_a_file_that_comes_back_was_never_gone(looking: Looking) -> None:
    """Removed and back within a moment, it is leaving and then as before; away for longer, it is removed."""
    file = looking.write("a.yaml")
    looking.settled()
    aside = file.rename(file.with_name("aside"))
    assert looking.folder.look().snapshot.entries[0].leaving
    aside.rename(file)
    assert not looking.settled().snapshot.entries[0].leaving
    begun = time.monotonic()
    file.unlink()
    looking.until(lambda look: not look.snapshot.entries, "a removal")
    assert time.monotonic() - begun >= GONE


def test_an_editor_that_replaces_the_file_changes_it(looking: Looking, tmp_path: Path) -> None:
    """A new file renamed over the old one is a change, also with the old time and the same length."""
    file = looking.write("a.yaml", JOB.format("a") + "keep: {last: 3}\n")
    before = looking.settled().snapshot.entries[0]
    other = looking.write(".a.new", JOB.format("a") + "keep: {last: 4}\n")
    os.utime(other, ns=(os.stat(file).st_atime_ns, os.stat(file).st_mtime_ns))
    other.rename(file)
    after = looking.until(lambda look: look.snapshot.entries[0].version != before.version, "the change")
    assert after.snapshot.entries[0].digest != before.digest


def test_a_link_stands_for_the_file_that_it_leads_to(looking: Looking, tmp_path: Path) -> None:
    """Relative paths begin where the file is; a change of it is seen; a link that leads nowhere is told."""
    home = tmp_path / "project"
    home.mkdir()
    target = home / "job.yaml"
    target.write_text(JOB.format("far"))
    (tmp_path / "a.yaml").symlink_to("project/job.yaml")
    (tmp_path / "b.yaml").symlink_to("nowhere")
    look = looking.until(lambda look: look.snapshot.entries, "the job")
    (entry,) = look.snapshot.entries
    assert os.path.realpath(target) in entry.command
    assert entry.run_dir == os.path.realpath(home / "runs" / "far")
    assert "No such file" in look.snapshot.broken["b.yaml"]
    target.write_text(JOB.format("far") + "sick: continue\n")
    looking.until(lambda look: look.snapshot.entries[0].version != entry.version, "the change")
    target.unlink()
    look = looking.until(lambda look: look.snapshot.entries[0].bad, "the reason")
    assert not look.snapshot.entries[0].leaving


def test_a_pipe_is_not_waited_for(looking: Looking, tmp_path: Path) -> None:
    """What is no regular file is refused at once, with the reason."""
    os.mkfifo(tmp_path / "a.yaml")
    assert "named pipe" in looking.settled().snapshot.broken["a.yaml"]


def test_a_folder_that_cannot_be_looked_at_changes_nothing(looking: Looking, tmp_path: Path) -> None:
    """Unmounted, it looks empty: everything stays, with the reason; another daemon's lock ends this one."""
    looking.write("a.yaml")
    looking.settled()
    hidden = tmp_path.rename(tmp_path.with_name("hidden"))
    assert names(looking.folder.look()) == ["a.yaml"]
    assert "stays as it is" in looking.folder.look().trouble
    tmp_path.mkdir()
    looking.ours = None
    until = time.monotonic() + 1.5 * GONE
    while time.monotonic() < until:
        look = looking.folder.look()
        assert names(look) == ["a.yaml"]
        assert ".outlast/lock" in look.trouble
    tmp_path.rmdir()
    hidden.rename(tmp_path)
    looking.ours = True
    assert names(looking.settled()) == ["a.yaml"]
    looking.ours = False
    with pytest.raises(Lost, match="another daemon"):
        looking.folder.look()


def test_a_known_file_that_is_missing_at_first_is_pending(tmp_path: Path) -> None:
    """The file of a job that runs already gets the time to come back that every file gets."""
    looking = Looking(tmp_path, known=("a.yaml",))
    assert looking.folder.look().snapshot.pending == {"a.yaml"}
    look = looking.until(lambda look: not look.snapshot.pending, "its removal")
    assert look.snapshot.entries == ()


def test_a_file_that_changes_while_it_is_read_is_read_again(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is only taken if the file is the same afterwards."""
    file = looking.write("a.yaml")
    read: list[Path] = []

    def slow(path: Path) -> Job:
        job = load_job(path)
        if not read:
            file.write_text(JOB.format("a") + "run_dir: elsewhere\n")
        read.append(path)
        return job

    monkeypatch.setattr("outlast_supervisor.daemon.folder.load_job", slow)
    torn = looking.until(lambda look: read, "it to be read")
    assert torn.due is not None, "what changed before the look has raised its event"
    look = looking.until(lambda look: look.snapshot.entries, "the job")
    assert look.snapshot.entries[0].run_dir.endswith("/elsewhere")
    assert len(read) == 2
