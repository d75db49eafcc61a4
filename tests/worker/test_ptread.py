"""One pass over a ``.pt`` file: hashed first, loaded after, and each tensor in memory of its own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast_jobs import durable
from outlast_jobs.contract import Schema
from outlast_jobs.errors import Corrupt
from outlast_jobs.generation import META, FileEntry, GenerationName
from outlast_worker import image, layout
from outlast_worker.digest import first_difference
from outlast_worker.image import ShardImage
from outlast_worker.ptfile import load_pt
from outlast_worker.ptread import read_verified
from outlast_worker.restoring import read_generation
from outlast_worker.saving import IndexFields, save_generation
from outlast_worker.shards import take_out
from outlast_worker.verified import Verified
from outlast_worker.writing import image_of

LARGE = 3 << 20  # bytes: above what gets memory of its own made of huge pages


def read(path: Path) -> Verified:
    data = path.read_bytes()
    fd = durable.open_regular(path)
    try:
        entry = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        return read_verified(fd, path.name, entry, lambda: False)
    finally:
        os.close(fd)


def tensors() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(4)
    large = torch.randn(LARGE // 4, generator=generator)
    return {
        "large": large.view(-1, 1024),
        "tied": large.view(-1, 1024),
        "window": large[100:900],
        "middle": torch.randn(200, 100, generator=generator).t(),
        "small": torch.arange(7),
        "empty": torch.empty(0),
        "half": torch.randn(70_000, generator=generator).to(torch.bfloat16),
        "complex": torch.randn(50_000, 2, generator=generator).view(-1, 2).sum(1).to(torch.complex64),
    }


def test_each_tensor_has_memory_of_its_own(tmp_path: Path) -> None:
    """Large tensors own exactly their bytes, can be written, keep strides and ties, and equal what was saved."""
    torch.save(tensors(), tmp_path / "x.pt")
    loaded = read(tmp_path / "x.pt").content()
    assert first_difference(tensors(), loaded) is None
    assert loaded["large"].data_ptr() == loaded["tied"].data_ptr()
    assert loaded["large"].untyped_storage().nbytes() == LARGE
    assert loaded["middle"].stride() == tensors()["middle"].stride()
    loaded["large"].zero_()
    assert loaded["window"].sum() == 0
    assert loaded["middle"].untyped_storage().data_ptr() != loaded["half"].untyped_storage().data_ptr()
    assert loaded["half"].resize_(80_000).numel() == 80_000


def test_aligned_files_with_checksums_load(tmp_path: Path) -> None:
    """A file whose tensors are aligned to pages, or whose archive another program packed anew, loads the same."""
    config = pytest.importorskip("torch.utils.serialization").config
    before = config.save.storage_alignment
    try:
        config.save.storage_alignment = 4096
        torch.save(tensors(), tmp_path / "aligned.pt")
    finally:
        config.save.storage_alignment = before
    assert first_difference(tensors(), read(tmp_path / "aligned.pt").content()) is None
    for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with (
            zipfile.ZipFile(tmp_path / "aligned.pt") as old,
            zipfile.ZipFile(tmp_path / "packed.pt", "w", how) as new,
        ):
            for info in old.infolist():
                new.writestr(info.filename, old.read(info))
        if how == zipfile.ZIP_STORED:
            assert first_difference(tensors(), read(tmp_path / "packed.pt").content()) is None
        else:
            with torch.no_grad():
                assert first_difference(tensors(), read(tmp_path / "packed.pt").content()) is None


def test_a_large_directory_is_found_too(tmp_path: Path) -> None:
    """Among thousands of tensors, whose directory is as large, a large one still gets memory of its own."""
    content = {"large": torch.ones(LARGE // 4), **{f"small-{n}": torch.tensor(n) for n in range(3000)}}
    torch.save(content, tmp_path / "x.pt")
    verified = read(tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        info = archive.getinfo("x/data/0")
        assert archive.start_dir < verified.size - (128 << 10)
    header = bytearray(30)
    verified.copy(info.header_offset, memoryview(header))
    start = info.header_offset + 30 + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    assert verified.is_record(start, LARGE)
    assert first_difference(content, verified.content()) is None


def test_what_is_no_flat_dict_of_tensors_loads_too(tmp_path: Path) -> None:
    """Nested content, parameters and a pickle that is itself large are loaded in the ordinary way."""
    contents: list[Any] = [
        {"a": [torch.ones(100_000)], "b": torch.ones(30_000)},
        {"p": torch.nn.Parameter(torch.ones(100_000))},
        {"s": torch.ones(400, 400).to_sparse()},
        {f"key-{n:06d}": n for n in range(20_000)} | {"t": torch.ones(100_000)},
        [torch.ones(100_000)],
    ]
    for content in contents:
        torch.save(content, tmp_path / "x.pt")
        loaded = read(tmp_path / "x.pt").content()
        expected = torch.load(tmp_path / "x.pt", weights_only=True)
        assert str(loaded) == str(expected)
    legacy = tmp_path / "legacy.pt"
    torch.save(tensors(), legacy, _use_new_zipfile_serialization=False)
    assert first_difference(tensors(), read(legacy).content()) is None


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_loader_that_looks_at_the_bytes_is_given_them(tmp_path: Path) -> None:
    """A sparse tensor, whose indices the loader holds against its size, loads where that is asked for."""
    with torch.sparse.check_sparse_tensor_invariants():  # torch 2.6 always asks for it
        torch.save(
            {"s": torch.sparse_csr_tensor([0, 40_000], range(40_000), torch.ones(40_000))}, tmp_path / "x.pt"
        )
        loaded = read(tmp_path / "x.pt").content()
    assert torch.equal(loaded["s"].to_dense(), torch.ones(1, 40_000))


def test_a_script_that_maps_what_it_loads_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ``torch.load`` is told to map its files, ours are laid out, read and verified as they are without."""
    config = pytest.importorskip("torch.utils.serialization.config")
    monkeypatch.setattr(image, "_layouts", {})
    layout._try_this_torch.cache_clear()
    torch.save(tensors(), tmp_path / "x.pt")
    with config.patch("load.mmap", True):
        assert isinstance(image_of(take_out(tensors()), 0), ShardImage)
        assert first_difference(tensors(), read(tmp_path / "x.pt").content()) is None
        assert first_difference(tensors(), load_pt((tmp_path / "x.pt").read_bytes())) is None


def renamed(path: Path, old: str, new: str) -> None:
    """Change a name in an archive's directory alone, to one of the same length."""
    data = bytearray(path.read_bytes())
    at = data.rindex(old.encode())
    data[at : at + len(old)] = new.encode()
    path.write_bytes(data)


def test_a_directory_that_lies_loads_nothing_unread(tmp_path: Path) -> None:
    """A directory that calls the pickle a tensor, or gives two records one place, lends out no unread memory."""
    content = {f"key-{n:06d}": n for n in range(20_000)} | {"t": torch.ones(100_000)}
    torch.save(content, tmp_path / "x.pt")
    stem = zipfile.ZipFile(tmp_path / "x.pt").namelist()[0].split("/")[0]
    renamed(tmp_path / "x.pt", f"{stem}/data.pkl", f"{stem}/data/70")
    with pytest.raises(Exception, match=r"data\.pkl|zip archive"):  # the loader's own words
        read(tmp_path / "x.pt").content()
    torch.save({"a": torch.ones(100_000), "b": torch.zeros(100_000)}, tmp_path / "y.pt")
    data = bytearray((tmp_path / "y.pt").read_bytes())
    with zipfile.ZipFile(tmp_path / "y.pt") as archive:
        first, second = (archive.getinfo(f"y/data/{n}").header_offset for n in (0, 1))
    at = data.rindex(second.to_bytes(4, "little"))
    data[at : at + 4] = first.to_bytes(4, "little")
    (tmp_path / "y.pt").write_bytes(data)
    try:
        loaded = read(tmp_path / "y.pt").content()
    except RuntimeError:
        return  # the loader compares the names
    assert loaded["a"].sum() == 100_000
    assert loaded["b"].sum() in (0, 100_000)


@pytest.mark.parametrize("left", [100, 1 << 20])
def test_a_file_that_is_cut_while_it_is_read_is_corrupt(tmp_path: Path, left: int) -> None:
    """Bytes that go while the file is read make it Corrupt; nothing waits for them or makes them up."""
    torch.save({"t": torch.ones(3 << 20)}, tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    entry = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    fd = durable.open_regular(tmp_path / "x.pt")
    asked = []

    def shorten() -> bool:
        asked.append(1)
        if len(asked) == 2:
            os.truncate(tmp_path / "x.pt", left)
        return False

    with pytest.raises(Corrupt, match="ended after"):
        read_verified(fd, "x.pt", entry, shorten)
    os.close(fd)


def generation(folder: Path, mb: int = 4) -> Path:
    state = {
        "schema": Schema.META,
        "parts": {"model": {f"w{n}": torch.randn(mb << 16) for n in range(4)}},
        "kinds": {"model": "stateful"},
        "counters": {"step": 3, "epoch": 0, "batch_in_epoch": 3},
        "losses": [],
        "rng": {},
        "extra": {},
    }
    folder.mkdir(exist_ok=True)
    (folder / ".writing-0001").mkdir(exist_ok=True)
    return save_generation(folder, GenerationName(3, 1), state, run_id="r1", fields=IndexFields()).path


def test_no_file_is_looked_into_before_all_have_their_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flipped bit in the last file, and the loader sees not a byte of any other, meta.pt included."""
    path = generation(tmp_path / "checkpoints")
    read_generation(path)
    last = sorted(json.loads((path / "index.json").read_text())["files"])[-1]
    data = bytearray((path / last).read_bytes())
    data[-1] ^= 1
    (path / last).write_bytes(data)
    calls: list[Any] = []
    monkeypatch.setattr(torch, "load", lambda *words, **options: calls.append(words))
    with pytest.raises(Corrupt, match=last):
        read_generation(path)
    assert calls == []
    assert last != META


_PEAK = """
import sys
from pathlib import Path
import torch
from outlast_worker.restoring import read_generation

def kib(key):
    return int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1])

read_generation(Path(sys.argv[2]))  # what the first use imports and allocates
before = kib("VmHWM")
state = read_generation(Path(sys.argv[1])).state
print(kib("VmHWM") - before, sum(t.nbytes for t in state["parts"]["model"].values()) // 1024)
"""


def test_a_restore_takes_its_own_size_in_memory(tmp_path: Path) -> None:
    """The most memory that a restore ever holds is the state once, and a few pieces."""
    small, large = generation(tmp_path / "small", 1), generation(tmp_path / "large", 48)
    found = subprocess.run(
        [sys.executable, "-c", _PEAK, str(large), str(small)], capture_output=True, text=True, check=True
    )
    peak, size = map(int, found.stdout.split())
    assert size == 48 * 1024
    assert peak < 1.35 * size


def test_the_loader_still_reads_from_a_plain_file(tmp_path: Path) -> None:
    """What is handed to the loader is a file like any other: it can be read in any order and to its end."""
    torch.save({"t": torch.ones(100_000)}, tmp_path / "x.pt")
    from outlast_worker.verified import _Source

    source = _Source(read(tmp_path / "x.pt"), lend=False)
    assert io.BufferedReader(source).read() == (tmp_path / "x.pt").read_bytes()
