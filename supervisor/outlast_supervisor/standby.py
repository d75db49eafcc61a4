"""The standby of a run: a process that has imported what takes long, and becomes the next worker at once."""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from outlast_jobs.contract import OURS
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.jobfile import Job
from outlast_jobs.pythoncommand import parse_python

from . import spawn

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds until one that died is made anew
ANSWER = 5.0  # seconds in which it takes its place, or is ended and a new process started
WARM = 600.0  # seconds after which one that is not ready has failed
_MOST = 1 << 16
_STUB = "from outlast_worker.standby import main; main()"


class Recipe(Struct, frozen=True):
    """What a standby is made from; only where this is the same it can be used."""

    command: tuple[str, ...]
    workdir: str
    preload: tuple[str, ...]
    env: Mapping[str, str]  # without what is told to each attempt anew

    @classmethod
    def of(cls, job: Job, environ: Mapping[str, str]) -> Recipe:
        """The recipe for a job's next worker."""
        env = spawn.worker_environment(environ, job.env, {})
        return cls(job.command, job.workdir, job.preload, {k: v for k, v in env.items() if k not in OURS})


def why_useless(made: Recipe, wanted: Recipe) -> str:
    """Why a process made from the one can't become what the other asks for; empty where it can. Pure."""
    for key, what in (("command", "command"), ("workdir", "workdir"), ("preload", "preload list")):
        if getattr(made, key) != getattr(wanted, key):
            return f"the job's {what} changed"
    names = sorted(k for k in {*made.env, *wanted.env} if made.env.get(k) != wanted.env.get(k))
    return f"the environment changed: {', '.join(names[:3])}" if names else ""


class _Child(Struct):
    recipe: Recipe
    process: subprocess.Popen[bytes]
    channel: socket.socket
    output: int  # a file in memory
    since: float  # monotonic seconds: of the start, or of the order to take its place
    state: str = "warming"  # ready, going
    memory: Mapping[str, int] = field(default_factory=dict)


class Standby(Struct):
    """Makes the standby, hands it its place, ends it. All calls come from the loop's own thread, the main one.

    ``attend`` and ``neglect`` have the loop call back when a descriptor can be read; ``tell`` speaks to people.
    """

    attend: Callable[[int, Callable[[], None]], None]
    neglect: Callable[[int], None]
    tell: Callable[[str, str], None]
    mark: Mapping[str, str]  # by which whoever comes after us finds it
    _child: _Child | None = None
    _dying: set[int] = field(default_factory=set)  # killed, not reaped yet
    _unfit: Recipe | None = None  # that brought none: not tried again before something changes
    _start_at: float = 0.0
    _wait: float = FIRST_WAIT
    _closed: bool = False
    _made_for: Job | None = None
    _waiter: tuple[Callable[[ProcessIdentity], None], Callable[[str], None]] | None = None

    # -- what is known -------------------------------------------------------------------------------------

    def theirs(self, pid: int) -> bool:
        """Whether a process is the standby: then it is nothing that an attempt left."""
        return pid in self._dying or (self._child is not None and self._child.process.pid == pid)

    @property
    def pending(self) -> bool:
        """Whether one still lives."""
        return bool(self._dying) or self._child is not None

    @property
    def ready(self) -> bool:
        """Whether one waits for its place."""
        return self._child is not None and self._child.state == "ready"

    def view(self) -> dict[str, Any] | None:
        """What the status says of it."""
        child = self._child
        return {"state": child.state, "pid": child.process.pid, **child.memory} if child else None

    def next_due(self) -> float | None:
        """When ``tick`` has something to do."""
        if self._child is None or self._child.state == "ready":
            return None
        return self._child.since + (ANSWER if self._child.state == "going" else WARM)

    # -- making --------------------------------------------------------------------------------------------

    def want(self, job: Job, now: float, *, tight: bool = False) -> None:
        """A worker has attached: have a standby for its successor, of the job as it is now; none where memory is
        ``tight``, which the worker needs more."""
        if tight:
            self._end()
            return
        if self._closed or self._dying or (self._child is not None and job is self._made_for):
            return
        if self._child is None and not (job.standby and now >= self._start_at):
            return
        recipe = Recipe.of(job, os.environ)
        if self._child is not None and (not job.standby or why_useless(self._child.recipe, recipe)):
            self._end()
        elif self._child is None and recipe != self._unfit:
            self._made_for = job
            try:
                self._start(recipe, now)
            except (OSError, subprocess.SubprocessError) as error:
                self._again(f"cannot be started: {error}", now)

    def _start(self, recipe: Recipe, now: float) -> None:
        command = parse_python(recipe.command)
        if isinstance(command, str):
            self._unfit = recipe
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output = os.memfd_create("outlast-standby", os.MFD_CLOEXEC)
        words = [command.interpreter, *command.options, "-c", _STUB, str(theirs.fileno())]
        try:
            process = spawn.standby(
                words, recipe.workdir, {**recipe.env, **self.mark}, output, theirs.fileno()
            )
            ours.setblocking(False)
            ours.send(json.dumps({"command": recipe.command, "preload": recipe.preload}).encode())
        except BaseException:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
        self._child = _Child(recipe, process, ours, output, now)
        self.attend(ours.fileno(), self._hear)

    # -- use -----------------------------------------------------------------------------------------------

    @property
    def ahead(self) -> float:
        """Seconds before its exec at which a worker is to be started; a standby takes its place within a moment."""
        return 0.0 if self.ready else spawn.FORK_AHEAD

    def start(
        self,
        order: spawn.Order,
        job: Job,
        log_fd: int,
        went: Callable[[ProcessIdentity], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Start the worker: the standby, or else a new process; one of both is called, now or later.

        The order's descriptors stay open until then.
        """

        def anew(why: str) -> None:
            if why:
                self.tell(f"the standby was of no use ({why}): starting a new process", "debug")
            try:
                worker = spawn.launch(order, log_fd)
            except (OSError, ValueError, subprocess.SubprocessError) as failure:
                failed(failure)
            else:
                went(worker)

        if not self.take(order, job, log_fd, went, anew):
            anew("")

    def take(
        self,
        order: spawn.Order,
        job: Job,
        log_fd: int,
        went: Callable[[ProcessIdentity], None],
        refused: Callable[[str], None],
    ) -> bool:
        """Have the standby become the worker; False where there is none that could.

        ``went`` is called with it once it has taken its place, ``refused`` with the reason once it is surely
        gone and has not. The descriptors of the order are sent along; they stay open here.
        """
        child = self._child
        if child is None or not self.ready:
            return False
        env = {k: v for k, v in order.env.items() if k not in OURS}
        wanted = Recipe(tuple(order.command), order.workdir, job.preload, env)
        if why := why_useless(child.recipe, wanted) or ("" if job.standby else "the job has none any more"):
            self._useless(why)
            return False
        words = {
            "command": list(order.command),
            "workdir": order.workdir,
            "env": dict(order.env),
            "blocked": sorted(order.blocked),
            "death": int(order.death),
        }
        fds = array.array("i", [log_fd, *order.inherited])
        try:
            child.channel.sendmsg(
                [json.dumps(words).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)],
                socket.MSG_DONTWAIT,
            )
        except OSError as error:
            self._useless(f"it can't be told: {error.strerror}")
            return False
        child.state, child.since = "going", time.monotonic()
        self._waiter = went, refused
        return True

    def _useless(self, why: str) -> None:
        self.tell(f"the standby can't be used: {why}; starting a new process", "info")
        self._end()

    def _hear(self) -> None:
        child = self._child
        while child is not None and child is self._child:
            try:
                data = child.channel.recv(_MOST)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:  # it has ended, or does so
                self.neglect(child.channel.fileno())
                child.channel.close()
                return
            try:
                self._told(child, json.loads(data))
            except (ValueError, KeyError, TypeError, AttributeError):
                self._end()

    def _told(self, child: _Child, words: dict[str, Any]) -> None:
        if "ready" in words:
            child.state = "ready"
            child.memory = {key: int(size) for key, size in words["memory"].items() if key in ("uss", "pss")}
            self._wait = FIRST_WAIT
        elif "went" in words and child.state == "going":
            identity = ProcessIdentity.of_child(child.process.pid)
            waiter, self._waiter = self._waiter, None
            self._give_up(child)
            if waiter is not None:
                waiter[0](identity)
        elif "refused" in words:
            if child.state == "going":
                self._useless(str(words["refused"]))
            else:
                self._unfit = child.recipe  # it would be the same the next time
                self.tell(f"no standby for this job: {words['refused']}", "warning")
                self._end()

    # -- ends ----------------------------------------------------------------------------------------------

    def ended(self, pid: int, code: int) -> bool:
        """A child of the supervisor ended; whether it was this one."""
        if pid in self._dying:
            self._dying.discard(pid)
            self._fall_back("it did not take its place")
            return True
        if self._child is None or self._child.process.pid != pid:
            return False
        self._hear()  # its last word may wait there
        child = self._child
        if child is None:  # it went, and has ended as the worker
            return False
        if child.process.pid in self._dying:
            return self.ended(pid, code)
        tail = _tail(child.output)
        self._give_up(child)
        if not self._fall_back(f"it ended with {code}"):
            self._again(f"ended with {code}{f': {tail}' if tail else ''}", time.monotonic())
        return True

    def tick(self, now: float) -> None:
        """End one that takes too long."""
        due = self.next_due()
        if due is not None and now >= due:
            self._end()

    def close(self) -> None:
        """No more of them: the supervisor ends."""
        self._closed = True
        if self._child is not None:
            self._end()

    def _fall_back(self, why: str) -> bool:
        """The standby is surely gone: whoever waits for it to go starts a process instead."""
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return False
        waiter[1](why)
        return True

    def _again(self, why: str, now: float) -> None:
        self.tell(f"the standby {why}; the next one in {self._wait:.0f} s", "info")
        self._start_at = now + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)

    def _end(self) -> None:
        """KILL it: it has nothing to save, and heeds nothing else. It is a child not reaped yet."""
        child = self._child
        if child is not None:
            self._dying.add(child.process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process.pid, signal.SIGKILL)
            self._give_up(child)

    def _give_up(self, child: _Child) -> None:
        if child.channel.fileno() >= 0:
            self.neglect(child.channel.fileno())
            child.channel.close()
        os.close(child.output)
        self._child = None


def _tail(output: int) -> str:
    size = os.fstat(output).st_size
    lines = os.pread(output, 2000, max(0, size - 2000)).decode(errors="replace").splitlines()
    return lines[-1][:300] if lines else ""
