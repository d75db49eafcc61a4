"""What a copy beside the training rests on: which changes are seen, when, and where there is memory for it."""

from __future__ import annotations

import os
import random
import resource
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.waiting import wait_until

from outlast_jobs.blocks import BLOCK
from outlast_jobs.memory import addressable, oom_kills
from outlast_worker import flight, sources, window
from outlast_worker.buffer import SPARE, Buffer, Buffers, aligned, available, roomy
from outlast_worker.image import ShardImage
from outlast_worker.imaging import into, plan
from outlast_worker.saving import take_state
from outlast_worker.shards import PARTS, Taken
from outlast_worker.snapshot import has_nan
from outlast_worker.sources import Mode, Sources, Trust, watched_by
from outlast_worker.window import Copying, Interrupted, Probe, Span, same, watch
from outlast_worker.writing import image_of


def _state(**parts: Any) -> dict[str, Any]:
    counters = {"step": 1, "epoch": 0, "batch_in_epoch": 1}
    more = {"kinds": dict.fromkeys(parts, "stateful"), "losses": [], "rng": {}, "extra": {}}
    return {"schema": "outlast.meta/1", "parts": parts, "counters": counters, **more}


SEEN: dict[str, Callable[[torch.nn.Parameter], object]] = {
    "in place": lambda p: p.mul_(2),
    "copied over": lambda p: p.copy_(p * 2),
    "of a list": lambda p: torch._foreach_mul_([p], 2.0),
    "through a detached one": lambda p: p.detach().add_(1),
    "through a view": lambda p: p[1:].zero_(),
    "by index": lambda p: p.__setitem__(0, 5.0),
    "clipped": lambda p: torch.nn.utils.clip_grad_norm_(p, 1.0) if p.grad is not None else p.clamp_(0, 0.1),
}
UNSEEN: dict[str, Callable[[torch.nn.Parameter], object]] = {
    "data": lambda p: p.data.mul_(2),
    "numpy": lambda p: p.detach().numpy().__setitem__(0, 5.0),
}


@pytest.mark.parametrize("how", [*SEEN, *UNSEEN])
@pytest.mark.parametrize("under", [torch.no_grad, torch.inference_mode])
def test_what_moves_a_version(how: str, under: Callable[[], Any]) -> None:
    """Every operation of torch on the tensor, or on one that shares its counter; not .data, not numpy."""
    parameter = torch.nn.Parameter(torch.rand(4) + 1)
    watched = watch([parameter])[0]
    with under():
        (SEEN | UNSEEN)[how](parameter)
    assert watched.changed == (how in SEEN)


def test_samples_see_what_changes_all_and_comparing_sees_everything() -> None:
    """One changed element may escape the samples, a change of all never; a comparison misses neither."""
    source, copy = torch.rand(1 << 20), torch.zeros(1 << 20)
    span = Span(source.data_ptr(), copy.data_ptr(), source.nbytes, source)
    probe = Probe([span], random.Random(1))
    Copying([span]).work()
    assert probe.found_again()
    assert same([span])
    copy.mul_(0.999)
    assert not probe.found_again()
    copy.copy_(source)
    copy[500_000] += 1
    assert not same([span])


def test_any_number_of_threads_carry_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte arrives, and the end is known only then."""
    monkeypatch.setattr(window, "_PIECE", 1000)
    tensors = [torch.rand(n) for n in (1, 999, 12_345, 0, 50_000)]
    copies = [torch.zeros_like(t) for t in tensors]
    copying = Copying(
        [Span(a.data_ptr(), b.data_ptr(), a.nbytes, a) for a, b in zip(tensors, copies, strict=True)]
    )
    threads = [threading.Thread(target=copying.finish) for _ in range(4)]
    for thread in threads:
        thread.start()
    copying.finish()
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    for thread in threads:
        thread.join()
    assert Copying([]).done.is_set()


def test_a_copy_that_is_interrupted_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in one thread that carries it, out of a signal's handler say: the others hear of it and end."""
    monkeypatch.setattr(window, "_PIECE", 1000)
    source, copy = torch.rand(50_000), torch.zeros(50_000)
    copying = Copying([Span(source.data_ptr(), copy.data_ptr(), source.nbytes, source)])
    begun, ended = threading.Event(), list[BaseException]()
    move = window.ctypes.memmove

    def memmove(*args: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.wait(60)
            move(*args)
            return
        begun.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(window.ctypes, "memmove", memmove)

    def other() -> None:
        try:
            copying.finish()
        except Interrupted as error:
            ended.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        copying.finish()
    thread.join(60)
    assert len(ended) == 1


def test_a_compiled_step_tells_each_time() -> None:
    """What is done before an update is not traced with it, where it would go on with what stood there at the trace."""
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    seen = []
    kept = Sources([optimizer], (), lambda: seen.append((torch.compiler.is_compiling(), parameter._version)))
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        step()
    assert [compiling for compiling, _ in seen] == [False] * 3
    assert len({version for _, version in seen}) == 3
    assert kept.movable()


def test_what_was_made_in_inference_mode_is_copied_at_the_boundary() -> None:
    """It has no version by which a change could be seen."""
    with torch.inference_mode():
        base = torch.nn.Linear(2, 2).requires_grad_(False)
    assert not Sources((), [base], lambda: None).movable()
    assert Sources((), [torch.nn.Linear(2, 2).requires_grad_(False)], lambda: None).movable()


def test_trust_is_earned_checked_and_lost() -> None:
    """Three rehearsals, then meanwhile, every fiftieth rehearsed; once more at once after a change seen; never
    again after two of them, or one that torch does not see."""
    trust = Trust()
    assert [trust.next() for _ in range(5)] == [Mode.REHEARSED] * 3 + [Mode.MEANWHILE] * 2
    found = [trust.next() for _ in range(100)]
    assert [n + 6 for n, mode in enumerate(found) if mode is Mode.REHEARSED] == [50, 100]
    assert trust.changed()
    assert [trust.next(), trust.next()] == [Mode.AT_ONCE, Mode.MEANWHILE]
    assert not trust.changed()
    assert {trust.next() for _ in range(60)} == {Mode.AT_ONCE}
    trust = Trust()
    trust.differed()
    assert trust.next() is Mode.AT_ONCE


def test_what_nothing_but_an_update_changes_may_be_copied_meanwhile() -> None:
    """Parameters that a hooked optimizer steps and its state, and those of a module that are not trained; not buffers,
    views of something larger, memory seen as another type, or what an optimizer has that does not tell."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    net[2].requires_grad_(False)
    flat = torch.rand(10)
    part = torch.nn.Parameter(flat[2:6])
    optimizer = torch.optim.AdamW([*net[:2].parameters(), part])
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    optimizer.step()
    told: list[bool] = []
    movable = Sources([optimizer], [net], lambda: told.append(True)).movable()
    optimizer.step()
    assert told == [True]
    state = _state(
        model=net.state_dict(),
        optimizer=optimizer.state_dict(),
        part=part,
        odd=net[0].weight.view(torch.int32),
    )
    found = {
        member.key: watched_by(component, movable) is not None
        for shard in take_state(state).shards
        for component in shard
        for member in component.members
    }
    assert found["model/1.weight"]
    assert found["optimizer/state/2/exp_avg"]
    assert not found["model/0.weight"]  # which is seen as integers too
    assert found["model/2.weight"]
    assert not any(found[key] for key in ("model/1.running_mean", "part"))
    assert not Sources([], [], lambda: None).movable()

    class Silent(torch.optim.SGD):
        def __init__(self) -> None:
            """Leaves out what an optimizer needs to have hooks."""

    assert not sources._hook(Silent(), lambda: None)


def test_a_nan_is_found_in_the_copy_of_a_part_alone() -> None:
    """In a tensor of a part, in whatever place; not in the gaps between views, in extra, or in a numpy array."""

    def sick(**parts: Any) -> bool:
        state = _state(**parts)
        state["extra"] = {"nan": torch.tensor([float("nan")])}
        taken = take_state(state)
        planned = plan(taken)
        buffer = Buffer(planned.size)
        copied = into(buffer, planned, Mode.AT_ONCE, {}).images()
        live = [image_of(taken, number) for number in range(len(taken.shards))]
        found = {_nan_in(copied), _nan_in(live), _streamed(taken)}
        assert len(found) == 1
        return found.pop()

    bad = torch.tensor([1.0, float("nan"), 2.0, float("inf")])
    assert sick(a=bad)
    assert sick(a={"b": [torch.rand(3), bad.to(torch.bfloat16)]})
    assert not sick(a=bad[2:])
    assert not sick(a=[bad[0:1], bad[2:3]])
    assert not sick(a=bad.numpy())
    assert sick(a=torch.full((9, 9), float("nan"), dtype=torch.float64)[:, ::2])
    assert not sick(a=bad[:1], b=bad[::2])
    assert sick(a=bad[:2].to(torch.float16))
    assert sick(a=bad[:2].to(torch.float8_e4m3fn))
    assert not sick(a=bad.view(torch.int32))
    assert sick(a=torch.view_as_complex(bad.view(2, 2)))
    assert not sick(a=torch.view_as_complex(bad.view(2, 2))[1:].conj())
    large = torch.zeros(3 * BLOCK // 4)
    assert not sick(a=large)
    large[-1] = float("nan")
    assert sick(a=large)


def _nan_in(images: Sequence[ShardImage | None]) -> bool:
    """Whether a NaN was seen as all blocks went by."""
    found = False
    for image in images:
        assert image is not None
        scratch = memoryview(bytearray(BLOCK))
        for start in range(0, image.size, BLOCK):
            image.block(start, scratch[: min(BLOCK, image.size - start)])
        found |= image.nan
    return found


def _streamed(taken: Taken) -> bool:
    """The same where a file can't be laid out."""
    return any(has_nan(taken.tensors(number, PARTS)) for number in range(len(taken.shards)))


def test_the_main_thread_is_asked_between_its_operations() -> None:
    """Another thread's call is done by the main thread, soon, and not within an operation's own Python."""
    called: list[int] = []
    thread = threading.Thread(
        target=flight.between_operations, args=(lambda: called.append(threading.get_ident()),)
    )
    thread.start()
    wait_until(lambda: bool(called), 30, "the call")
    assert called == [threading.main_thread().ident]
    thread.join()
    assert not flight._waiting


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_is_what_machine_and_control_groups_leave(tmp_path: Path) -> None:
    """The least of MemAvailable and of each group's limit, less what is used and not given back; both versions."""
    machine = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n"}
    assert available(_write(tmp_path / "a", machine)) == 4 << 30
    assert available(tmp_path / "nothing") is None
    second = machine | {
        "proc/self/cgroup": "0::/slurm/job_7\n",
        "sys/fs/cgroup/slurm/memory.max": str(3 << 30),
        "sys/fs/cgroup/slurm/memory.current": str(2 << 30),
        "sys/fs/cgroup/slurm/memory.stat": f"anon 5\ninactive_file {512 << 20}\n",
        "sys/fs/cgroup/slurm/job_7/memory.max": "max\n",
    }
    assert available(_write(tmp_path / "b", second)) == (1 << 30) + (512 << 20)
    first = machine | {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/batch\n",
        "sys/fs/cgroup/memory/batch/memory.limit_in_bytes": str(1 << 30),
        "sys/fs/cgroup/memory/batch/memory.usage_in_bytes": str(3 << 28),
        "sys/fs/cgroup/memory/batch/memory.stat": "total_inactive_file 0\n",
    }
    assert available(_write(tmp_path / "c", first)) == 1 << 28
    assert (available() or 0) > 0


def test_a_limit_on_addresses_is_one_on_memory(tmp_path: Path) -> None:
    """Under `ulimit -v` what may still be mapped is what can be had, and a buffer that was taken over is mapped too."""
    assert addressable() is None
    machine = {"proc/meminfo": "MemAvailable: 4194304 kB\n", "proc/self/statm": f"{(1 << 30) // 4096} 5 5\n"}
    root, (soft, hard) = _write(tmp_path / "a", machine), resource.getrlimit(resource.RLIMIT_AS)
    fd = Buffer(10_000)
    buffers = Buffers()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, hard))
        assert available(root) == addressable(root) == 2 << 30
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + SPARE, hard))
        buffers.inherit(os.dup(fd.fd))
        buffers.prepare(10_000)
        buffers.settled()
        assert buffers.of(1) is None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_kills_for_lack_of_memory_are_counted_where_the_kernel_counts_them(tmp_path: Path) -> None:
    """Those of the control group in either version, else the machine's; None where nothing counts."""
    machine = {"proc/vmstat": "nr_free_pages 1\noom_kill 7\n"}
    assert oom_kills(_write(tmp_path / "a", machine)) == 7
    second = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.events": "oom 4\noom_kill 3\n"}
    assert oom_kills(_write(tmp_path / "b", machine | second)) == 3
    first = {
        "proc/self/cgroup": "4:memory:/job\n0::/\n",
        "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n",
    }
    assert oom_kills(_write(tmp_path / "c", machine | first)) == 2
    inside = {
        "proc/self/cgroup": "4:memory:/docker/0123\n0::/\n",
        "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 1\n",
    }
    assert oom_kills(_write(tmp_path / "d", machine | inside)) == 1, "of the container, not of the machine"
    assert oom_kills(tmp_path / "nothing") is None


def test_a_buffer_is_made_once_and_only_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large enough, it is used again; a larger one takes its place; with too little memory there is none."""
    assert aligned([1, 4096, 4097]) == [0, 4096, 8192, 16384]
    assert roomy(5, 5 + SPARE)
    assert not roomy(6, 5 + SPARE)
    assert not roomy(0, None)
    buffers = Buffers()
    assert buffers.of(1) is None
    buffers.prepare(10_000)
    buffers.settled()
    first = buffers.of(10_000)
    assert first is not None
    first.view[:3] = b"abc"
    buffers.prepare(5_000)
    assert buffers.of(5_000) is first
    assert buffers.of(12_289) is None  # it is made of whole pages
    buffers.prepare(20_000)
    buffers.settled()
    assert buffers.of(20_000) is not None
    monkeypatch.setattr("outlast_worker.buffer.available", lambda: SPARE)
    buffers = Buffers()
    buffers.prepare(10_000)
    buffers.settled()
    assert buffers.of(1) is None
