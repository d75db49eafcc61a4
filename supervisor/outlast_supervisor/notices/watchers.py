"""The supervisor's side of spot notices: a child for each cloud, started again when it dies, and what it says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from .. import events as ev
from ..spawn import by_shell

if TYPE_CHECKING:
    from .words import Told

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds until a child that died is started again
LIVED = 60.0  # seconds after which a death is a new one
EARLY = 5.0
"""Seconds by which an end is taken to come before its time: vendors call it approximate, clocks are told to the
second, and after the save we have to leave, and perhaps to have a job queued again."""
MOST = 64 << 10  # bytes kept of a line without an end


class _Child(Struct):
    cloud: str
    process: subprocess.Popen[bytes]
    pipe: int
    since: float
    rest: bytes = b""


class Watchers(Struct):
    """Starts the children, reads them and hands on what they say.

    ``attend(fd, callback)`` has the loop call back when a descriptor can be read, ``neglect(fd)`` no longer;
    ``know(source, at)`` takes an end on the monotonic clock, None takes it back.
    """

    attend: Callable[[int, Callable[[], None]], None]
    neglect: Callable[[int], None]
    know: Callable[[str, float | None], None]
    post: Callable[[ev.Event], None]
    tell: Callable[[str, str], None]
    _children: dict[int, _Child] = field(default_factory=dict)  # by pid
    _dying: set[int] = field(default_factory=set)  # killed, not reaped yet
    _start_at: dict[str, float] = field(default_factory=dict)  # clouds that wait for their child
    _waits: dict[str, float] = field(default_factory=dict)
    _ends: dict[str, str] = field(default_factory=dict)  # source: the deadline's name
    _guessed: set[str] = field(default_factory=set)
    _saved: set[tuple[str, str]] = field(default_factory=set)
    _sources: dict[str, set[str]] = field(default_factory=dict)  # cloud: what it has spoken of

    def want(self, clouds: Sequence[str], now: float) -> None:
        """Watch these clouds from now on, and no others."""
        for child in list(self._children.values()):
            if child.cloud not in clouds:
                self._forget(child)
        for cloud in [*self._sources]:
            if cloud not in clouds:
                for source in self._sources.pop(cloud):
                    self._take_back(source)
        watched = {child.cloud for child in self._children.values()}
        self._start_at = {cloud: self._start_at.get(cloud, now) for cloud in clouds if cloud not in watched}

    def theirs(self, pid: int) -> bool:
        """Whether a process is one of the children: then it is nothing that an attempt left."""
        return pid in self._children or pid in self._dying

    def tick(self, now: float) -> None:
        """Start the children whose time has come."""
        for cloud in [cloud for cloud, at in self._start_at.items() if now >= at]:
            del self._start_at[cloud]
            try:
                self._start(cloud, now)
            except OSError as error:
                self._again(cloud, f"cannot be started: {error.strerror or error}", now)

    def next_due(self) -> float | None:
        """When the next child is to be started."""
        return min(self._start_at.values(), default=None)

    def ended(self, pid: int, code: int) -> bool:
        """A child of the supervisor ended; whether it was one of these."""
        child = self._children.get(pid)
        if child is None:
            dying = pid in self._dying
            self._dying.discard(pid)
            return dying
        self._hear(child)
        self._forget(child, alive=False)
        now = time.monotonic()
        if now - child.since >= LIVED:
            self._waits.pop(child.cloud, None)
        self._again(child.cloud, f"ended with {code}", now)
        return True

    def close(self) -> None:
        """End all children: the supervisor ends."""
        self._start_at.clear()
        for child in list(self._children.values()):
            self._forget(child)

    def _again(self, cloud: str, why: str, now: float) -> None:
        wait = self._waits.get(cloud, FIRST_WAIT)
        self._waits[cloud] = min(2 * wait, LONGEST_WAIT)
        self._start_at[cloud] = now + wait
        self.tell(f"the watch for notices of {cloud} {why}; starting it again in {wait:.0f} s", "warning")

    def _start(self, cloud: str, now: float) -> None:
        # -P: the folder that we were started in may hold a json.py of the training's
        words = [sys.executable, "-P", "-m", "outlast_supervisor.notices.watch", str(os.getpid()), cloud]
        process = subprocess.Popen(
            by_shell(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process.returncode = 0  # reaped by the loop
        pipe = os.dup(process.stdout.fileno()) if process.stdout else -1
        if process.stdout:
            process.stdout.close()
        os.set_blocking(pipe, False)
        child = _Child(cloud, process, pipe, now)
        self._children[process.pid] = child
        self.attend(pipe, lambda: self._hear(child))

    def _forget(self, child: _Child, *, alive: bool = True) -> None:
        del self._children[child.process.pid]
        self._shut(child)
        if alive:  # not reaped yet, so its pid is still its own
            self._dying.add(child.process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process.pid, signal.SIGKILL)

    def _shut(self, child: _Child) -> None:
        if child.pipe >= 0:
            self.neglect(child.pipe)
            os.close(child.pipe)
            child.pipe = -1

    def _hear(self, child: _Child) -> None:
        from .words import decode  # only where notices are asked for

        while child.pipe >= 0:
            try:
                data = os.read(child.pipe, MOST)
            except BlockingIOError:
                return
            if not data:
                self._shut(child)
                return
            *lines, rest = (child.rest + data).split(b"\n")
            child.rest = rest[-MOST:]
            for line in lines:
                if (told := decode(line)) is not None:
                    self._told(child.cloud, told)

    def _told(self, cloud: str, told: Told) -> None:
        self._sources.setdefault(cloud, set()).add(told.source)
        match told.kind:
            case "end":
                self._end(told)
            case "none":
                if told.source in self._ends:
                    self.tell(f"{told.source} was taken back", "warning")
                self._take_back(told.source)
            case "save":
                if (told.source, told.key) not in self._saved:
                    self._saved.add((told.source, told.key))
                    self.tell(f"{told.source}: {told.text}", "warning")
                    self.post(ev.SaveAsked(f"{told.source}: {told.text}", ""))
            case "trouble":
                self.tell(f"{told.source} cannot be asked for: {told.text}", "warning")
            case "well":
                self.tell(f"{told.source} can be asked for again", "info")

    def _end(self, told: Told) -> None:
        name = f"{told.source}: {told.text}"
        if told.guessed and told.source in self._guessed:
            return  # a child that was started anew counts from its own first look
        (self._guessed.add if told.guessed else self._guessed.discard)(told.source)
        left = told.at - time.monotonic()
        self.tell(f"{name}: {max(0.0, left):.0f} s left", "warning")
        before = self._ends.get(told.source)
        self._ends[told.source] = name
        self.know(name, told.at - EARLY)
        if before is not None and before != name:
            self.know(before, None)

    def _take_back(self, source: str) -> None:
        self._guessed.discard(source)
        name = self._ends.pop(source, None)
        if name is not None:
            self.know(name, None)
