"""The lines for cron as text: when they are due, what a shell makes of them, and how they go in and out."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast_supervisor.schedulers.cron import (
    LONGEST,
    CronError,
    block,
    carried_path,
    command_line,
    key_of,
    schedule,
    with_block,
    without_block,
)

SCHEDULES = {
    60: "* * * * *",
    120: "*/2 * * * *",
    300: "*/5 * * * *",
    1800: "*/30 * * * *",
    3600: "0 * * * *",
    7200: "0 */2 * * *",
    43200: "0 */12 * * *",
    86400: "0 0 * * *",
}


@pytest.mark.parametrize("seconds", SCHEDULES)
def test_what_cron_can_do_evenly_it_is_told(seconds: int) -> None:
    """Minutes that divide the hour and hours that divide the day become the five fields."""
    assert schedule(seconds) == SCHEDULES[seconds]


@pytest.mark.parametrize("seconds", [0, 1, 30, 90, 59.9, 420, 2700, 5400, 5 * 3600, 2 * 86400])
def test_what_cron_cannot_do_evenly_is_refused(seconds: float) -> None:
    """Any other interval is an error that says which ones there are."""
    with pytest.raises(CronError, match="divide an hour"):
        schedule(seconds)


def as_cron_reads(command: str, *, halves: bool) -> str:
    """crontab(5): an escaped `%` is one, any other ends the command. Some crons also halve two backslashes."""
    text, at = "", 0
    while at < len(command):
        two = command[at : at + 2]
        if two == "\\%" or (halves and two == "\\\\"):
            text += two[1]
        elif two[0] == "\\":
            text += two
        elif two[0] == "%":
            return text
        else:
            text += two[0]
            at -= 1
        at += 2
    return text


WORD = st.text(
    st.characters(exclude_characters="\0\r\n", exclude_categories=["Cs"]) | st.sampled_from("%\\'\" $")
)


@example(words=["\\\\", "\\%", "a\\\\\\%\\"], path="\\\\", halves=True)
@example(words=["\\\\", "\\%", "a\\\\\\%\\"], path="\\\\", halves=False)
@settings(max_examples=60, deadline=None)
@given(words=st.lists(WORD, min_size=1, max_size=4), path=WORD.filter(bool), halves=st.booleans())
def test_every_word_comes_through_cron_and_shell(words: list[str], path: str, halves: bool) -> None:
    """Whatever is in a word, what cron hands to the shell is that word, and what the shell hands on is too."""
    show = ["/usr/bin/printf", "%s\\0", *words, "end"]
    read = as_cron_reads(command_line(show, path=path), halves=halves)
    shown = subprocess.run(["/bin/sh", "-c", read], capture_output=True, check=True).stdout
    assert shown.decode().split("\0") == [*words, "end", ""]


def test_what_no_line_can_hold_is_refused() -> None:
    """A line break in a path is refused; so is one byte more than cron takes, counted as bytes, with the cure."""
    with pytest.raises(CronError, match="line break"):
        command_line(["a\nb"])
    fits = "é" * ((LONGEST - len("exec ''")) // 2)
    assert len(command_line([fits]).encode()) <= LONGEST
    with pytest.raises(CronError, match="symbolic link"):
        command_line([fits + "é"])
    with pytest.raises(CronError, match="PATH of its own"):
        command_line(["true"], path="/bin:" * 300)


def test_path_is_carried_where_cron_has_another() -> None:
    """The caller's PATH goes into the line, each folder once and no relative one; not where the job sets its own."""
    assert carried_path("/venv/bin:.::/usr/bin:/bin:/usr/bin", {}) == "/venv/bin:/usr/bin:/bin"
    assert carried_path("/usr/bin:/bin", {}) == ""
    assert carried_path("", {}) == ""
    assert carried_path("/venv/bin", {"PATH": "/mine"}) == ""


KEY = key_of("/home/me/job.yaml", None)
OTHER = key_of("/home/me/job.yaml", "/scratch/run")
LINE = st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))


@settings(max_examples=100, deadline=None)
@given(
    lines=st.lists(LINE | st.sampled_from(block(OTHER, "true", "* * * * *").split(b"\n"))),
    at=st.integers(0, 9),
)
def test_a_block_goes_in_and_out_and_nothing_else_moves(lines: list[bytes], at: int) -> None:
    """Putting a block in twice is putting it in once; taking it out gives back what was there, wherever it stood."""
    theirs = b"".join(line + b"\n" for line in lines)
    ours, newer = block(KEY, "run", "*/5 * * * *"), block(KEY, "run it", "0 * * * *")
    once = with_block(theirs, KEY, ours)
    assert once == theirs + ours
    assert with_block(once, KEY, ours) == once
    above, below = b"".join(x + b"\n" for x in lines[:at]), b"".join(x + b"\n" for x in lines[at:])
    amid = above + ours + below
    assert with_block(amid, KEY, newer) == above + newer + below
    assert without_block(amid, KEY) == theirs
    assert without_block(theirs, KEY) == theirs
    assert without_block(amid + ours, KEY) == theirs  # pasted twice


def test_jobs_are_told_apart() -> None:
    """The same file with another run directory is another job, and so is a file whose name begins alike."""
    keys = {
        KEY,
        OTHER,
        key_of("/home/me/job.yaml2", None),
        key_of("/home/me/job.yaml --run-dir /scratch/run", None),
    }
    assert len(keys) == 4
