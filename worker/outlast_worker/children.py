"""Ending the script's own daemonic children by KILL, since a trainer's children do not heed TERM."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util  # its exit handler must be registered before ours, so that ours runs first
import os
import signal
import threading

_registered = threading.Event()
_JOIN = 2.0


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
    daemons = [child for child in multiprocessing.active_children() if child.daemon]
    if not daemons:
        return
    # torch raises in its SIGCHLD handler for a loader process that died by a signal.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in daemons:
        child.kill()
    for child in daemons:
        child.join(_JOIN)
