"""Measure a verified restore against a read, a hash, and torch.load of the same bytes, in turn; decides nothing.

    python bench/restore.py [--mb 300 1200] [--rounds 5] [--folder DIR]

Every figure is a median with its range. A restore ends when every page of every tensor was written once. Before each
way twice as much memory is touched and given back, for the tensors and for what the kernel keeps of the files: a
virtual machine's host may have taken free memory away, and getting it back would be measured instead.
torch.distributed.checkpoint loads into tensors that are there: theirs were written before, which is not measured.
What is called cold is held against what the kernel counts as fetched from a disk. No restore from a disk is faster
than the disk, and none that verifies than two threads that hash; where these alone are beyond a goal, its verdict
says so.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import resource
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import goals
import torch
import torch.distributed.checkpoint as dcp

from outlast_jobs.buffer_note import File
from outlast_jobs.generation import decode_index
from outlast_worker import TrainState, save_sharded_checkpoint
from outlast_worker.buffer import Buffer, aligned
from outlast_worker.inherited import Inherited
from outlast_worker.restoring import read_generation

MB = 1_000_000
PIECE = 1 << 20


def model(mb: int) -> torch.nn.Module:
    """Layers of 4 and 16 MiB, as transformers have, so many that with AdamW's state it is about that much."""
    layers: list[torch.nn.Module] = []
    while sum(p.numel() for layer in layers for p in layer.parameters()) * 12 < mb * MB:
        layers += [torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 4096)]
    return torch.nn.Sequential(*layers)


def files_of(folder: Path) -> list[Path]:
    """The files that the index names."""
    return [folder / name for name in decode_index((folder / "index.json").read_bytes()).files]


def forget(files: list[Path]) -> None:
    """Have the kernel drop its copy."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def touch(size: int) -> None:
    """Have the host back that much memory, and leave it free."""
    memory = mmap.mmap(-1, size + MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = 1
    memory.close()


def read(files: list[Path], at: int = 0, step: int = 1, digest: Any = None) -> None:
    """Read every ``step``-th piece into one buffer, and hash it where ``digest`` is given."""
    buffer = memoryview(bytearray(PIECE))
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        for start in range(at * PIECE, os.fstat(fd).st_size, step * PIECE):
            got = os.preadv(fd, [buffer], start)
            if digest is not None:
                digest.update(buffer[:got])
        os.close(fd)


def by_two(files: list[Path], *, hashing: bool) -> None:
    """The same by two threads, half of the pieces each."""
    threads = [
        threading.Thread(target=read, args=(files, at, 2, hashlib.sha256() if hashing else None))
        for at in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write_each_page(value: Any) -> None:
    """Write to every page of every tensor once."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().reshape(-1)
        if value.is_floating_point() and flat.data_ptr() == value.data_ptr():
            flat[:: 4096 // value.element_size()].add_(0)
    elif isinstance(value, dict):
        for item in value.values():
            write_each_page(item)
    elif isinstance(value, list | tuple):
        for item in value:
            write_each_page(item)


def plain_load(files: list[Path]) -> None:
    """What a script does without any verification."""
    write_each_page([torch.load(path, map_location="cpu", weights_only=True) for path in files])


def hashed_load(files: list[Path]) -> None:
    """What a script does that verifies first, file by file, as sha256sum does."""
    read(files, digest=hashlib.sha256())
    plain_load(files)


def mapped_load(files: list[Path]) -> None:
    """The same with the files mapped: a page is read when it is first written, into a copy of its own."""
    write_each_page([torch.load(path, map_location="cpu", weights_only=True, mmap=True) for path in files])


def distributed_load(path: Path, into: dict[str, Any]) -> None:
    """torch.distributed.checkpoint, in one process: into the tensors that are there."""
    dcp.load(into, checkpoint_id=path, no_dist=True)
    write_each_page(into)


def in_memory(generation: Path, files: list[Path]) -> Inherited:
    """The same files as an attempt leaves them in its buffer."""
    starts = aligned([path.stat().st_size for path in files])
    buffer = Buffer(starts[-1])
    buffer.touch()
    for path, start in zip(files, starts, strict=False):
        content = path.read_bytes()
        buffer.view[start : start + len(content)] = content
    found = {p.name: File(p.name, start, p.stat().st_size) for p, start in zip(files, starts, strict=False)}
    return Inherited(os.dup(buffer.fd), generation.name, found)


def compare(folder: Path, mb: int, rounds: int) -> None:
    """Save a state of that size and load it in every way, in turn."""
    net = model(mb)
    optimizer = torch.optim.AdamW(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    target = folder / f"bench-{mb}"
    save_sharded_checkpoint(
        net, optimizer, None, TrainState(), target, strategy="size", num_shards=2 + mb // 600
    )
    into = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    theirs = folder / f"dcp-{mb}"
    writer = dcp.FileSystemWriter(theirs, thread_count=len(os.sched_getaffinity(0)))
    dcp.save(into, checkpoint_id=theirs, storage_writer=writer, no_dist=True)
    del net, optimizer
    files = files_of(target)
    their_files = [path for path in theirs.iterdir() if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    left = in_memory(target, files)
    ways: dict[str, tuple[bool, Callable[[], None]]] = {
        "cold: read by one thread": (True, lambda: read(files)),
        "cold: read by two threads": (True, lambda: by_two(files, hashing=False)),
        "cold: verified restore": (True, lambda: write_each_page(read_generation(target).state)),
        "cold: verified restore, from the buffer": (
            True,
            lambda: write_each_page(read_generation(target, inherited=left).state),
        ),
        "cold: torch.load, unverified": (True, lambda: plain_load(files)),
        "cold: mapped torch.load, unverified": (True, lambda: mapped_load(files)),
        "cold: DCP load, unverified": (True, lambda: distributed_load(theirs, into)),
        "cold: sha256, then torch.load": (True, lambda: hashed_load(files)),
        "warm: sha256 by two threads": (False, lambda: by_two(files, hashing=True)),
        "warm: verified restore": (False, lambda: write_each_page(read_generation(target).state)),
        "warm: torch.load, unverified": (False, lambda: plain_load(files)),
        "warm: mapped torch.load, unverified": (False, lambda: mapped_load(files)),
        "warm: DCP load, unverified": (False, lambda: distributed_load(theirs, into)),
        "warm: sha256, then torch.load": (False, lambda: hashed_load(files)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    works: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (cold, way) in ways.items():
            if cold:
                forget(files + their_files)
            else:
                read(files + their_files)  # those of one way may have been forgotten after it
            touch(2 * total)  # the tensors, and the kernel's copy of the files
            (worked, fetched), before = used(), time.perf_counter()
            way()
            times[name].append((time.perf_counter() - before) * 1000)
            works[name].append((used()[0] - worked) * 1000)
            share = (used()[1] - fetched) / total
            if share < 0.99 if cold and "buffer" not in name else share > 0.01:
                print(f"  {name!r} fetched {share:.0%} of its bytes from a disk")
    os.close(left.fd)
    print(f"{total / MB:.0f} MB in {len(files)} files")
    for name, values in times.items():
        spread = f"{min(values):.0f} to {max(values):.0f}"
        work = f"processors {statistics.median(works[name]):.0f} ms"
        print(f"  {name:<40}{statistics.median(values):>8.0f} ms {spread:>18}{work:>24}")
    hold(mb, {name: statistics.median(values) for name, values in times.items()})


def used() -> tuple[float, int]:
    """Processor seconds and bytes from disks of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_inblock * 512


def hold(mb: int, middle: dict[str, float]) -> None:
    """The verified restore beside its limits and beside the others."""
    verified = 0.45 if mb < 600 else 0.3
    ours, disk = middle["cold: verified restore, from the buffer"], middle["cold: verified restore"]
    goals.ratio(f"{mb} MB: restore from the buffer", ours, disk, "the disk", unit="ms", at_most=1.0)
    reads = ("read by one thread", "read by two threads")
    disk_alone = min(reads, key=lambda name: middle[f"cold: {name}"])
    for kind, limit, bound in (("cold", disk_alone, 1.4), ("warm", "sha256 by two threads", 1.15)):
        ours = middle[f"{kind}: verified restore"]
        needed = (f"{kind}: {limit}", "warm: sha256 by two threads")
        longest = max(needed, key=lambda name: middle[name])
        least = goals.Least(middle[longest], longest)
        peers = [name for name in middle if name.startswith(kind) and name.endswith("unverified")]
        best = min(peers, key=lambda name: middle[name])
        for other, most in (
            (f"{kind}: {limit}", bound),
            (f"{kind}: sha256, then torch.load", verified),
            (f"{kind}: torch.load, unverified", 1.0),
            *([(best, 1.0)] if best != f"{kind}: torch.load, unverified" else []),
        ):
            of = other.removeprefix(f"{kind}: ")
            name = f"{mb} MB: verified restore, {kind}"
            goals.ratio(name, ours, middle[other], of, unit="ms", at_most=most, least=least)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, nargs="+", default=[300, 1200])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round: only to see that it runs")
    parser.add_argument("--folder", default=None, help="where the files go: on the disk that is measured")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    for mb in options.mb:
        with tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=options.folder) as folder:
            compare(Path(folder), mb, 1 if options.quick else options.rounds)


if __name__ == "__main__":
    main()
