"""Files laid out before their bytes are there: torch's own, byte for byte, whatever lies in the tensors."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast_jobs import blocks
from outlast_jobs.durable import write_file
from outlast_worker import image, layout, writing
from outlast_worker.image import ShardImage, layout_of
from outlast_worker.layout import NoLayout, Storage, View, lay_out
from outlast_worker.shards import Taken, take_out

ID = ".data/serialization_id"  # of names and checksums; torch makes it before those are known


def zoo() -> dict[str, Any]:
    """Tensors of every kind of place in memory."""
    base = torch.randn(100, 50)
    parameter = torch.nn.Parameter(torch.randn(3, 3))
    return {
        "whole": base,
        "turned": base.t(),
        "row": base[3],
        "column": base[:, 2],
        "tied": base,
        "as integers": base.view(torch.int32)[0],
        "empty": torch.zeros(0),
        "empty view": torch.randn(10)[5:5],
        "half": torch.randn(70, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False, True]),
        "number": torch.tensor(3),
        "complex": torch.randn(4, dtype=torch.cfloat).conj(),
        "expanded": torch.ones(1).expand(5, 6),
        "holes": torch.randn(10, 10)[:, ::3],
        "holes turned": torch.randn(9, 4, 5)[::2].permute(2, 0, 1),
        "permuted": torch.randn(4, 5, 6).permute(2, 0, 1),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameter": parameter,
        "detached": parameter.detach(),
        "not numbers": torch.tensor([float("nan"), float("inf"), -0.0]),
        "more than a block": torch.randn(blocks.BLOCK // 4 + 77),
    }


def written(folder: Path, taken: Taken) -> list[Path]:
    paths = []
    for number, components in enumerate(taken.shards):
        paths.append(folder / f"{number}.pt")
        write_file(paths[-1], ShardImage(layout_of(taken, number), components))
    return paths


def test_a_laid_out_file_is_what_torch_saves(tmp_path: Path) -> None:
    """Same members at the same places with the same bytes and checksums; it loads, mapped too, with strides."""
    taken = take_out(zoo())
    assert len(taken.shards) == 2
    for number, path in enumerate(written(tmp_path, taken)):
        content = taken.content(number)
        reference = io.BytesIO()
        torch.save(content, reference)
        ours, theirs = zipfile.ZipFile(path), zipfile.ZipFile(reference)
        assert ours.testzip() is None
        assert path.stat().st_size == len(reference.getvalue())
        for one, other in zip(ours.infolist(), theirs.infolist(), strict=True):
            assert (one.filename, one.header_offset, one.file_size) == (
                other.filename,
                other.header_offset,
                other.file_size,
            )
            if not one.filename.endswith(ID):
                assert (one.CRC, ours.read(one)) == (other.CRC, theirs.read(other)), one.filename
        for mapped in (False, True):
            loaded = torch.load(path, weights_only=True, mmap=mapped)
            assert list(loaded) == list(content)
            for key, tensor in content.items():
                assert loaded[key].stride() == tensor.stride(), key
                assert (
                    torch.equal(loaded[key].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))
                    if (tensor.is_contiguous())
                    else torch.equal(loaded[key], tensor)
                ), key


@pytest.mark.parametrize("block", [4096, 8192, 1 << 20])
def test_checksums_are_right_wherever_blocks_are_cut(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor, its checksum and the directory may lie in any blocks."""
    monkeypatch.setattr(blocks, "BLOCK", block)
    tree = {str(n): torch.randn(n * 37 + 1) for n in range(60)}
    taken = take_out(tree)
    for path in written(tmp_path, taken):
        assert zipfile.ZipFile(path).testzip() is None
        for key, tensor in torch.load(path, weights_only=True).items():
            assert torch.equal(tensor, tree[key])


def test_a_tensor_of_many_gigabytes_is_laid_out_too(tmp_path: Path) -> None:
    """Beyond four gigabytes a zip has other records; what is found there is where Python's reader finds it."""
    nbytes = 5 << 30
    view = View("big", torch.uint8, (nbytes,), (1,), 0)
    after = View("after", torch.int64, (2,), (1,), 0)
    found = lay_out([Storage(nbytes, (view,)), Storage(16, (after,))], ["big", "after"])
    path = tmp_path / "f"
    with open(path, "wb") as file:
        file.truncate(found.size)
        for start, data in found.pieces:
            file.seek(start)
            file.write(data)
        for gap in found.gaps:
            for place in gap.crc_at:
                file.seek(place)
                file.write((0xABCD0000 + gap.storage).to_bytes(4, "little"))
    for number, member in enumerate(("archive/data/0", "archive/data/1")):
        info = zipfile.ZipFile(path).getinfo(member)
        assert 0xABCD0000 + number == info.CRC
        assert info.file_size == found.gaps[number].nbytes
    loaded = torch.load(path, weights_only=True, mmap=True)
    assert loaded["big"].shape == (nbytes,)
    assert loaded["after"].tolist() == [0, 0]


def in_the_order_of_names(content: Any, file: Any) -> None:
    """What ``torch.save`` of 2.6 writes under ``skip_data``: member "10" comes before member "2"."""
    whole = io.BytesIO()
    with torch.serialization.skip_data():
        torch_save(content, whole)
    members = zipfile.ZipFile(whole)
    sizes = {name[len("archive/") :]: members.getinfo(name).file_size for name in members.namelist()}
    writer = torch._C.PyTorchFileWriter(file)
    pickled = members.read("archive/data.pkl")
    writer.write_record("data.pkl", pickled, len(pickled))
    for name in sorted(name for name in sizes if name.startswith("data/")):
        writer.write_record_metadata(name, sizes[name])
    writer.write_end_of_file()


torch_save = torch.save


@pytest.mark.parametrize("save", [torch_save, in_the_order_of_names], ids=["this torch", "2.6"])
def test_each_tensor_goes_where_its_name_stands(
    tmp_path: Path, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve tensors of one size come back each as itself, whatever order torch writes them in."""
    tree = {f"layer {n}": torch.full((7,), float(n)) for n in range(12)}
    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr(image, "_layouts", {})
    (path,) = written(tmp_path, take_out(tree))
    assert zipfile.ZipFile(path).testzip() is None
    for key, tensor in torch.load(path, weights_only=True).items():
        assert torch.equal(tensor, tree[key]), key


def test_a_torch_that_numbers_its_tensors_otherwise_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch itself would find another tensor at a place, nothing is laid out, and the file is its stream."""
    tree = {f"layer {n}": torch.full((7,), float(n)) for n in range(12)}
    taken = take_out(tree)
    monkeypatch.setattr(image, "_layouts", {})
    monkeypatch.setattr(
        torch, "save", lambda content, file: torch_save(dict(reversed(content.items())), file)
    )
    layout._try_this_torch.cache_clear()
    try:
        with pytest.raises(NoLayout, match="does not find"):
            layout_of(taken, 0)
        assert writing.image_of(taken, 0) is None
    finally:
        layout._try_this_torch.cache_clear()


def test_a_torch_that_reads_nothing_that_is_laid_out_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its loader says against the small file, a save is written as torch itself writes it."""

    def load(*_: Any, **__: Any) -> None:
        raise RuntimeError("PytorchStreamReader failed")

    monkeypatch.setattr(image, "_layouts", {})
    monkeypatch.setattr(torch, "load", load)
    layout._try_this_torch.cache_clear()
    assert writing.image_of(take_out({"a": torch.ones(7)}), 0) is None


def test_a_torch_that_lays_out_nothing_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without skip_data, or with other gaps than expected, there is no image, and the file is torch's stream."""
    taken = take_out({"a": torch.randn(10)})
    image._layouts.clear()
    with monkeypatch.context() as patch:
        patch.delattr(torch.serialization, "skip_data")
        with pytest.raises(NoLayout):
            layout_of(taken, 0)
        assert writing.image_of(taken, 0) is None
    with monkeypatch.context() as patch:
        real = torch.save
        patch.setattr(torch, "save", lambda content, file: real({**content, "more": torch.ones(3)}, file))
        with pytest.raises(NoLayout, match="another gap"):
            layout_of(taken, 0)
    assert writing.image_of(taken, 0) is not None


def test_files_are_written_side_by_side_and_the_first_error_is_raised() -> None:
    """Each job is done once; after an error none is begun, and it comes to the caller."""
    done: list[int] = []
    writing.side_by_side([lambda n=n: done.append(n) for n in range(50)])  # type: ignore[misc]
    assert sorted(done) == list(range(50))

    def fail() -> None:
        raise OSError(28, "full")

    done.clear()
    with pytest.raises(OSError, match="full"):
        writing.side_by_side([fail, *[lambda: done.append(os.getpid())] * 1000])
    assert len(done) < 1000
