"""`outlast logs`: one continuous log over all attempts, followed into new ones."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from outlast_jobs.rundir import RunDirectory
from outlast_jobs.units import parse_duration
from outlast_supervisor.commands.shared import (
    ABOUT_RUN,
    SHOW_CODES,
    Failed,
    json_option,
    print_json,
    quiet_option,
    say,
    usage_errors,
)
from outlast_supervisor.logview import Collapser, Piece, Position, attempt_logs, last_lines, read_on
from outlast_supervisor.targets import await_run, find_run

_CLEAR = "\r\x1b[2K"


@click.command(epilog=ABOUT_RUN + SHOW_CODES)
@click.argument("run", required=False)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on with what is written, into new attempts too; waits for a run to begin.",
)
@click.option("-n", "--lines", type=click.IntRange(0), help="Begin with the last so many lines.")
@click.option("--attempt", type=click.IntRange(1), help="Only this attempt.")
@click.option("--since", metavar="AGE", help='Only attempts that wrote in this time, such as "2h".')
@click.option("--raw", is_flag=True, help="Every byte as it was written, progress bars too.")
@quiet_option
@json_option
@usage_errors
def logs(
    run: str | None,
    follow: bool,
    lines: int | None,
    attempt: int | None,
    since: str | None,
    raw: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Show one continuous log over all attempts of a run."""
    found = await_run(run, lambda text: say(f"outlast: {text}")) if follow else find_run(run)
    chosen = _chosen(found, attempt, since)
    if not chosen and not follow:
        if attempt is not None or not quiet:
            _nothing(found, attempt, since)
        return
    start = Position(min(chosen)) if chosen else None
    if lines is not None and chosen:
        start = last_lines(chosen, lines)
    out = _Out(raw=raw, as_json=as_json)
    try:
        if follow and attempt is None:
            _follow(found, start, out)
        else:
            _once(chosen, start, out)
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the ^C of a terminal stands in a line of its own
    out.close()


def _nothing(run: RunDirectory, attempt: int | None, since: str | None) -> None:
    if attempt is not None:
        have = ", ".join(str(number) for number in attempt_logs(run.logs)) or "none"
        raise Failed(f'no log of attempt {attempt} in "{run.logs}"; there are: {have}')
    what = f"wrote in the last {since}" if since else "has a log yet"
    print(f'outlast: no attempt in "{run.path}" {what}', file=sys.stderr)


def _chosen(run: RunDirectory, attempt: int | None, since: str | None) -> dict[int, Path]:
    found = attempt_logs(run.logs)
    if attempt is not None:
        found = {number: path for number, path in found.items() if number == attempt}
    if since is not None:
        oldest = time.time() - parse_duration(since)
        found = {number: path for number, path in found.items() if path.stat().st_mtime >= oldest}
    return found


def _once(chosen: dict[int, Path], start: Position | None, out: _Out) -> None:
    for number, path in chosen.items():
        if start is None or number < start.attempt:
            continue
        at = start if number == start.attempt else Position(number)
        for piece in read_on(path, at):
            out.take(piece)


def _follow(run: RunDirectory, start: Position | None, out: _Out) -> None:
    """Until interrupted, or until the run is done and all that it wrote is shown."""
    from outlast_supervisor.follow import Follower

    with Follower(run, start) as follower:
        while True:
            done = (run.read_status() or {}).get("done") is True  # before reading, or the end could be missed
            for piece in follower.read():
                out.take(piece)
            out.pause()
            if done:
                return
            follower.wait()


class _Out:
    """Writes the log of one attempt after the other to stdout."""

    def __init__(self, *, raw: bool, as_json: bool) -> None:
        self._raw = raw
        self._json = as_json
        self._attempt: int | None = None
        self._lines = Collapser()
        self._unfinished = False
        self._live = sys.stdout.isatty() and not as_json

    def take(self, piece: Piece) -> None:
        if self._attempt not in (None, piece.next.attempt):
            self._end_attempt()
        self._attempt = piece.next.attempt
        if self._raw:
            sys.stdout.buffer.write(piece.data)
            self._unfinished = not piece.data.endswith(b"\n")
        else:
            self._print(self._lines.feed(piece.data))

    def pause(self) -> None:
        """Nothing more for now: on a terminal show the line in progress as well, such as a progress bar."""
        if self._live and not self._raw and (rest := self._lines.unfinished):
            sys.stdout.buffer.write(_CLEAR.encode() + rest)
            self._unfinished = True
        sys.stdout.flush()

    def close(self) -> None:
        self._end_attempt()
        sys.stdout.flush()

    def _end_attempt(self) -> None:
        if self._raw:
            if self._unfinished:
                sys.stdout.buffer.write(b"\n")
            self._unfinished = False
        else:
            self._print(self._lines.flush())

    def _print(self, lines: list[bytes]) -> None:
        if lines and self._unfinished:
            sys.stdout.buffer.write(_CLEAR.encode())
            self._unfinished = False
        for line in lines:
            if self._json:
                print_json({"attempt": self._attempt, "line": line.decode(errors="replace")}, indent=False)
            else:
                sys.stdout.buffer.write(line + b"\n")
