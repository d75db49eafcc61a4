"""A system that gives no more threads or files, as at `ulimit -u`, the pids.max of a control group, `ulimit -n`."""

from __future__ import annotations

import contextlib
import os
import resource
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


@contextlib.contextmanager
def no_more_files(pid: int = 0, *, but_one: bool = False) -> Iterator[None]:
    """Within the block a process, by default this one, can open nothing; what it has open stays.

    With ``but_one``, which is for this process, one file at a time can be opened.
    """
    limit = 0
    if but_one:
        limit = os.open(os.devnull, os.O_RDONLY) + 1  # the lowest number that is free
        os.close(limit - 1)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
