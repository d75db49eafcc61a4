"""The seal: killed or failing at any point, nothing half-written has a generation's name."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.jobs.generations import FILES, RUN, index, seal, verdict

from outlast_jobs import durable
from outlast_jobs.claim import claim
from outlast_jobs.errors import AlreadySealed, Fenced, UnsafeName
from outlast_jobs.generation import (
    INDEX,
    INDEX_DIGEST,
    GenerationName,
    writing_folder,
)
from outlast_jobs.sealer import Sealer
from outlast_jobs.verify import Verdict, scan


def test_a_sealed_generation_verifies(tmp_path: Path) -> None:
    """After a seal the folder holds the files, the index and its digest, and sha256sum agrees with us."""
    claim(tmp_path, 7)
    told: list[int] = []
    path = seal(tmp_path, index(500, 7), told.append)
    assert path == tmp_path / "step-000000500.a0007"
    assert sorted(os.listdir(path)) == sorted([*FILES, INDEX, INDEX_DIGEST])
    assert verdict(path) is Verdict.VERIFIED
    assert told == sorted(told)
    assert told[-1] == sum(entry.stat().st_size for entry in path.iterdir())
    assert os.listdir(writing_folder(tmp_path, 7)) == []
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--strict", "--status", INDEX_DIGEST], cwd=path, check=True)


SAVE_SCRIPT = """
import sys
from pathlib import Path
from outlast_jobs.claim import claim
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.sealer import Sealer
checkpoints = Path(sys.argv[1])
claim(checkpoints, 7)
sealer = Sealer(checkpoints, 7, GenerationName(500, 7))
sealer.begin()
sealer.add("meta.pt", b"m" * 1000)
sealer.add("model.shard-000.pt", [b"s" * 5000, b"t" * 5000])
sealer.seal(Index(run_id="r", attempt=7, step=500, healthy=True))
"""


def test_the_order_of_a_seal_as_the_kernel_sees_it(tmp_path: Path) -> None:
    """Each file is written, then synced; then index, digest, folder; then the rename; then the parent."""
    trace = tmp_path / "trace"
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    command = ["strace", "-f", "-y", "-s", "0", "-o", str(trace)]
    command += ["-e", "trace=write,writev,pwrite64,fsync,fdatasync,rename,renameat,renameat2"]
    try:
        subprocess.run(
            [*command, sys.executable, "-c", SAVE_SCRIPT, str(checkpoints)], check=True, capture_output=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        if isinstance(error, subprocess.CalledProcessError) and b"PTRACE" not in error.stderr:
            raise
        pytest.skip("strace can't trace here")
    folder = f"{checkpoints}/.writing-0007/step-000000500.a0007"
    seen: list[str] = []
    for line in trace.read_text().splitlines():
        call = re.match(r"\d+\s+(\w+)\((?:\d+<([^>]*)>)?", line)
        if call is None or str(checkpoints) not in line or line.endswith("<unfinished ...>"):
            continue
        what = call[1] if call[1].startswith("rename") else f"{call[1]} {Path(call[2]).name}"
        if not seen or seen[-1] != what:
            seen.append(what)
        if call[1].startswith("rename"):
            assert folder in line, line
    assert seen == [
        "fsync checkpoints",  # the claim
        "write meta.pt",
        "fsync meta.pt",
        "write model.shard-000.pt",
        "fsync model.shard-000.pt",
        "write index.json",
        "fsync index.json",
        "write index.json.sha256",
        "fsync index.json.sha256",
        "fsync step-000000500.a0007",
        "renameat2",
        "fsync checkpoints",
    ]


KILL_SCRIPT = """
import os, signal, sys
from pathlib import Path
checkpoints = Path(sys.argv[1])
import outlast_jobs.durable as durable
from outlast_jobs.claim import claim
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.sealer import Sealer

left = 0
def deadly(call):
    def wrapped(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            if call is write:
                call(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return wrapped

write = os.write
for owner, name in [(os, "open"), (os, "write"), (os, "fsync"), (os, "fstat"), (os, "mkdir"), (os, "rename"),
                    (os, "close"), (durable, "rename_to_free_name")]:
    setattr(owner, name, deadly(getattr(owner, name)))

for number in range(2, 200):
    left = 0
    child = os.fork()
    if child == 0:
        left = number - 1
        claim(checkpoints, number)
        sealer = Sealer(checkpoints, number, GenerationName(500, number))
        sealer.begin()
        for member in ("meta.pt", "model.shard-000.pt"):
            sealer.add(member, b"x" * 1000)
        sealer.seal(Index(run_id=sys.argv[2], attempt=number, step=500, healthy=True))
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(number)
        break
"""


def test_a_kill_at_any_call_leaves_only_whole_generations(tmp_path: Path) -> None:
    """Killed before each system call of a claim and save in turn, every published name verifies."""
    claim(tmp_path, 1)
    seal(tmp_path, index(500, 1))
    done = subprocess.run(
        [sys.executable, "-c", KILL_SCRIPT, str(tmp_path), RUN], check=True, capture_output=True, text=True
    )
    last = int(done.stdout)
    assert last > 30  # that many calls were each cut
    published = scan(tmp_path)
    assert {verdict(path) for path in published} == {Verdict.VERIFIED}
    attempts = [name.attempt for path in published if (name := GenerationName.parse(path.name))]
    assert attempts[0] == last
    assert 1 in attempts
    assert 2 not in attempts
    assert [name for name in os.listdir(tmp_path) if name.startswith(".writing")] == [f".writing-{last:04d}"]


def test_a_kill_at_any_byte_leaves_only_whole_generations(tmp_path: Path) -> None:
    """Killed after any number of bytes of a save, nothing has the new name and the old one verifies."""
    claim(tmp_path, 1)
    old = seal(tmp_path, index(100, 1))
    total = sum(map(len, FILES.values()))
    for attempt, offset in enumerate(range(0, total, total // 10), start=2):
        child = os.fork()
        if child == 0:

            def die(written: int, at: int = offset) -> None:
                if written >= at:
                    os.kill(os.getpid(), signal.SIGKILL)

            try:
                durable._PIECE = 100
                claim(tmp_path, attempt)
                seal(tmp_path, index(200, attempt), die)
            finally:
                os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert scan(tmp_path) == [old]
    assert verdict(old) is Verdict.VERIFIED
    claim(tmp_path, 99)
    assert verdict(seal(tmp_path, index(200, 99))) is Verdict.VERIFIED


def test_a_sealed_generation_is_never_overwritten(tmp_path: Path) -> None:
    """A second seal of the same name is refused, at its begin and at its end, and the first one stays."""
    claim(tmp_path, 7)
    early, late = (Sealer(tmp_path, 7, GenerationName(5, 7)) for _ in range(2))
    late.begin()
    late.add("other.pt", b"other")
    away = late.folder.rename(tmp_path / "away")
    path = seal(tmp_path, index(5, 7))
    away.rename(late.folder)
    with pytest.raises(AlreadySealed, match=r"step-000000005\.a0007' is sealed already"):
        early.begin()
    with pytest.raises(AlreadySealed):
        late.seal(index(5, 7))
    assert verdict(path) is Verdict.VERIFIED
    assert "other.pt" not in os.listdir(path)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EIO, errno.ESTALE])
def test_a_rename_that_was_done_but_reported_failed_is_a_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Over NFS a repeated request finds its work done and says so as an error: our own index tells."""
    claim(tmp_path, 7)
    real = durable.rename_to_free_name

    def repeated(source: Path, target: Path) -> None:
        real(source, target)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(durable, "rename_to_free_name", repeated)
    assert verdict(seal(tmp_path, index(5, 7))) is Verdict.VERIFIED


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_rename_that_failed_is_the_systems_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Where nothing was renamed, the error stays what it was; after an abort no byte is left."""
    claim(tmp_path, 7)

    def fail(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    sealer = Sealer(tmp_path, 7, GenerationName(5, 7))
    sealer.begin()
    sealer.add("meta.pt", b"m")
    with monkeypatch.context() as patch:
        patch.setattr(durable, "rename_to_free_name", fail)
        with pytest.raises(OSError) as caught:
            sealer.seal(index(5, 7))
    assert caught.value.errno == code
    sealer.abort()
    sealer.abort()
    assert os.listdir(tmp_path / ".writing-0007") == []
    assert verdict(seal(tmp_path, index(5, 7))) is Verdict.VERIFIED


def test_a_failed_fsync_of_the_parent_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a lost write once; a second fsync would say that all is well."""
    claim(tmp_path, 7)
    calls: list[Path] = []
    real = durable.fsync_dir

    def fail(path: Path) -> None:
        calls.append(path)
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    monkeypatch.setattr(durable, "fsync_dir", fail)
    with pytest.raises(OSError, match="Input/output"):
        seal(tmp_path, index(5, 7))
    assert calls.count(tmp_path) == 1


def test_a_save_that_failed_before_does_not_block_the_next(tmp_path: Path) -> None:
    """What an earlier save of the same step left behind is removed, and no link in it is followed."""
    claim(tmp_path, 7)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").touch()
    left = Sealer(tmp_path, 7, GenerationName(5, 7)).begin()
    (left / "old.pt").write_bytes(b"old")
    (left / "link").symlink_to(tmp_path / "outside")
    path = seal(tmp_path, index(5, 7))
    assert sorted(os.listdir(path)) == sorted([*FILES, INDEX, INDEX_DIGEST])
    assert (tmp_path / "outside" / "f").exists()


def test_nothing_is_written_through_a_link_in_the_place_of_our_folder(tmp_path: Path) -> None:
    """A folder of writing that became a link leads elsewhere: the save is over before it makes anything there."""
    checkpoints, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    checkpoints.mkdir()
    elsewhere.mkdir()
    claim(checkpoints, 7)
    (checkpoints / ".writing-0007").rmdir()
    (checkpoints / ".writing-0007").symlink_to(elsewhere)
    with pytest.raises(Fenced, match="symbolic link"):
        Sealer(checkpoints, 7, GenerationName(5, 7)).begin()
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_a_folder_that_is_gone_by_any_word_for_it_was_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A network file system says of a folder that a newer attempt took away that its handle is stale."""

    def gone(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    claim(tmp_path, 7)
    sealer = Sealer(tmp_path, 7, GenerationName(5, 7))
    sealer.begin()
    monkeypatch.setattr(durable, "write_file", gone)
    with pytest.raises(Fenced, match="taken away by a newer attempt"):
        sealer.add("meta.pt", b"m")


def test_the_index_and_the_name_must_agree(tmp_path: Path) -> None:
    """A seal whose index is of another step or attempt is refused before anything is published."""
    with pytest.raises(ValueError, match="another attempt's"):
        Sealer(tmp_path, 7, GenerationName(5, 6))
    claim(tmp_path, 7)
    sealer = Sealer(tmp_path, 7, GenerationName(5, 7))
    sealer.begin()
    sealer.add("meta.pt", b"m")
    for wrong in (index(6, 7), index(5, 8)):
        with pytest.raises(ValueError, match="the index says step"):
            sealer.seal(wrong)
    with pytest.raises(UnsafeName):
        sealer.add("../x", b"m")
    assert scan(tmp_path) == []
