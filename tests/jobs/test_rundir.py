"""Properties of the run directory, its requests, and what is known of the file system under it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from outlast_jobs import filesystem
from outlast_jobs.errors import Incomplete, IntegrityError, Malformed, UnknownSchema
from outlast_jobs.filesystem import filesystem_kind
from outlast_jobs.requests import read_requests, remove_request, write_request
from outlast_jobs.rundir import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.create()
    return made


def _generation(run: RunDirectory, name: str, run_id: str) -> None:
    folder = run.checkpoints / name
    folder.mkdir()
    (folder / "index.json").write_text(json.dumps({"schema": "outlast.generation/1", "run_id": run_id}))


def test_run_json_is_written_once(run: RunDirectory) -> None:
    """Creating a run a second time keeps its id, and not a byte of run.json changes."""
    before = (run.run_json.read_bytes(), run.run_json.stat())
    again = run.create()
    assert again.note is None
    assert again.run == run.read_run()
    assert (run.run_json.read_bytes(), run.run_json.stat().st_ino) == (before[0], before[1].st_ino)
    assert [name for name in os.listdir(run.path) if name.startswith(".tmp-")] == []


def test_nothing_in_run_json_is_a_path(run: RunDirectory) -> None:
    """A run that is moved is the same run: run.json holds id, time, host and schema, and no path."""
    assert set(json.loads(run.run_json.read_text())) == {"schema", "run_id", "began", "host"}
    moved = run.path.with_name("elsewhere")
    run.path.rename(moved)
    assert RunDirectory(moved).create().note is None


def test_on_a_full_disk_the_status_is_told_all_the_same(tmp_path: Path) -> None:
    """That it is full is what has to be told; nothing is written through a link in its place."""
    run, other = RunDirectory(tmp_path / "run"), tmp_path / "other"
    run.path.mkdir()
    told = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(run.path)])
    if told.returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        run.create()
        run.write_status({"unprotected": None, "longer": "x" * 99})
        with contextlib.suppress(OSError), open(run.path / "junk", "wb") as junk:
            junk.write(bytes(1 << 20))
        run.write_status({"unprotected": "No space left on device"})
        assert (run.read_status() or {})["unprotected"] == "No space left on device"
        assert [name for name in os.listdir(run.path) if name.startswith(".tmp-")] == []
        kept = run.path / "kept"
        os.link(run.status_json, kept)
        run.write_status({"unprotected": None})
        assert b"No space left" in kept.read_bytes(), "it is somebody's file, under another name"
        run.status_json.unlink()
        other.write_text("precious")
        run.status_json.symlink_to(other)
        with contextlib.suppress(OSError):
            run.write_status({"unprotected": None})
        assert other.read_text() == "precious"
    finally:
        subprocess.run(["umount", "--lazy", str(run.path)], check=True)


@pytest.mark.parametrize("content", [b"", b"\0" * 90, b'{"schema": "outlast.run/1"', b"[]", b'{"a": {}}'])
def test_a_damaged_run_json_is_made_anew_from_generations(run: RunDirectory, content: bytes) -> None:
    """An emptied, zeroed or torn run.json costs nothing: the generations name the run, and a note says so."""
    run_id = run.read_run().run_id
    _generation(run, "step-000000100.a0001", run_id)
    _generation(run, "step-000000200.a0002.corrupt-1", run_id)
    run.run_json.write_bytes(content)
    if content == b'{"a": {}}':  # readable, of a format of its own: not ours to replace
        with pytest.raises(UnknownSchema):
            run.create()
        return
    created = run.create()
    assert created.run.run_id == run_id
    assert created.note is not None
    assert "run.json" in created.note
    assert [p.read_bytes() for p in run.path.glob("run.json.damaged-*")] == [content]
    assert run.create().note is None


def test_a_lost_run_json_is_made_anew_from_generations(run: RunDirectory) -> None:
    """A run.json that is gone gives no second id to a run that has generations."""
    run_id = run.read_run().run_id
    _generation(run, "step-000000100.a0001", run_id)
    run.run_json.unlink()
    created = run.create()
    assert created.run.run_id == run_id
    assert created.note is not None


@pytest.mark.parametrize("ids", [["b" * 32, "c" * 32], ["../x"]])
def test_no_new_id_where_generations_cannot_say_it(run: RunDirectory, ids: list[str]) -> None:
    """Where generations exist and do not agree on an id, the run is refused, not begun from zero."""
    for step, run_id in enumerate(ids):
        _generation(run, f"step-00000000{step}.a0001", run_id)
    run.run_json.unlink()
    with pytest.raises(Incomplete):
        run.create()
    run.run_json.write_bytes(b"")
    with pytest.raises(IntegrityError):
        run.create()


def test_a_run_json_that_is_a_link_is_not_followed(run: RunDirectory, tmp_path: Path) -> None:
    """A symbolic link in the place of run.json is damage, and its target is neither read nor written."""
    target = tmp_path / "target.json"
    run.run_json.rename(target)
    before = target.read_bytes()
    run.run_json.symlink_to(target)
    with pytest.raises(IntegrityError):
        run.read_run()
    assert run.create().note is not None
    assert target.read_bytes() == before


def test_the_highest_attempt_is_found_wherever_it_left_a_trace(run: RunDirectory) -> None:
    """Logs, metrics, generations, ones set aside and half-written ones all count; other names do not."""
    assert run.highest_attempt() == 0
    run.attempt_log(3).touch()
    assert run.highest_attempt() == 3
    (run.checkpoints / "step-000000500.a0007.corrupt-2").mkdir()
    assert run.highest_attempt() == 7
    (run.checkpoints / "step-000000500.a0008.final").mkdir()
    assert run.highest_attempt() == 8
    (run.checkpoints / ".writing-0012").mkdir()
    assert run.highest_attempt() == 12
    run.attempt_metrics(10013).touch()
    assert run.highest_attempt() == 10013
    for name in ("step-1.a99999x", "attempt-99999.log.gz", ".trash-step-1.a99999-ab"):
        (run.checkpoints / name).touch()
        (run.logs / name).touch()
    assert run.highest_attempt() == 10013
    assert RunDirectory(run.path / "none").highest_attempt() == 0


def test_the_sweep_takes_leftovers_only(run: RunDirectory, tmp_path: Path) -> None:
    """Trash and old temporary files go; young ones and all else stay; links are not followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    trash = run.checkpoints / ".trash-step-1.a0001-ab"
    trash.mkdir()
    (trash / "link").symlink_to(outside)
    (run.checkpoints / ".trash-link").symlink_to(outside)
    old, young = run.path / ".tmp-old", run.requests / ".tmp-young"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    kept = run.checkpoints / "step-000000100.a0001"
    kept.mkdir()
    assert run.sweep() == []
    assert not trash.exists()
    assert not old.exists()
    assert os.listdir(run.checkpoints) == [kept.name]
    assert young.exists()
    assert (outside / "kept").exists()


def test_status_is_replaced_whole_and_never_an_error(run: RunDirectory) -> None:
    """What was written is read back; a missing, torn or foreign snapshot is None."""
    assert run.read_status() is None
    run.write_status({"as_of": 1.5, "step": 7})
    assert run.read_status() == {"schema": "outlast.status/1", "as_of": 1.5, "step": 7}
    for content in (b"", b'{"schema": "outlast.status/1", "as', b'{"schema": "other/1"}', b"[" * 100_000):
        run.status_json.write_bytes(content)
        assert run.read_status() is None


def test_requests_are_read_in_the_order_they_were_made(run: RunDirectory) -> None:
    """Every request is read once with all it said, oldest first, until it is removed."""
    ids = [write_request(run, verb, {"n": n}, "me@here") for n, verb in enumerate(["save", "stop", "pin"])]
    found = read_requests(run)
    assert sorted(request.id for request in found) == sorted(ids)
    assert [request.id for request in found] == sorted(ids)
    assert {(r.verb, r.by, r.args["n"]) for r in found} == {
        ("save", "me@here", 0),
        ("stop", "me@here", 1),
        ("pin", "me@here", 2),
    }
    for request_id in [*ids, ids[0]]:
        remove_request(run, request_id)
    assert read_requests(run) == []


def test_what_is_no_request_harms_nothing(run: RunDirectory, tmp_path: Path) -> None:
    """Hostile, torn, large and foreign files in requests/ are passed over; good ones count."""
    good = write_request(run, "save", {}, "me")
    text = (run.requests / f"{good}.json").read_bytes()
    ident = "1700000000000000-00000000000{}"
    bad = {
        ident.format("1"): b"",
        ident.format("2"): b"[" * 60_000,
        ident.format("3"): b'{"schema": "outlast.request/9"}',
        ident.format("4"): text,  # says another id than its name
        ident.format("5"): b" " * 70_000,
        ident.format("6"): json.dumps({"schema": "outlast.request/1", "id": ident.format("6")}).encode(),
    }
    for name, content in bad.items():
        (run.requests / f"{name}.json").write_bytes(content)
    (run.requests / f"{ident.format('7')}.json").symlink_to("/etc/hostname")
    os.mkfifo(run.requests / f"{ident.format('8')}.json")
    (run.requests / "notes.txt").touch()
    (run.requests / ".tmp-half").touch()
    found = read_requests(run)
    assert [request.id for request in found] == [good]


@pytest.mark.parametrize("name", ["../run", "x", "1700000000000000-00000000000g", ""])
def test_only_the_id_of_a_request_is_removed(run: RunDirectory, name: str) -> None:
    """An id that could name another file is refused."""
    with pytest.raises(ValueError, match="not the id"):
        remove_request(run, name)
    with pytest.raises(ValueError, match="verb"):
        write_request(run, f"/{name}", {}, "me")


_MOUNTS = """\
22 1 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:40 / /home rw shared:1 master:2 - nfs4 server:/home rw
29 28 0:41 / /home/a\\040b rw - fuse.sshfs host:/x rw
30 27 0:42 / /scratch rw - lustre mds:/s rw
31 27 0:43 / /win rw - fuseblk /dev/sdb1 rw
32 27 0:44 / /odd rw - neverheardof dev rw
33 27 0:45 / /twice rw - nfs server:/t rw
34 33 0:46 / /twice rw - xfs /dev/sdc rw
torn line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp/x", ("ext4", False, True)),
        ("/homes/x", ("ext4", False, True)),
        ("/home/me/run", ("nfs4", True, False)),
        ("/home/a b/run", ("fuse.sshfs", True, False)),
        ("/scratch/run", ("lustre", True, False)),
        ("/win/run", ("fuseblk", False, False)),
        ("/odd/run", ("neverheardof", True, False)),
        ("/twice/run", ("xfs", False, True)),
    ],
)
def test_locks_are_trusted_where_one_kernel_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, expected: tuple[str, bool, bool]
) -> None:
    """The innermost and latest mount decides; network and unknown file systems are doubted."""
    table = tmp_path / "mountinfo"
    table.write_text(_MOUNTS)
    monkeypatch.setattr(filesystem, "_MOUNTS", table)
    found = filesystem_kind(Path(path))
    assert (found.type, found.network, found.trusted_locks) == expected


def test_an_unreadable_mount_table_means_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel does not say what a path lies on, its locks are not trusted."""
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "none")
    assert not filesystem_kind(tmp_path).trusted_locks


def test_a_bad_run_json_is_named(run: RunDirectory) -> None:
    """Each way in which run.json can be wrong is an error that quotes the file."""
    good = json.loads(run.run_json.read_text())
    for change in ({"run_id": "x"}, {"run_id": 5}, {"began": "now"}):
        run.run_json.write_bytes(msgspec.json.encode({**good, **change}))
        with pytest.raises(Malformed, match=r"run\.json"):
            run.read_run()
