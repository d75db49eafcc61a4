"""What a save that fails leaves behind for the next one: no room that is lost, and no name that counts."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from outlast_jobs import durable
from outlast_jobs.contract import Env, Schema
from outlast_jobs.verify import Verdict, look, scan
from outlast_worker.context import RunContext
from outlast_worker.notify import Notifier
from outlast_worker.sealing import Seals

RUN_ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def seals(checkpoints: Path, said: list[str]) -> Seals:
    environ = {Env.RUN: str(checkpoints.parent), Env.RUN_ID: RUN_ID, Env.ATTEMPT: "1"}
    context = RunContext.from_env(environ)
    assert context is not None
    return Seals(context, Notifier(None), said.append, lambda step: None)


def test_a_worker_that_is_told_so_takes_no_memory_for_copies(checkpoints: Path) -> None:
    """Where the attempt before may have died of that, the training waits for its saves."""
    environ = {Env.RUN: str(checkpoints.parent), Env.RUN_ID: RUN_ID, Env.ATTEMPT: "1"}
    found = []
    for told in ({}, {Env.NO_COPY: "1"}):
        context = RunContext.from_env(environ | told)
        assert context is not None
        its = Seals(context, Notifier(None), lambda text: None, lambda step: None)
        its.prepare([4096])
        its.meanwhile.buffers.settled()
        found.append(its.meanwhile.buffers.of(4096) is not None)
    assert found == [True, False]


def state(step: int) -> dict[str, Any]:
    counters = {"step": step, "epoch": 0, "batch_in_epoch": 0}
    return {
        "schema": Schema.META,
        "parts": {},
        "kinds": {},
        "counters": counters,
        "losses": [],
        "rng": {},
        "extra": {},
    }


def seal(seals: Seals, step: int, *, final: bool = False) -> bool:
    return seals.seal(state(step), reason="due", final=final, sick=False)


def names(checkpoints: Path) -> list[str]:
    return [path.name for path in scan(checkpoints)]


def test_a_name_whose_last_fsync_failed_is_never_acknowledged(
    checkpoints: Path, seals: Seals, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for the same step again it is not passed off as saved; the run's last one then has a name of its own."""
    real = durable.fsync_dir

    def fails(path: Path) -> None:
        if path == checkpoints:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path)

    monkeypatch.setattr(durable, "fsync_dir", fails)
    assert not seal(seals, 5)
    assert names(checkpoints) == ["step-000000005.a0001"]
    monkeypatch.undo()
    assert not seal(seals, 5)
    assert "whose last fsync failed" in said[-1]
    assert seals.newest is None
    assert seal(seals, 5, final=True)
    newest = checkpoints / "step-000000005.a0001.final"
    found = look(newest, RUN_ID, full=True)
    assert (str(seals.newest), found.verdict) == (newest.name, Verdict.VERIFIED)
    assert found.index is not None
    assert found.index.final


def test_what_could_not_be_removed_is_removed_before_room_is_looked_for(
    checkpoints: Path, seals: Seals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a save that stayed since its removal failed as well takes no room from the next, nor from all others."""

    def write(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stays(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", write)
        broken.setattr(os, "unlink", stays)
        assert not seal(seals, 5)
    writing = checkpoints / ".writing-0001"
    assert os.listdir(writing) == ["step-000000005.a0001"]

    def shortage(*_: Any) -> str | None:
        return "not enough space" if os.listdir(writing) else None

    monkeypatch.setattr("outlast_worker.sealing.shortage", shortage)
    assert seal(seals, 6)
    assert os.listdir(writing) == []
    assert names(checkpoints) == ["step-000000006.a0001"]
