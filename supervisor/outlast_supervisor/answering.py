"""Says where a file system does not answer: whoever waits in the kernel can't say it, and no signal gets through."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from outlast_jobs.parallel import start_thread

LOOK = 5.0  # seconds between two looks; a wait that lasts from one to the next is told
_AGAIN = 60.0  # seconds after which it is told again


@contextlib.contextmanager
def answering(what: str) -> Iterator[None]:
    """While the block runs, say on stderr of waits of the calling thread that do not end; ``what`` is waited for.

    For blocks that wait for files and sleep no longer than a moment at a time.
    """
    ended = threading.Event()
    thread = threading.get_native_id()
    start_thread(lambda: _watch(thread, what, ended), "answering")  # without one nobody tells
    try:
        yield
    finally:
        ended.set()


def _watch(thread: int, what: str, ended: threading.Event) -> None:
    before, since, told = None, time.monotonic(), 0.0
    while not ended.wait(LOOK):
        now = time.monotonic()
        wait = _wait_of(thread)
        if wait is None or wait != before:
            if told:
                _say(f"{what} answers again")
            before, since, told = wait, now, 0.0
        elif not told or now - told >= _AGAIN:
            told = now
            _say(f"waiting for {what}: its file system has not answered for {now - since:.0f} s")


def _say(text: str) -> None:
    print(f"outlast: {text}", file=sys.stderr, flush=True)


def _wait_of(thread: int) -> int | None:
    """Which wait of a thread of ours this is, by the kernel's count; None where it runs, or none can be seen."""
    try:
        lines = Path(f"/proc/self/task/{thread}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = dict(line.partition(":")[::2] for line in lines.splitlines())
    if found.get("State", "R").strip().startswith("R"):
        return None
    count = found.get("voluntary_ctxt_switches", "").strip()
    return int(count) if count.isdecimal() else None
