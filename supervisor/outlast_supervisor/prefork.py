"""The next worker's process, forked while the present one runs: at a restart nothing is left to do but its exec."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import marshal
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity

from . import linux, processes, spawn

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds until one that died is made anew
ANSWER = 5.0  # seconds after which one that was given its place and is stopped is ended
_MOST = 1 << 16
_LIMITS = sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})


@dataclass(frozen=True)
class Answers:
    """Who is told what became of an order: exactly one of them, once."""

    went: Callable[[ProcessIdentity], None]  # it was executed
    failed: Callable[[OSError], None]  # it cannot be
    refused: Callable[[str], None]  # the process is surely gone and did not try: take another


@dataclass
class _Child:
    pid: int
    channel: socket.socket
    inherited: tuple[object, ...]
    told_at: float | None = None  # monotonic seconds, once it was given its place


@dataclass
class Prefork:
    """Makes the process, gives it its place, ends it. All calls come from the loop's own thread, the main one.

    It waits with all signals blocked, with no descriptor but its channel, and with KILL as parent-death signal.
    ``attend`` and ``neglect`` have the loop call back when a descriptor can be read; ``tell`` speaks to people.
    """

    attend: Callable[[int, Callable[[], None]], None]
    neglect: Callable[[int], None]
    tell: Callable[[str, str], None]
    _child: _Child | None = None
    _dying: set[int] = field(default_factory=set)  # killed or about to end, not reaped yet
    _start_at: float = 0.0
    _wait: float = FIRST_WAIT
    _closed: bool = False
    _answers: Answers | None = None

    def theirs(self, pid: int) -> bool:
        """Whether a process is the one that waits: then it is nothing that an attempt left."""
        return pid in self._dying or (self._child is not None and self._child.pid == pid)

    @property
    def pending(self) -> bool:
        """Whether one still lives."""
        return bool(self._dying) or self._child is not None

    def next_due(self) -> float | None:
        """When ``tick`` has something to do beside making one."""
        return self._child.told_at + ANSWER if self._child and self._child.told_at is not None else None

    def tick(self, now: float, running: bool) -> None:
        """Make one beside a running worker; end one that has its place and was stopped by somebody."""
        child = self._child
        if child is not None and child.told_at is not None and now >= child.told_at + ANSWER:
            if processes.is_stopped(child.pid):
                self._end(child)
            else:  # its file system is slow: its exec is not given up
                child.told_at = now
        if running and not (child or self._dying or self._closed) and now >= self._start_at:
            try:
                self._fork()
            except OSError as error:
                self._again(f"cannot be forked: {error.strerror}", now)

    def take(self, order: spawn.Order, log_fd: int, answers: Answers) -> bool:
        """Have the process become the worker; False where there is none that could.

        The descriptors of the order are sent along; they stay open here.
        """
        child = self._child
        if child is None or child.told_at is not None:
            return False
        if inherited() != child.inherited:
            self.tell("limits or the like changed: a new process is forked", "debug")
            self._end(child)
            return False
        payload = os.memfd_create("outlast-order", os.MFD_CLOEXEC)
        try:
            os.write(payload, marshal.dumps(_plain(order)))  # to memory: it is written whole
            fds = [payload, log_fd, *order.inherited]
            socket.send_fds(child.channel, [b"\n"], fds, socket.MSG_DONTWAIT)
        except (OSError, ValueError):  # it is dead, or has its order in words that cannot be sent
            self._end(child)
            return False
        finally:
            os.close(payload)
        child.told_at, self._answers = time.monotonic(), answers
        return True

    def ended(self, pid: int, code: int) -> bool:
        """A child of the supervisor ended; whether it was this one, and not the worker by then."""
        if pid in self._dying:
            self._dying.discard(pid)
            answers, self._answers = self._answers, None
            if answers is not None:
                answers.refused("it did not take its place")
            return True
        if self._child is None or self._child.pid != pid:
            return False
        self._hear()  # that it was executed may wait there
        if self._child is None:
            return self.ended(pid, code)
        self._give_up(self._child)
        self._again(f"ended with {code}", time.monotonic())
        return True

    def close(self) -> None:
        """No more of them: the supervisor ends."""
        self._closed = True
        if self._child is not None:
            self._end(self._child)

    # -- inside --------------------------------------------------------------------------------------------

    def _fork(self) -> None:
        # It has calls for before and after a fork, and a helper may be about to import it: then only those for after
        # would come, and complain about a lock that nobody took.
        import logging  # noqa: F401

        if not gc.get_freeze_count():
            gc.freeze()  # or each collection here would write to all pages that we share with the child
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor, before = os.getpid(), inherited()
        # until exec the child has our handlers, and what they note would reach us as a signal of our own
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _wait_for_the_place(theirs, supervisor)
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        ours.setblocking(False)
        self._child = _Child(pid, ours, before)
        self.attend(ours.fileno(), self._hear)

    def _hear(self) -> None:
        child = self._child
        if child is None:
            return
        try:
            data = child.channel.recv(_MOST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if child.told_at is None:  # it has ended, or does so
            self.neglect(child.channel.fileno())
            return
        self._give_up(child)
        if not data:  # closed by the exec, or by a death that is told as the worker's
            answers, self._answers, self._wait = self._answers, None, FIRST_WAIT
            if answers is not None:
                answers.went(ProcessIdentity.of(child.pid) or ProcessIdentity(child.pid, 0, ""))
            return
        self._dying.add(child.pid)  # by itself
        number, name = marshal.loads(data)
        if number and self._answers is not None:
            answers, self._answers = self._answers, None
            answers.failed(OSError(number, os.strerror(number), name))

    def _again(self, why: str, now: float) -> None:
        self.tell(f"the process that was forked ahead {why}; the next one in {self._wait:.0f} s", "debug")
        self._start_at = now + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)

    def _end(self, child: _Child) -> None:
        """KILL it: it has nothing to save, and heeds nothing else. It is a child not reaped yet."""
        self._dying.add(child.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        self._give_up(child)

    def _give_up(self, child: _Child) -> None:
        self.neglect(child.channel.fileno())
        child.channel.close()
        self._child = None


def inherited() -> tuple[object, ...]:
    """What a fork hands down and somebody may change from outside: limits, cgroups, processors, nice value.

    Where it is not what it was at the fork, a worker that is forked now would be another one.
    """
    me = os.getpid()  # the first thread, which is the one that forks
    files = tuple(_read(f"/proc/{me}/{name}") for name in ("cgroup", "oom_score_adj"))
    limits = tuple(resource.getrlimit(number) for number in _LIMITS)
    scheduling = os.getpriority(os.PRIO_PROCESS, me), os.sched_getscheduler(me), os.sched_getaffinity(me)
    return (*files, limits, *scheduling)


def _read(path: str) -> bytes:
    """A small file of the kernel's; nothing where it has none. By calls alone: a worker is waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _plain(order: spawn.Order) -> tuple[Any, ...]:
    """The order in words that need no module to be read: names of the program to try, and the rest as it is."""
    program = order.command[0]
    folders = [""] if "/" in program else order.env.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(folder, program) for folder in folders]
    where = (order.workdir, paths, list(order.command), dict(order.env))
    return (*where, int(order.death), [int(number) for number in order.blocked], order.start_at)


# -- in the child ------------------------------------------------------------------------------------------


def _wait_for_the_place(channel: socket.socket, supervisor: int) -> NoReturn:
    """What the child does from its first instant on; it ends here or is executed, and never returns."""
    try:
        gc.disable()  # nothing of the supervisor's is to be finalized, and no page of it touched
        signal.set_wakeup_fd(-1)
        linux.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != supervisor:  # it died between fork and prctl, so no signal will come
            os._exit(1)
        _withdraw(fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, 3), supervisor)
    finally:
        os._exit(1)


def _withdraw(fd: int, supervisor: int) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    # of the supervisor's descriptors one is the run's lock: it must be free at the death of its holder
    os.closerange(3, fd)
    os.closerange(fd + 1, 1 + max(map(int, os.listdir("/proc/self/fd"))))
    for number in signal.valid_signals():  # exec gives back what is handled, but not what is ignored
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    with socket.socket(fileno=fd) as channel:
        data, fds, _, _ = socket.recv_fds(channel, 1, 4)
        if not data:
            os._exit(0)  # nobody is there who could use us
        failure: tuple[int, str] = (0, "")
        try:
            failure = _take_the_place(fds, supervisor)
        finally:
            channel.send(marshal.dumps(failure))


def _take_the_place(fds: list[int], supervisor: int) -> tuple[int, str]:
    """Become the worker; returns only where it cannot be executed: the error's number, and what it is about."""
    payload, log, _, *buffer = fds  # and the run's `alive`, which the worker inherits as it does a buffer
    words = marshal.loads(os.pread(payload, os.fstat(payload).st_size, 0))
    workdir, paths, command, env, death, blocked, start_at = words
    if buffer:  # under another number than the supervisor's
        env[Env.BUFFER] = f"{buffer[0]}:{os.fstat(buffer[0]).st_ino}"
    for fd in (payload, log):  # recv_fds passes no flag on that would say so
        os.set_inheritable(fd, False)
    for number in signal.sigpending():  # what came while we were nobody is not the worker's
        while signal.sigtimedwait({number}, 0) is not None:
            pass
    try:
        os.chdir(workdir)
    except OSError as error:
        return error.errno or 0, workdir
    for standard in (1, 2):
        os.dup2(log, standard)
    time.sleep(min(spawn.FORK_AHEAD, max(0.0, start_at - time.monotonic())))
    signal.signal(death, signal.SIG_DFL)
    linux.set_parent_death_signal(death)
    if os.getppid() != supervisor:
        os._exit(128 + signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return _execute(paths, command, env)


def _execute(paths: list[str], command: list[str], env: dict[str, str]) -> tuple[int, str]:
    """As execvpe(3): the error that is told is the first that is not about a name that is not there."""
    told = 0
    last = 0
    for path in paths:
        try:
            os.execve(path, command, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            last = error.errno or 0
        except OSError as error:
            last = error.errno or 0
            told = told or last
    return told or last, command[0]
