"""Ending the script's own pools, and its daemonic children by KILL, since a trainer's children do not heed TERM."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util  # its exit handler must be registered before ours, so that ours runs first
import os
import signal
import threading
from multiprocessing.process import BaseProcess

_registered = threading.Event()
_JOIN = 2.0
_POOLS = 15  # the priority of what ends them, among multiprocessing's exit handlers


def end_daemons_at_exit() -> None:
    """Before multiprocessing's exit handler, which sends TERM to daemonic children and waits for ever.

    A forked child has inherited our handler, which does nothing there: TERM would not end it.
    """
    if not _registered.is_set():
        _registered.set()
        atexit.register(_end_daemons, os.getpid())


def _end_daemons(owner: int) -> None:
    if os.getpid() != owner:
        return
    daemons = _daemons()
    if not daemons:
        return
    # torch raises in its SIGCHLD handler for a loader process that died by a signal.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _end_pools()
    daemons = _daemons()
    _kill(daemons)
    for child in daemons:
        child.join(_JOIN)


def _end_pools() -> None:
    """As they do by themselves: a worker that is killed takes along a lock for which its pool would wait for ever.

    One that is busy heeds no TERM where it was forked, and is killed while its pool waits for its end.
    """
    end = getattr(multiprocessing.util, "_run_finalizers", None)
    if end is None:
        return
    signal.signal(signal.SIGALRM, lambda *_: _kill(_daemons()))
    signal.setitimer(signal.ITIMER_REAL, _JOIN, _JOIN)
    try:
        end(_POOLS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _daemons() -> list[BaseProcess]:
    return [child for child in multiprocessing.active_children() if child.daemon]


def _kill(children: list[BaseProcess]) -> None:
    for child in children:
        child.kill()
