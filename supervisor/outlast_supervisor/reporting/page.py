"""A report as one HTML page: no script and nothing fetched, so that it can be mailed and kept."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from outlast_jobs.units import format_duration, format_size
from outlast_supervisor.reporting.charts import attempts_chart, loss_chart
from outlast_supervisor.reporting.gather import Gathered
from outlast_supervisor.reporting.goodput import Stretch
from outlast_supervisor.views import when

_ROWS = 300  # attempts in the table, the newest; the pictures and the sums have all
_NAMES = {
    "kept": "training that counts",
    "lost": "training that was done again, or has to be",
    "starting": "starting: imports, restore, first batch",
    "ending": "ending: saving, leaving, or no step came any more",
    "down": "no attempt was there, or it was suspended",
}

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #667; --line: #e3e5ea; --paper: #fff; --bad: #b3261e;
  --kept: #2f6fb2; --lost: #e08a3c; --starting: #9aa7b8; --ending: #6c5f9c; --down: #eceef2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ec; --soft: #9aa3b2; --line: #2c323c; --paper: #14171c;
  --bad: #ff8a80; --kept: #5b9bdf; --lost: #f0a45e; --starting: #5d6878; --ending: #9a8fd0; --down: #232831; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.6rem; margin: 0; } h1 small { font-size: 1rem; font-weight: 400; color: var(--soft); }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.sub, p.note, footer { color: var(--soft); margin: .2rem 0; } p.bad { color: var(--bad); margin: .2rem 0; }
.figures { display: flex; flex-wrap: wrap; gap: 1.2rem 2.4rem; margin: 1.2rem 0 0; padding: 0; list-style: none; }
.figures b { display: block; font-size: 1.35rem; font-weight: 600; } .figures span { color: var(--soft); }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.end { text-anchor: end; } .middle { text-anchor: middle; } .grid { stroke: var(--line); }
.resumed { stroke: var(--soft); stroke-dasharray: 2 4; opacity: .7; }
polyline { fill: none; stroke-linejoin: round; }
polyline.loss { stroke: var(--kept); stroke-width: 1.6; }
polyline.lost { stroke: var(--lost); stroke-width: 5; opacity: .5; }
circle.loss, rect.kept, i.kept { fill: var(--kept); background: var(--kept); }
circle.lost, rect.lost, i.lost { fill: var(--lost); background: var(--lost); }
rect.starting, i.starting { fill: var(--starting); background: var(--starting); }
rect.ending, i.ending { fill: var(--ending); background: var(--ending); }
i.down { background: var(--down); }
.bar { display: flex; height: 1.6rem; border-radius: 4px; overflow: hidden; } .bar i { display: block; }
table { border-collapse: collapse; width: 100%; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td.n, th.n { text-align: right; white-space: nowrap; }
td.name { white-space: nowrap; } td i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; }
@media print { body { margin: 0; max-width: none; } }
"""


def page(found: Gathered) -> str:
    """The whole page."""
    title = escape(f"{found.name}: {found.row.cells[2]}")
    body = "\n".join(_sections(found))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _sections(found: Gathered) -> Iterable[str]:
    yield f"<header><h1>{escape(found.name)} <small>{escape(found.row.cells[2])}</small></h1>"
    yield f'<p class="sub">{escape(found.path)}, as of {escape(when(found.now))}</p>'
    for note in found.row.notes:
        yield f'<p class="bad">{escape(note)}</p>'
    for damage in found.history.damage:
        yield f'<p class="bad">of the journal can&rsquo;t be read: {escape(damage)}</p>'
    yield f"{_figures(found)}</header>"
    yield "<main>"
    if chart := loss_chart(found):
        yield f"<h2>Loss by step</h2>{chart}{_about_loss(found)}"
    if chart := attempts_chart(found):
        yield f"<h2>The attempts in time</h2>{chart}"
        yield f"<h2>Where the time went</h2>{_bar(found)}{_shares(found)}"
        yield f"<h2>Attempts</h2>{_table(found)}"
    else:
        yield '<p class="note">No attempt was made yet.</p>'
    if found.row.details:
        yield f"<h2>As its supervisor left it</h2>{_details(found)}"
    yield "</main>"


def _figures(found: Gathered) -> str:
    goodput, cells = found.goodput, found.row.cells
    pairs = [(cells[3], "step"), (cells[4], "loss")]
    if goodput.share is not None:
        pairs.append((f"{goodput.share:.1%}", "goodput: of all the time, what counts"))
    if goodput.share_of_up is not None:
        pairs.append((f"{goodput.share_of_up:.1%}", "of the time in which an attempt was there"))
    pairs.append((str(len(found.attempts)), "attempts" if len(found.attempts) != 1 else "attempt"))
    if goodput.lost:
        pairs.append((f"{goodput.lost:,}", f"steps lost, beside {goodput.kept:,} that count"))
    if found.goodput.until > found.goodput.began:
        pairs.append((_duration(goodput.until - goodput.began), "from the first start on"))
    items = (f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in pairs if value)
    return f'<ul class="figures">{"".join(items)}</ul>'


def _about_loss(found: Gathered) -> str:
    says = []
    if found.lost:
        says.append("orange, beneath: what was trained and lost")
    if found.resumed:
        says.append("dotted: an attempt went on there")
    if odd := found.loss.odd:
        says.append(f"{odd:,} of the losses are not finite, the first at step {found.loss.first_odd:,}")
    if audit := found.history.last_audit:
        says.append(f"the last replay: {audit.get('text')}")
    return f'<p class="note">{escape("; ".join(says))}</p>' if says else ""


def _bar(found: Gathered) -> str:
    whole = sum(found.goodput.seconds.values()) or 1.0
    parts = (
        f'<i class="{name}" style="width:{found.goodput.seconds[name] / whole:.3%}" title="{escape(text)}"></i>'
        for name, text in _NAMES.items()
    )
    return f'<div class="bar">{"".join(parts)}</div>'


def _shares(found: Gathered) -> str:
    whole = sum(found.goodput.seconds.values()) or 1.0
    rows = (
        f'<tr><td><i class="{name}"></i> {escape(text)}</td><td class="n">{_duration(found.goodput.seconds[name])}'
        f'</td><td class="n">{found.goodput.seconds[name] / whole:.1%}</td></tr>'
        for name, text in _NAMES.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _table(found: Gathered) -> str:
    shown = found.attempts[-_ROWS:]
    left = len(found.attempts) - len(shown)
    note = f'<p class="note">{left:,} earlier attempts are in the pictures and sums only.</p>' if left else ""
    head = (
        '<tr><th class="n">attempt</th><th>host</th><th>started</th><th class="n">lived</th><th>from</th>'
        '<th class="n">steps</th><th class="n">lost</th><th>how it ended</th></tr>'
    )
    rows = "".join(_row(one) for one in reversed(shown))
    return f'<div class="wide"><table>{head}{rows}</table></div>{note}'


def _row(one: Stretch) -> str:
    attempt, trained = one.attempt, one.trained
    steps = f"{trained.first:,} to {trained.last:,}" if trained else ""
    lost = f"{trained.steps - trained.kept:,}" if trained and trained.steps > trained.kept else ""
    start = attempt.restored or attempt.resume or "the beginning"
    return (
        f'<tr><td class="n">{attempt.number}</td><td>{escape(attempt.host)}</td>'
        f'<td class="name">{escape(when(one.begins))}</td><td class="n">{_duration(one.ends - one.begins)}</td>'
        f'<td class="name">{escape(start)}</td><td class="n">{steps}</td><td class="n">{lost}</td>'
        f"<td>{escape(one.end)}</td></tr>"
    )


def _details(found: Gathered) -> str:
    pairs = [*found.row.details, *_saves(found)]
    rows = (f'<tr><th class="name">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in pairs)
    return f"<table>{''.join(rows)}</table>"


def _saves(found: Gathered) -> Iterable[tuple[str, str]]:
    """The generations that are there, as far as the journal tells."""
    kept = found.history.sealed
    if kept:
        size = sum(sealed.bytes or 0 for sealed in kept.values())
        yield (
            "kept",
            f"{len(kept)} generations, {format_size(size)}; {len(found.history.verified)} read back and right",
        )
    if found.history.quarantined:
        yield "set aside", ", ".join(found.history.quarantined)


def _duration(seconds: float) -> str:
    return format_duration(round(seconds) if seconds >= 10 else round(max(0.0, seconds), 1))
