"""The copy of a state outlives its trainer: others make the same generation of it, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from tests.faults.mutations import damaged, twisted
from tests.faults.scale import chance, scaled
from tests.waiting import wait_until
from tests.worker.copies import RUN, copied, state_of, zoo

from outlast_jobs import buffer_state
from outlast_jobs.buffer_state import META_AT, NOTE_AT, State, sealed_size
from outlast_jobs.buffer_state import state_of as told
from outlast_jobs.claim import claim
from outlast_jobs.finisher import finish
from outlast_jobs.generation import decode_index
from outlast_jobs.look import Verdict, look
from outlast_worker.digest import first_difference
from outlast_worker.inherited import Inherited
from outlast_worker.restoring import read_generation


def test_others_make_the_same_files_of_it(tmp_path: Path) -> None:
    """Finished by the descriptor alone it is byte for byte what the trainer writes, verified, and loads the same."""
    state = state_of(model=zoo())
    mine = copied(tmp_path / "mine", state).seal()
    copy = copied(tmp_path / "theirs", state)
    found = finish(copy.buffer.fd, copy.checkpoints, RUN, 1)
    assert (found.why, found.generation, found.step, found.healthy) == ("", mine.name, 7, True)
    theirs = copy.checkpoints / found.generation
    assert look(theirs, RUN, full=True).verdict is Verdict.VERIFIED
    assert first_difference(state, read_generation(theirs).state) is None
    members = decode_index((theirs / "index.json").read_bytes()).files
    assert len(members) == 3
    for member in members:
        assert zipfile.ZipFile(theirs / member).testzip() is None
        if member != "meta.pt":
            assert _contents(theirs / member) == _contents(mine / member)
    assert found.bytes == sum(path.stat().st_size for path in theirs.iterdir())
    assert told(copy.buffer.fd) is State.SEALED
    again = finish(copy.buffer.fd, copy.checkpoints, RUN, 1)
    assert again.why, "what is sealed is not written again"


def _contents(path: Path) -> dict[str, bytes]:
    archive = zipfile.ZipFile(path)
    return {i.filename: archive.read(i) for i in archive.infolist() if "serialization_id" not in i.filename}


def test_what_the_trainer_writes_leaves_the_same_bytes_in_memory(tmp_path: Path) -> None:
    """After its own seal the buffer holds the files as they are on disk: all of it can be restored from memory."""
    copy = copied(tmp_path / "c", state_of(model=zoo()))
    path = copy.seal()
    copy.outliving.ended(sealed=True)
    inherited = _inherited(copy.buffer.fd)
    for member, entry in decode_index((path / "index.json").read_bytes()).files.items():
        file = inherited.find(path.name, member, entry.bytes)
        assert file is not None
        assert os.pread(copy.buffer.fd, entry.bytes, file.start) == (path / member).read_bytes()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
)
def test_a_sick_state_is_never_sealed_as_healthy(tmp_path: Path, dtype: torch.dtype) -> None:
    """A NaN in a part is found by who finishes the save, in any format; one elsewhere means nothing."""
    bad = torch.zeros(3000, dtype=dtype)
    bad[2999] = float("nan")
    state = state_of(model={"a": torch.rand(5000), "b": bad})
    copy = copied(tmp_path / "c", state)
    assert not finish(copy.buffer.fd, copy.checkpoints, RUN, 1).healthy
    other = state_of(model={"a": torch.rand(5000)}) | {"extra": {"b": bad}}
    copy = copied(tmp_path / "d", other)
    assert finish(copy.buffer.fd, copy.checkpoints, RUN, 1).healthy
    copy = copied(tmp_path / "e", other, healthy=False)
    assert not finish(copy.buffer.fd, copy.checkpoints, RUN, 1).healthy


def test_nothing_is_made_of_a_copy_that_is_not_known_to_be_right(tmp_path: Path) -> None:
    """Without the word of the training, after a save that failed, or for another attempt: nothing is written."""
    copy = copied(tmp_path / "c", state_of(model=zoo()))
    for state in (State.NONE, State.SEALED):
        copy.buffer.tell(state)
        assert finish(copy.buffer.fd, copy.checkpoints, RUN, 1).why
    copy.buffer.tell(State.COPIED)
    assert finish(copy.buffer.fd, copy.checkpoints, "b" * 32, 1).why
    assert finish(copy.buffer.fd, copy.checkpoints, RUN, 2).why
    claim(copy.checkpoints, 2)
    assert "taken away by a newer attempt" in finish(copy.buffer.fd, copy.checkpoints, RUN, 1).why
    assert [path.name for path in copy.checkpoints.iterdir()] == [".writing-0002"]


def test_a_copy_counts_once_it_is_noted_and_known_to_be_right(tmp_path: Path) -> None:
    """Whichever comes last sets the word; the next copy takes it back first; what failed never gets it."""
    copy = copied(tmp_path / "c", state_of(model={"a": torch.rand(9)}))
    outliving, fd = copy.outliving, copy.buffer.fd
    assert told(fd) is State.COPIED
    for first, last in ((outliving.right, outliving.note_down), (outliving.note_down, outliving.right)):
        outliving.__init__(7, copy.buffer, outliving._note)  # type: ignore[misc]
        assert told(fd) is State.NONE
        first()
        assert told(fd) is State.NONE
        last()
        assert told(fd) is State.COPIED
    outliving.ended(sealed=True)
    assert told(fd) is State.SEALED
    outliving.__init__(7, copy.buffer, outliving._note)  # type: ignore[misc]
    outliving.note_down()
    outliving.ended(sealed=False)
    outliving.right()
    assert told(fd) is State.NONE


def test_a_hostile_note_makes_nothing_but_an_answer(tmp_path: Path) -> None:
    """Whatever a worker writes into its note: it is named and passed over, or something whole is sealed."""
    copy = copied(tmp_path / "c", state_of(model={"a": torch.rand(9000), "b": torch.rand(50)}))
    header = buffer_state.HEADER
    length = header.unpack(bytes(copy.buffer.behind[: header.size]))[2]
    note = bytes(copy.buffer.behind[NOTE_AT : NOTE_AT + length])
    random = chance("buffer note")
    refused = 0
    for n in range(scaled(150, 5000)):
        data = (damaged, twisted)[n % 2](note, random)[: META_AT - NOTE_AT]
        copy.buffer.behind[NOTE_AT : NOTE_AT + len(data)] = data
        head = bytearray(buffer_state.header(len(data)))
        head[buffer_state.STATE_AT] = State.COPIED
        copy.buffer.behind[: len(head)] = bytes(head)
        found = finish(copy.buffer.fd, copy.checkpoints, RUN, 1)
        refused += bool(found.why)
        left = [path for path in copy.checkpoints.iterdir() if path.name != ".writing-0001"]
        assert all(look(path, RUN, full=True).verdict is Verdict.VERIFIED for path in left)
        assert not list((copy.checkpoints / ".writing-0001").iterdir())
        assert not [path for path in tmp_path.iterdir() if path.name != "c"]
        for path in left:
            for member in path.iterdir():
                member.unlink()
            path.rmdir()
    assert refused > 50


def test_a_note_as_large_as_may_be_is_refused_by_its_length(tmp_path: Path) -> None:
    """A header that promises more than is read is not believed."""
    copy = copied(tmp_path / "c", state_of(model={"a": torch.rand(9)}))
    copy.buffer.behind[:32] = buffer_state.header(1 << 60)
    copy.buffer.tell(State.COPIED)
    assert "bytes, more than" in finish(copy.buffer.fd, copy.checkpoints, RUN, 1).why


def test_a_restore_reads_memory_and_the_digests_of_the_disk_decide(tmp_path: Path) -> None:
    """What lies in memory is used though the disk is damaged; a changed byte in memory is found, and the disk used."""
    state = state_of(model=zoo())
    copy = copied(tmp_path / "c", state)
    path = copy.checkpoints / finish(copy.buffer.fd, copy.checkpoints, RUN, 1).generation
    shards = sorted(path.glob("*.shard-*.pt"))
    kept = shards[1].read_bytes()
    shards[1].write_bytes(bytes(len(kept)))
    inherited = _inherited(copy.buffer.fd)
    assert first_difference(state, read_generation(path, inherited=inherited).state) is None
    assert not inherited.refused
    shards[1].write_bytes(kept)
    file = inherited.find(path.name, shards[0].name, shards[0].stat().st_size)
    assert file is not None
    copy.buffer.view[file.start + file.nbytes // 2] ^= 1
    assert first_difference(state, read_generation(path, inherited=inherited).state) is None
    assert shards[0].name in inherited.refused


def test_what_is_inherited_is_of_this_run_and_generation(tmp_path: Path) -> None:
    """Memory of another run, another generation or no note at all is not read; nor is any other descriptor."""
    copy = copied(tmp_path / "c", state_of(model=zoo()))
    fd, size = copy.buffer.fd, copy.planned.layouts[0].size
    name, member = "step-000000007.a0001", "model.shard-000.pt"
    assert _inherited(fd).find(name, member, size)
    assert not _inherited(fd).find("step-000000008.a0001", member, size)
    assert not _inherited(fd).find(name, member, size + 1)
    assert not _inherited(fd, "b" * 32).files
    copy.buffer.tell(State.NONE)
    assert not _inherited(fd).files
    os.set_inheritable(fd, True)
    assert Inherited.of(_address(fd), RUN) is not None
    assert not os.get_inheritable(fd)
    with (tmp_path / "file").open("wb") as other:
        for address in ("", "x", f"{fd}:1", "999999:1", _address(other.fileno()), _address(0)):
            assert Inherited.of(address, RUN) is None


def test_only_memory_that_keeps_its_size_is_read(tmp_path: Path) -> None:
    """A file, a pipe, and memory that could be cut under the reader are told apart without waiting."""
    copy = copied(tmp_path / "c", state_of(model={"a": torch.rand(9)}))
    assert sealed_size(copy.buffer.fd) == os.fstat(copy.buffer.fd).st_size
    unsealed, (end, other) = os.memfd_create("x", os.MFD_ALLOW_SEALING), os.pipe()
    os.ftruncate(unsealed, sealed_size(copy.buffer.fd))
    with (tmp_path / "file").open("w+b") as file:
        os.ftruncate(file.fileno(), sealed_size(copy.buffer.fd))
        assert [sealed_size(fd) for fd in (unsealed, end, file.fileno(), 9999)] == [0, 0, 0, 0]
    for fd in (unsealed, end, other):
        os.close(fd)
    with pytest.raises(PermissionError):
        os.ftruncate(copy.buffer.fd, 0)


def test_the_process_that_finishes_ends_with_who_started_it(tmp_path: Path) -> None:
    """It answers in one line of JSON and imports neither torch nor numpy; without its stdin it ends at once."""
    copy = copied(tmp_path / "c", state_of(model=zoo()))
    words = [sys.executable, "-P", "-X", "importtime", "-m", "outlast_jobs.finisher", str(copy.buffer.fd)]
    words += [str(copy.checkpoints), RUN, "1"]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, pass_fds=[copy.buffer.fd], **options) as process:  # type: ignore[call-overload]
        answer = json.loads(process.stdout.read())
        imported = process.stderr.read()
    assert answer["generation"] == "step-000000007.a0001"
    assert b"outlast_jobs.sealer" in imported
    assert b" torch" not in imported
    assert b" numpy" not in imported
    end, other = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _STUCK, str(end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[end],
    )
    assert process.stdin is not None
    process.stdin.close()
    wait_until(lambda: process.poll() is not None, 60, "its end")
    assert process.returncode == 1
    for fd in (end, other):
        os.close(fd)
    process.stdout.close()  # type: ignore[union-attr]


_STUCK = """
import os, sys
import outlast_jobs.finisher as finisher
finisher.finish = lambda *_: os.read(int(sys.argv[1]), 1)
sys.argv = ["finisher", sys.argv[1], "x", "x", "1"]
finisher.main()
"""


def _address(fd: int) -> str:
    return f"{fd}:{os.fstat(fd).st_ino}"


def _inherited(fd: int, run_id: str = RUN) -> Inherited:
    found = Inherited.of(_address(fd), run_id)
    assert found is not None
    return found
