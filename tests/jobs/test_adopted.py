"""Properties of checkpoints that other trainers wrote: what their formats show is seen, and what is whole is taken."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import zipfile
from pathlib import Path

import pytest

from outlast_jobs.adopted import Trouble, Whole, _stats, candidates, furthest, resume_words, step_of, trouble

DICE = random.Random(7)


def a_zip(size: int = 200_000, *, checked: bool = True) -> bytes:
    """As torch.save lays it out: stored members, small and large, with their checksums or with none that agrees."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("data.pkl", b"\x80\x02."), ("data/0", DICE.randbytes(size)), ("version", b"3\n")):
            archive.writestr(f"model/{name}", data)
    found = bytearray(made.getvalue())
    if not checked:
        with zipfile.ZipFile(io.BytesIO(bytes(found))) as archive:
            crcs = [member.CRC for member in archive.infolist()]
        for crc in crcs:
            found = found.replace(struct.pack("<L", crc), struct.pack("<L", crc ^ 1))
    return bytes(found)


def safetensors(size: int = 4096) -> bytes:
    tensors = {"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    tensors["b"] = {"dtype": "U8", "shape": [size], "data_offsets": [16, 16 + size]}
    head = json.dumps(tensors).encode()
    return len(head).to_bytes(8, "little") + head + DICE.randbytes(16 + size)


def a_folder(path: Path) -> Path:
    """As the Hugging Face Trainer leaves one: the last file that it writes says that it is whole."""
    (path / "deeper").mkdir(parents=True)
    (path / "optimizer.pt").write_bytes(a_zip())
    (path / "deeper" / "model.safetensors").write_bytes(safetensors())
    (path / "deeper" / ".lock").touch()
    (path / "notes.txt").write_bytes(b"\0\0")
    (path / "trainer_state.json").write_text('{"global_step": 5}')
    return path


def test_every_single_bit_of_a_zip_counts(tmp_path: Path) -> None:
    """A bit of a member's content that is flipped is seen, wherever; the same archive untouched is whole."""
    whole = a_zip(3_000)
    path = tmp_path / "last.ckpt"
    path.write_bytes(whole)
    assert trouble(path, None) is None
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("model/data/0")
    begin = member.header_offset + 30 + len(member.filename)
    for at in range(begin, begin + member.file_size, 37):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        found = trouble(path, None)
        assert found is not None
        assert "the checksum of 'model/data/0' is wrong" in found.reason
        assert not found.begun


@pytest.mark.parametrize("make", [a_zip, safetensors, lambda: b'{"global_step": 500}'])
def test_a_torn_file_is_seen_wherever_it_was_torn(tmp_path: Path, make: object) -> None:
    """Cut short at any place, or with zeros from there on, it is no whole one; neither raises, whatever is there."""
    whole: bytes = make()  # type: ignore[operator]
    suffix = {b"PK": ".pt", b'{"': ".json"}.get(whole[:2], ".safetensors")
    path = tmp_path / f"file{suffix}"
    for at in {0, 1, 7, 8, len(whole) // 2, len(whole) - 1, *(DICE.randrange(len(whole)) for _ in range(40))}:
        path.write_bytes(whole[:at])
        assert trouble(path, None) is not None, at
        # its tensors have no checksum; no zip by its head
        if suffix != ".safetensors" and at not in range(1, 4):
            path.write_bytes(zeros := whole[:at] + bytes(len(whole) - at))
            assert zeros == whole or trouble(path, None) is not None, at
    for _ in range(200):
        path.write_bytes(DICE.randbytes(DICE.randrange(300)))
        trouble(path, None)


def test_an_archive_without_checksums_is_no_damaged_one(tmp_path: Path) -> None:
    """Where the writer left all checksums out nothing can be told by them, and the archive is taken."""
    path = tmp_path / "model.pt"
    path.write_bytes(a_zip(checked=False))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is not None
    assert trouble(path, None) is None


def test_a_folder_is_as_whole_as_its_parts(tmp_path: Path) -> None:
    """A file that is emptied, cut or spoilt is named, the folder damaged; without its last file it is only begun."""
    whole = a_folder(tmp_path / "checkpoint-5")
    assert trouble(whole, "trainer_state.json") is None
    assert trouble(whole, None) is None
    for name in ("optimizer.pt", "deeper/model.safetensors", "trainer_state.json"):
        kept = (whole / name).read_bytes()
        for spoilt in (b"", kept[: len(kept) // 2], bytes(len(kept))):
            (whole / name).write_bytes(spoilt)
            found = trouble(whole, "trainer_state.json")
            assert found is not None
            assert (repr(name) in found.reason, found.begun) == (True, False)
        (whole / name).write_bytes(kept)
    (whole / "trainer_state.json").unlink()
    found = trouble(whole, "trainer_state.json")
    assert found is not None
    assert found.begun
    (tmp_path / "checkpoint-6").mkdir()
    assert (begun := trouble(tmp_path / "checkpoint-6", None)) is not None
    assert begun.begun


def test_the_furthest_comes_first(tmp_path: Path) -> None:
    """By the step in the name and never by its text; of one step, and where names have none, the newest."""
    work = tmp_path / "of [1] *"
    for name in ("checkpoint-900", "checkpoint-10000", "checkpoint-1000", ".checkpoint-99999"):
        a_folder(work / "out [1]" / name)
    (work / "out [1]" / "checkpoint-20000").symlink_to("nowhere")
    found = candidates("out [[]1]/checkpoint-*", str(work))
    assert [(one.name, one.step) for one in found] == [
        ("checkpoint-10000", 10000),
        ("checkpoint-1000", 1000),
        ("checkpoint-900", 900),
    ]
    assert all(one.path.is_absolute() for one in found)
    (work / "out [1]" / "checkpoint-10000" / "trainer_state.json").unlink()
    found = furthest("out*/checkpoint-*", str(work), "trainer_state.json")
    assert found is not None
    assert found.step == 1000
    assert furthest("nothing-*", str(work), None) is None
    for place, name in enumerate(["b.ckpt", "a.ckpt", "c.ckpt"]):
        (work / name).write_bytes(a_zip())
        os.utime(work / name, (place, place))
    assert [one.name for one in candidates("*.ckpt", str(work))] == ["c.ckpt", "a.ckpt", "b.ckpt"]


def test_a_name_without_a_number_counts_as_the_furthest_before_it(tmp_path: Path) -> None:
    """The last one of some is taken before the best ones that are no newer, an old one after those that are."""
    ages = ["best.pt", "epoch=3-loss=0.5.pt", "epoch=4-loss=0.2.pt", "last-v1.pt", "last.pt"]
    for age, name in enumerate(ages):
        (tmp_path / name).write_bytes(a_zip(100))
        os.utime(tmp_path / name, (age, age))

    def order() -> list[tuple[str, int]]:
        return [(one.name, one.step) for one in candidates("*.pt", str(tmp_path))]

    bests = [("epoch=4-loss=0.2.pt", 4), ("epoch=3-loss=0.5.pt", 3), ("best.pt", 0)]
    assert order() == [("last.pt", 4), ("last-v1.pt", 4), *bests]
    os.utime(tmp_path / "last-v1.pt", (9, 9))
    assert order() == [("last-v1.pt", 4), ("last.pt", 4), *bests]
    (tmp_path / "last-v1.pt").write_bytes(a_zip(100)[:90])
    found = furthest("*.pt", str(tmp_path), None)
    assert found is not None
    assert (found.name, found.numbered) == ("last.pt", False)


@pytest.mark.parametrize("name", ["last.pth.tar", "random_states_0.pkl", "state"])
def test_an_empty_file_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    """Whatever its name: a killed save, or a power cut, leaves one. A mark that says that a folder is whole may be."""
    (tmp_path / name).touch()
    assert trouble(tmp_path / name, None) == Trouble("is empty")
    folder = a_folder(tmp_path / "checkpoint_5")
    (folder / "DONE").touch()
    assert trouble(folder, "DONE") is None
    (folder / "random_states_0.pkl").touch()
    assert trouble(folder, "random_states_0.pkl") == Trouble("'random_states_0.pkl' is empty")


def test_what_was_whole_is_not_read_again(tmp_path: Path) -> None:
    """While no file was touched; a change of one, a file more or less, and another rule for it are looked at."""
    folder = a_folder(tmp_path / "checkpoint-5")
    whole: Whole = {}
    assert trouble(folder, "trainer_state.json", whole) is None
    before = dict(whole)
    model = folder / "optimizer.pt"
    data = bytearray(model.read_bytes())
    data[len(data) // 2] ^= 1
    assert trouble(folder, "trainer_state.json", whole) is None
    assert whole == before
    model.write_bytes(data)
    assert trouble(folder, "trainer_state.json", whole) is not None
    told: Whole = {folder: ("trainer_state.json", _stats(folder))}
    assert trouble(folder, "trainer_state.json", told) is None  # as it would be if it had been whole just now
    model.unlink()
    assert trouble(folder, "trainer_state.json", whole) is None
    assert trouble(folder, "other.json", whole) is not None
    assert trouble(folder / "trainer_state.json", None, whole) is None
    (folder / "trainer_state.json").write_text("{")
    assert trouble(folder / "trainer_state.json", None, whole) is not None


def test_a_name_tells_its_step() -> None:
    """That behind "step", else "epoch", else the last; no loss, and no version of a file, counts as one."""
    names = {
        "checkpoint-500": 500,
        "epoch=3-step=1200.ckpt": 1200,
        "epoch=3-step=1200-v1.ckpt": 1200,
        "model_step_000040_loss0.25.pt": 40,
        "ckpt.pt": None,
        "epoch_7.pth": 7,
        "epoch=9-val_loss=0.12.ckpt": 9,
        "epoch=9-val_acc=93.ckpt": 9,
        "09-0.32-v1.ckpt": 9,
        "checkpoint-12.pth.tar": 12,
        "checkpoint.500": 500,
        "last-v1.ckpt": None,
        "step" + "9" * 4000: int("9" * 15),
    }
    assert {name: step_of(name) for name in names} == names


def test_a_path_stays_one_word() -> None:
    """The template is split as a shell does, and the path put in afterwards: its spaces and quotes split nothing."""
    path = "/a b/it's {path}/checkpoint-1"
    assert resume_words("--resume {path} --init='from {path}' -q", path) == (
        "--resume",
        path,
        f"--init=from {path}",
        "-q",
    )
