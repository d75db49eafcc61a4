"""A system that gives no more threads, as at `ulimit -u` or the pids.max of a control group."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_NO_MACHINE_HAS = 1 << 46  # bytes for the stack of one thread


@contextlib.contextmanager
def no_more_threads() -> Iterator[None]:
    """Within the block no thread can be started in this process: the kernel refuses the memory for its stack."""
    before = threading.stack_size(_NO_MACHINE_HAS)
    try:
        yield
    finally:
        threading.stack_size(before)
