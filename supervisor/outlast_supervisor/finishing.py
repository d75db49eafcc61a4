"""Have the save of a dead worker finished, by a small process that ends with us."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping

import msgspec

from outlast_jobs import events as journal
from outlast_jobs.contract import Env
from outlast_jobs.finisher import Finished

from . import events as ev
from . import spawn
from .chores import Desk, taken_over

_MOST = 1 << 16  # bytes of an answer


def finish_save(desk: Desk, fd: int, attempt: int, seconds: float) -> tuple[str, ev.Sealed | None]:
    """Finish it within so many seconds; what to tell of it, and that it is sealed. Closes the descriptor.

    From a helper, once nothing of the attempt is left and before the next one claims the checkpoints.
    """
    try:
        by = taken_over(desk)
        found = Finished(why=by) if by else _asked(desk, fd, attempt, seconds)
    finally:
        os.close(fd)
    if found.already:  # the worker came to that, and not to say so
        return "", None
    data = {"attempt": attempt, "generation": found.generation, "ok": not found.why, "reason": found.why}
    desk.record(journal.SAVE_FINISHED, {**data, "seconds": round(found.seconds, 3)})
    what = f"the save of step {found.step}" if found.generation else "a save"
    if found.why:
        return f"{what}, in memory since before the worker's death, cannot be finished: {found.why}", None
    told = f"{what} was finished after the worker's death: {found.generation} is sealed"
    return told, ev.Sealed(found.generation, found.step, found.bytes, found.seconds, None)


def _asked(desk: Desk, fd: int, attempt: int, seconds: float) -> Finished:
    words = [sys.executable, "-P", "-m", "outlast_jobs.finisher", str(fd)]
    words += [str(desk.run.checkpoints.absolute()), desk.run_id, str(attempt)]
    process = subprocess.Popen(
        spawn.by_shell(words),
        stdin=subprocess.PIPE,  # it ends when this does
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(os.environ, desk, attempt),
        pass_fds=(fd,),
        start_new_session=True,
    )
    process.returncode = 0  # reaped by the loop
    with process:
        answer = _read(process, time.monotonic() + seconds)
    if answer is None:
        return Finished(why=f"it took longer than the {seconds:.0f} s that there were")
    try:
        return msgspec.json.decode(answer, type=Finished)
    except ValueError:
        return Finished(why="the process that was to do it ended without an answer")


def environment(base: Mapping[str, str], desk: Desk, attempt: int) -> dict[str, str]:
    """Ours without what is said to us alone, and the mark by which whoever comes after us finds it."""
    mark = {Env.RUN: str(desk.run.path.absolute()), Env.RUN_ID: desk.run_id, Env.ATTEMPT: str(attempt)}
    return spawn.worker_environment(base, {}, mark)


def _read(process: subprocess.Popen[bytes], until: float) -> bytes | None:
    """All that it says up to its end; None where that does not come in time."""
    if process.stdout is None:
        return None
    pipe, poller = process.stdout.fileno(), select.poll()
    poller.register(pipe, select.POLLIN)
    answer = b""
    while len(answer) < _MOST:
        left = until - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return None
        piece = os.read(pipe, _MOST)
        if not piece:
            break
        answer += piece
    return answer
