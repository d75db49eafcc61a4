"""Live progress for the person at the terminal, and plain lines for everybody else; never in the way."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from outlast_jobs.units import format_duration

from .outlet import Outlet

EVERY = 0.1
"""Seconds between two drawings on a terminal."""
PLAIN_EVERY = 60.0
"""Seconds between two lines elsewhere, unless a new attempt begins to train."""
_MOST = 4000  # bytes in one write: less than the 4096 that a pipe which is ready takes without blocking
_HOLD_BACK = 200  # lines kept while nobody reads
_GAP = "  "  # between the parts of a line
_IDLE = frozenset({"clearing", "choosing", "launching", "waiting"})  # states without a worker


class Stream(Protocol):
    """A text stream with a descriptor."""

    def fileno(self) -> int: ...
    def isatty(self) -> bool: ...


class Progress:
    """Shows snapshots (the fields of status.json) and events on a stream.

    The loop that answers signals calls this, so nothing here waits: what a stopped terminal (Ctrl-S) or a
    full pipe does not take now is kept for later, and dropped, counted, when it becomes too much.
    """

    def __init__(
        self, stream: Stream | None = None, *, live: bool | None = None, color: bool | None = None
    ) -> None:
        stream = sys.stderr if stream is None else stream
        self._fd = stream.fileno()
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb" if live is None else live
        self._color = self._live and not os.environ.get("NO_COLOR") if color is None else color
        self._lines: list[str] = []
        self._dropped = 0
        self._line = ""
        self._drawn_at: float | None = None
        self._trained: object = None
        self._broken = False
        # A file never says that it is not ready, and waits with its disk. A terminal says that it is while it has
        # room for one byte, and waits for the rest, whose window may be at the end of a lost connection. Somebody
        # else writes there.
        mode = os.fstat(self._fd).st_mode
        self._outlet = Outlet(self._fd, _HOLD_BACK) if stat.S_ISREG(mode) or stat.S_ISCHR(mode) else None

    def update(self, snapshot: Mapping[str, Any], now: float | None = None) -> None:
        """Show where the run is; as often as the caller likes, drawn as often as a person can read."""
        now = time.monotonic() if now is None else now
        if self._drawn_at is None:  # elsewhere than on a terminal events tell how it begins
            self._drawn_at = now - EVERY if self._live else now
        due = now - self._drawn_at >= (EVERY if self._live else PLAIN_EVERY)
        if self._live:
            if due:
                self._drawn_at, self._line = now, describe(snapshot, time.time())
                self._draw()
            return
        # Events tell what the supervisor does; what only a snapshot knows is that an attempt trains.
        news = _trains(snapshot) and snapshot.get("attempt") != self._trained
        if news:
            self._trained = snapshot.get("attempt")
        if news or due:
            self._drawn_at = now
            self.event(describe(snapshot, time.time()))

    def event(self, text: str) -> None:
        """Tell something that happened, on a line of its own that stays."""
        for line in text.splitlines() or [""]:
            if len(self._lines) >= _HOLD_BACK:
                self._lines.pop(0)
                self._dropped += 1
            self._lines.append(line)
        self._draw()

    def close(self, last: Mapping[str, Any] | None = None) -> None:
        """Leave the last state on the screen, not what was drawn shortly before it, and the cursor below it."""
        if self._live and self._line:
            self._line = describe(last, time.time()) if last else self._line
            self._lines.append(_fit(self._line, self._width()))
            self._line = ""
        if self._outlet is not None:
            self._outlet.closing = True
        self._draw()
        if self._outlet is not None:
            self._outlet.close()

    def _draw(self) -> None:
        if not self._lines and self._outlet is not None and self._outlet.busy:
            return  # a line that is renewed is not worth keeping
        out: list[str] = []
        size = 0
        if self._dropped and self._lines:
            out.append(f"({self._dropped} lines were not shown: nobody was reading)")
        taken = 0
        for line in self._lines:
            size += len(line.encode(errors="replace")) + 16
            if size > _MOST // 2 and taken:
                break
            out.append(line[: _MOST // 4])
            taken += 1
        if self._live:
            clear = "\r\x1b[2K"
            body = "".join(f"{clear}{line}\n" for line in out)
            text = body + (clear + self._painted(_fit(self._line, self._width())) if self._line else "")
        else:
            text = "".join(f"{line}\n" for line in out)
        if text and self._write(text):
            del self._lines[:taken]
            self._dropped = 0
            if self._lines:
                self._draw()

    def _painted(self, line: str) -> str:
        if not self._color:
            return line
        head, mark, rest = line.partition(_GAP)
        return f"\x1b[1m{head}\x1b[0m{mark}{rest}"

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._fd).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> bool:
        """Whether the stream took it, without ever waiting for it."""
        if self._broken:
            return True
        if self._outlet is not None:
            return self._outlet.write(text.encode(errors="replace"))
        try:
            poller = select.poll()
            poller.register(self._fd, select.POLLOUT)
            if not any(mask & select.POLLOUT for _, mask in poller.poll(0)):
                return False
            data = text.encode(errors="replace")
            while data:
                data = data[os.write(self._fd, data) :]
        except BlockingIOError:
            return True  # half of a line is on the screen; sending it again would only make it worse
        except OSError:
            self._broken = True  # the terminal was closed; the run goes on
        return True


def _fit(line: str, width: int) -> str:
    """As many whole parts of a line as the terminal has room for; the first are the ones that matter."""
    while len(line) >= width and _GAP in line:
        line = line.rpartition(_GAP)[0]
    return line if len(line) < width else line[: max(width - 2, 0)] + "…"


def describe(snapshot: Mapping[str, Any], wall: float) -> str:
    """One line: name, step and total, steps at risk, what is wrong, loss, rate, time left, last save."""
    get = snapshot.get
    parts = [str(get("name") or "run")]
    trains = _trains(snapshot)
    if trains:
        parts.append(f"step {step_text(snapshot)}")
    else:
        parts.append("done" if get("done") is True else str(get("state") or "starting"))
    if get("phase") not in (None, "train"):
        parts.append(str(get("phase")))
    if risk := at_risk(snapshot):
        parts.append(f"at risk {risk}")
    if get("pending"):
        parts.append(str(get("pending")))
    parts.extend(f"{key}: {get(key)}" for key in ("unprotected", "violation") if get(key))
    if trains:
        parts.extend(measures(snapshot))
    save = get("last_save")
    if isinstance(save, Mapping) and (at := number(save.get("at"))) is not None:
        parts.append(f"saved {format_duration(max(0, round(wall - at)))} ago")
    return _GAP.join(parts)


def _trains(snapshot: Mapping[str, Any]) -> bool:
    if snapshot.get("phase") in ("import", "restore") or str(snapshot.get("state")) in _IDLE:
        return False
    return snapshot.get("step") is not None


def measures(snapshot: Mapping[str, Any]) -> list[str]:
    """Loss, rate and time left, as far as they are known."""
    get = snapshot.get
    parts = []
    loss = loss_text(get("loss"))
    if loss:
        parts.append(f"loss {loss}")
    if rate := rate_text(get("rate")):
        parts.append(rate)
    if left := left_text(get("eta")):
        parts.append(f"left {left}")
    return parts


def number(value: object) -> float | None:
    """A finite number, or None for whatever else a snapshot may hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= sys.float_info.max else None


def step_text(snapshot: Mapping[str, Any]) -> str:
    """The step, and of how many; empty before the first."""
    step, total = snapshot.get("step"), snapshot.get("total")
    return "" if step is None else f"{step}" + (f"/{total}" if total else "")


def left_text(seconds: object) -> str:
    """The time left, to the second."""
    value = number(seconds)
    return "" if value is None else format_duration(round(value))


def loss_text(loss: object) -> str:
    """A loss to four digits after the point, whatever form it came in."""
    try:
        return f"{float(loss):.4f}" if isinstance(loss, (int, float, str)) and loss != "" else ""
    except (ValueError, OverflowError):
        return str(loss)


def rate_text(rate: object) -> str:
    """Steps a second, or seconds a step where those are slow."""
    rate = number(rate)
    if rate is None or rate <= 0:
        return ""
    return f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.1f} s/step"


def at_risk(snapshot: Mapping[str, Any]) -> str:
    """What would be lost if the run died now."""
    steps, seconds = snapshot.get("steps_at_risk"), snapshot.get("seconds_at_risk")
    # Without a trainer that reports, no time is known and the steps say nothing.
    if steps is None or (not steps and seconds is None):
        return ""
    text = f"{steps} step" + ("" if steps == 1 else "s")
    return text + (f", {left_text(seconds)}" if steps and number(seconds) else "")
