"""Loader processes: started under a signal shield, ended by KILL, and never outliving their trainer."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util  # its exit handler must be registered before ours, so that ours runs first
import os
import select
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch.utils.data

from outlast_jobs.contract import Env
from outlast_worker.scratch import make_temp_dir

_SHIELDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
_PR_SET_PDEATHSIG = 1
_END_SECONDS = 2.0  # bounds every wait for a process or thread that was told to end


# --- the shield ---------------------------------------------------------------------------------------


def shielded_signals() -> frozenset[signal.Signals]:
    """What clusters, terminals and the supervisor send to everybody, never meaning a loader process."""
    blocked = set(_SHIELDED)
    for variable in (Env.SIGNAL_SAVE, Env.SIGNAL_STOP, Env.SIGNAL_STACKS):
        name = "SIG" + os.environ.get(variable, "").upper().removeprefix("SIG")
        if name in signal.Signals.__members__:
            blocked.add(signal.Signals[name])
    return frozenset(blocked - {signal.SIGKILL, signal.SIGSTOP})


@contextlib.contextmanager
def shielded(start_method: str) -> Iterator[None]:
    """Processes started inside are born with the signals blocked, multiprocessing's own helpers included."""
    make_temp_dir()
    blocked = shielded_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        if start_method != "fork":
            multiprocessing.resource_tracker.ensure_running()
            # Starting the tracker unblocks INT and TERM in the caller, so it goes first and we block again.
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        if start_method == "forkserver":
            _preload_torch()
            multiprocessing.forkserver.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _preload_torch() -> None:
    """Let the fork server import torch once: without it each loader process takes seconds to do so."""
    server = getattr(multiprocessing.forkserver, "_forkserver", None)
    if getattr(server, "_preload_modules", None) == ["__main__"]:  # nobody chose otherwise
        multiprocessing.forkserver.set_forkserver_preload(["__main__", __name__])


# --- inside a loader process --------------------------------------------------------------------------


class LoaderInit(NamedTuple):
    """Runs first in every loader process."""

    trainer: int
    direct: bool  # the trainer's main thread is the parent: true under fork and spawn, not under forkserver
    blocked: frozenset[signal.Signals]
    user: Callable[[int], object] | None

    def __call__(self, worker_id: int) -> None:
        self._detach_signals()
        self._die_with_trainer()
        _show_own_dataset()
        if self.user is not None:
            self.user(worker_id)

    def _detach_signals(self) -> None:
        # Blocked is inherited and normally enough. Ignored as well: a resource tracker that the dataset
        # starts in here unblocks INT and TERM, and a fork server that was there before us shields nothing.
        signal.pthread_sigmask(signal.SIG_BLOCK, self.blocked)
        for number in self.blocked:
            signal.signal(number, signal.SIG_IGN)
        # Forked from the trainer: its handlers must not run here, nor its wake-up pipe be written to.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)

    def _die_with_trainer(self) -> None:
        if self.direct:
            with contextlib.suppress(OSError, AttributeError):  # a libc without prctl: the watch must do
                ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        watched = _death_of(self.trainer)  # which tells as well of one that died before the line above
        if watched:
            threading.Thread(target=_follow, args=(watched,), daemon=True, name="trainer-watch").start()


def _death_of(trainer: int) -> list[int]:
    """Descriptors of which one becomes readable when the trainer ends."""
    watched = []
    parent = multiprocessing.parent_process()
    if parent is not None:
        watched.append(parent.sentinel)
    try:
        watched.append(os.pidfd_open(trainer))
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # a kernel or a Python without pidfd: the sentinel alone, which a forked sibling can hold open a while
    return watched


def _follow(watched: Sequence[int]) -> None:
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def _show_own_dataset() -> None:
    """Let torch's ``get_worker_info().dataset`` be the user's dataset and not our wrapper around it."""
    info = torch.utils.data.get_worker_info()
    module = getattr(torch.utils.data, "_utils", None)
    worker = getattr(module, "worker", None)
    inner = getattr(getattr(info, "dataset", None), "dataset", None)
    if info is None or inner is None or not hasattr(worker, "_worker_info"):
        return
    shown = type(info)(id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=inner)
    worker._worker_info = shown  # type: ignore[union-attr]


# --- in the trainer -----------------------------------------------------------------------------------


class Pool:
    """One torch DataLoader iterator over an endless stream, and the end of its processes."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any], start_method: str) -> None:
        self._owner = os.getpid()
        self._processes: list[BaseProcess] = []
        self._iterator: Any = None
        others = set(multiprocessing.active_children())
        try:
            if loader.num_workers:
                with shielded(start_method), _on_cpu():
                    self._iterator = iter(loader)
                    self._processes = _started(self._iterator, others)
                _end_at_exit(self)
            else:
                with _on_cpu():
                    self._iterator = iter(loader)
        except BaseException:
            if self._iterator is None:  # it failed half way: what had been started would wait for ever
                _kill([child for child in multiprocessing.active_children() if child not in others])
            self.close()
            raise

    def next(self) -> Any:
        return next(self._iterator)

    def close(self) -> None:
        """End the processes at once. They hold no state, and with TERM blocked only KILL ends them."""
        iterator, self._iterator = self._iterator, None
        processes, self._processes = self._processes, []
        if iterator is None:
            return
        if os.getpid() != self._owner:  # a forked child's copy: not its processes
            iterator._shutdown = True
            return
        if processes:
            _disarm(iterator)
            _kill(processes)
            _close_queues(iterator)

    def __del__(self) -> None:
        if getattr(self, "_iterator", None) is not None:
            self.close()


def _on_cpu() -> contextlib.AbstractContextManager[object]:
    """Where torch's own draw from our generator is made, whatever `set_default_device` says."""
    if torch.get_default_device().type == "cpu":
        return contextlib.nullcontext()  # a context would be with the loader processes for good
    return torch.device("cpu")


def init_for(start_method: str, user: Callable[[int], object] | None) -> LoaderInit:
    """What every loader process of this trainer runs first."""
    # The parent-death signal follows the thread that forks, not the process: outside the main thread it
    # could come while the trainer is well.
    main = threading.current_thread() is threading.main_thread()
    return LoaderInit(os.getpid(), main and start_method != "forkserver", shielded_signals(), user)


def _started(iterator: Any, others: set[BaseProcess]) -> list[BaseProcess]:
    known = getattr(iterator, "_workers", None)
    if isinstance(known, list):
        return list(known)
    return [child for child in multiprocessing.active_children() if child not in others]


def _disarm(iterator: Any) -> None:
    """Take from torch what it would do about its loader processes: it would wait for them, or complain."""
    # Its SIGCHLD handler raises RuntimeError for a registered process that died by a signal.
    handling = getattr(getattr(torch.utils.data, "_utils", None), "signal_handling", None)
    forget = getattr(handling, "_remove_worker_pids", None)
    if forget is not None and getattr(iterator, "_worker_pids_set", False):
        forget(id(iterator))
        iterator._worker_pids_set = False
    # Its own shutdown sets an event whose lock a killed process may have taken with it, and joins 5 s each.
    iterator._shutdown = True
    iterator._shutdown_workers = lambda: None
    _end_pinning(iterator)


def _end_pinning(iterator: Any) -> None:
    """End the thread that pins memory, before a killed process leaves half a message in its queue."""
    thread = getattr(iterator, "_pin_memory_thread", None)
    done = getattr(iterator, "_pin_memory_thread_done_event", None)
    results = getattr(iterator, "_worker_result_queue", None)
    if thread is None or done is None or results is None:
        return
    done.set()
    results.put((None, None))
    thread.join(_END_SECONDS)


def _kill(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():  # also reaps, so that a pid already free is not signalled
            process.kill()
    for process in processes:
        process.join(_END_SECONDS)


def _close_queues(iterator: Any) -> None:
    for queue in (*getattr(iterator, "_index_queues", ()), getattr(iterator, "_worker_result_queue", None)):
        if queue is not None:
            # A killed process can hold the lock that the feeder thread waits for.
            queue.cancel_join_thread()
            queue.close()


_living: weakref.WeakSet[Pool] = weakref.WeakSet()
_registered = threading.Event()


def _end_at_exit(pool: Pool) -> None:
    _living.add(pool)
    if not _registered.is_set():
        _registered.set()
        atexit.register(_end_all)


def _end_all() -> None:
    for pool in list(_living):
        pool.close()
