"""Carrying out an attack: signals to whom they are meant for, a disk that takes no more, and rot."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from outlast_jobs.generation import INDEX
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.jobfile import Signals
from outlast_jobs.verify import scan
from outlast_supervisor import processes

from .model import Act, Attack, Target
from .supervised import ScratchRun

STOPPED_FOR = 1.0
"""Seconds between STOP and CONT."""
_ROOM = 256 << 10  # bytes that the log and the metrics may grow while files are limited

Undo = Callable[[], None]


class CannotTry(Exception):
    """This attack can't be made here; its text says why."""


def signals_of(attack: Attack, signals: Signals) -> int:
    """The number of the signal that an attack sends: what means stop and save is the job's to say."""
    to_worker = attack.target in (Target.TRAINER, Target.GROUP)
    match attack.act:
        case Act.TERM:
            return signal.Signals[signals.stop] if to_worker else signal.SIGTERM
        case Act.USR1:
            return signal.Signals[signals.save] if to_worker else signal.SIGUSR1
        case Act.STOP | Act.HANG:
            return signal.SIGSTOP
        case _:
            return signal.SIGKILL


def send(attack: Attack, scratch: ScratchRun, worker: ProcessIdentity | None, number: int) -> None:
    """Send it. Who stands at a gate goes on afterwards, unless it was stopped or killed."""
    if attack.target is Target.RUN:
        scratch.send_all(number)
    elif attack.target is Target.SUPERVISOR:
        scratch.signal(number)
    elif worker is None:
        raise CannotTry("no worker is there to be struck")
    elif attack.target is Target.GROUP:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(worker.pid), number)
    else:
        processes.send(worker, number)
    if attack.act is Act.STOP:
        time.sleep(STOPPED_FOR)
        send(Attack(attack.point, Act.USR1, attack.target), scratch, worker, signal.SIGCONT)
    elif attack.act is Act.HANG:
        scratch.gate.stopped = None  # what it waits for now is the run's own rule
    else:
        scratch.gate.release()


def full_disk(scratch: ScratchRun, worker: ProcessIdentity) -> tuple[str, Undo]:
    """No file of the trainer may grow to the size of a save, by the kernel's own limit where that is possible.

    Where its log is longer than a save's files, opening a file among the checkpoints fails as without inodes.
    """
    largest = max((p.stat().st_size for g in scan(scratch.run.checkpoints) for p in g.iterdir()), default=0)
    written = [*scratch.run.logs.glob("*.log"), *scratch.run.metrics.glob("*.jsonl")]
    least = max((path.stat().st_size for path in written), default=0) + _ROOM
    if least < largest:
        _, hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (least, hard))

        def lift() -> None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (hard, hard))

        return f"no file could grow over {least >> 10} KiB", lift
    scratch.gate.refuse(errno.ENOSPC)
    return "no file could be made (ENOSPC)", lambda: scratch.gate.refuse(None)


def read_only(scratch: ScratchRun) -> tuple[str, Undo]:
    """The folder of the checkpoints can't be written: by its mode, or for root by refusing (EROFS)."""
    if os.geteuid() == 0:
        scratch.gate.refuse(errno.EROFS)
        return "the checkpoints could not be written (EROFS)", lambda: scratch.gate.refuse(None)
    folder = scratch.run.checkpoints
    mode = folder.stat().st_mode & 0o7777
    folder.chmod(mode & ~0o222)
    return "the folder of the checkpoints lost its w bits", lambda: folder.chmod(mode)


def damage(act: Act, generation: Path, dealt: random.Random) -> str:
    """Have a generation rot, and say how."""
    members = sorted((p for p in generation.iterdir() if p.suffix == ".pt"), key=lambda p: p.stat().st_size)
    file = generation / INDEX if act is Act.INDEX or not members else members[-1]
    size = file.stat().st_size
    if act is Act.FLIP:
        place, bit = dealt.randrange(size), dealt.randrange(8)
        with file.open("r+b") as opened:
            opened.seek(place)
            (value,) = opened.read(1)
            opened.seek(place)
            opened.write(bytes([value ^ 1 << bit]))
        return f"bit {bit} of byte {place} of {file.name} was flipped"
    length = dealt.randrange(size)
    os.truncate(file, length)
    return f"{file.name} was cut from {size} to {length} bytes"
