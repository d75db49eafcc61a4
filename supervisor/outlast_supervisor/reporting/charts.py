"""The pictures of a report: the loss by step, and the attempts in time, as SVG that stands for itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from outlast_jobs.units import format_duration
from outlast_supervisor.reporting.gather import Gathered
from outlast_supervisor.reporting.goodput import Stretch
from outlast_supervisor.reporting.ticks import log_ticks, round_ticks, time_ticks
from outlast_supervisor.views import when

_WIDE, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 64, 16, 12, 30
_HIGH = 320
_LANE = 34
# times; where the highest is so many times the lowest, a linear axis shows only the beginning
_LOG_FROM = 30.0
_MOST_RESUMED = 80  # lines at which attempts went on; more would hide the curve


def loss_chart(found: Gathered) -> str:
    """The loss by step; paler what was trained and does not count. Empty where no step has a finite loss."""
    main = list(found.loss)
    branches = [points for points in map(list, found.lost.values()) if points]
    if not main and not branches:
        return ""
    steps = [step for points in (main, *branches) for step, _ in points]
    low, high = _range(main or [point for points in branches for point in points])
    logarithmic = low > 0 and high / low >= _LOG_FROM
    x = _scale(min(steps), max(steps), _LEFT, _WIDE - _RIGHT)
    y = _scale(low, high, _HIGH - _BOTTOM, _TOP, logarithmic=logarithmic)
    parts = [_y_axis(log_ticks(low, high) if logarithmic else round_ticks(low, high), y)]
    parts += [_x_mark(x(tick), f"{tick:,.0f}") for tick in round_ticks(min(steps), max(steps), 8)]
    for step in found.resumed if len(found.resumed) <= _MOST_RESUMED else ():
        parts.append(
            f'<line class="resumed" x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{_TOP}" y2="{_HIGH - _BOTTOM}">'
            f"<title>an attempt went on at step {step:,}</title></line>"
        )
    for points in branches:
        parts.append(_line("lost", points, x, y))
    parts.append(_line("loss", main, x, y))
    scale = ", logarithmic" if logarithmic else ""
    return _svg(_HIGH, f"loss by step{scale}, from {main[0][0] if main else 0} on", parts)


def attempts_chart(found: Gathered) -> str:
    """A lane a host, an attempt's parts in their colours. Empty where there was no attempt."""
    if not found.attempts:
        return ""
    hosts = list(dict.fromkeys(one.attempt.host for one in found.attempts))
    since, until = found.goodput.began, max(found.goodput.until, found.goodput.began + 1.0)
    x = _scale(since, until, _LEFT, _WIDE - _RIGHT)
    high = _TOP + _LANE * len(hosts) + _BOTTOM
    ticks, written = time_ticks(since, until)
    parts = [_x_mark(x(tick), written(tick), high) for tick in ticks]
    for lane, host in enumerate(hosts):
        top = _TOP + _LANE * lane
        parts.append(
            f'<text class="mark end" x="{_LEFT - 8}" y="{top + _LANE / 2 + 4:.0f}">{escape(host[:9])}</text>'
        )
        for one in found.attempts:
            if one.attempt.host == host:
                parts.append(_attempt(one, x, top))
    return _svg(high, "the attempts in time", parts)


def _attempt(one: Stretch, x: Callable[[float], float], top: int) -> str:
    boxes = []
    for name, since, until in one.parts:
        if until > since:
            wide = max(x(until) - x(since), 0.4)
            boxes.append(
                f'<rect class="{name}" x="{x(since):.2f}" y="{top + 6}" width="{wide:.2f}" height="{_LANE - 12}"/>'
            )
    if not boxes:  # it lived for no time that a clock shows
        boxes = [
            f'<rect class="starting" x="{x(one.begins):.2f}" y="{top + 6}" width="1" height="{_LANE - 12}"/>'
        ]
    lived = format_duration(max(0, round(one.ends - one.begins)))
    says = f"attempt {one.attempt.number}, {when(one.begins)}, {lived}: {one.end}"
    return f"<g><title>{escape(says)}</title>{''.join(boxes)}</g>"


def _range(points: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """From the lowest to the highest, with something between where they are one."""
    values = [value for _, value in points]
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)


def _scale(
    low: float, high: float, begin: float, end: float, *, logarithmic: bool = False
) -> Callable[[float], float]:
    """From a value to a place. What is beyond an end is put at that end."""
    of: Callable[[float], float] = math.log10 if logarithmic else float
    first, last = of(low), of(high)

    def place(value: float) -> float:
        if last <= first:
            return begin
        inside = min(max(value, low), high)
        return begin + (of(inside) - first) / (last - first) * (end - begin)

    return place


def _line(
    name: str, points: Sequence[tuple[int, float]], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    if len(points) == 1:
        return f'<circle class="{name}" cx="{x(points[0][0]):.1f}" cy="{y(points[0][1]):.1f}" r="1.5"/>'
    places = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
    return f'<polyline class="{name}" points="{places}"/>'


def _y_axis(ticks: Iterable[float], y: Callable[[float], float]) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="mark end" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}">{tick:.4g}</text>'
        for tick in ticks
    )


def _x_mark(at: float, text: str, high: int = _HIGH) -> str:
    foot = high - _BOTTOM
    return (
        f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{foot}"/>'
        f'<text class="mark middle" x="{at:.1f}" y="{foot + 18}">{text}</text>'
    )


def _svg(high: int, label: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDE} {high}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )
