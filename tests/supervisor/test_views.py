"""The status table: what it says of a snapshot, as values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_supervisor import tables
from outlast_supervisor.views import HEADINGS, LARGE_LOG, SILENT, Facts, Row, ended, plain, row, silent

NOW = 1_700_000_000.0
STATUS: dict[str, Any] = {
    "schema": "outlast.status/1",
    "as_of": NOW - 5,
    "run_id": "0" * 32,
    "name": "bytelm",
    "host": "node7",
    "supervisor": "12:34:boot",
    "state": "running",
    "reason": "resumed",
    "attempt": 3,
    "phase": "train",
    "step": 500,
    "total": 2000,
    "loss": 2.1,
    "rate": 12.0,
    "eta": 125,
    "last_save": {"generation": "step-000000480.a0003", "step": 480, "at": NOW - 40, "seconds": 0.25},
    "verified": "step-000000480.a0003",
    "steps_at_risk": 20,
    "seconds_at_risk": 40,
    "counters": {"preempted": 2, "crashed_progress": 0, "crashed": 1, "hung": 0},
    "restored": "step-000000400.a0002",
    "log": "logs/attempt-0003.log",
}


def made(facts: Facts | None = None, **changes: Any) -> Row:
    return row("runs/bytelm", {**STATUS, **changes}, facts or Facts(NOW))


def cell(item: Row, heading: str) -> str:
    return item.cells[HEADINGS.index(heading)]


def test_steps_at_risk_come_first() -> None:
    """What would be lost now leads the line."""
    assert HEADINGS[0] == "AT RISK"
    assert made().cells == (
        "20 steps, 40 s",
        "bytelm",
        "running",
        "500/2000",
        "2.1000",
        "12.0 steps/s",
        "2m 5s",
        "40 s ago",
    )


def test_ninety_seconds_without_a_snapshot_are_silence_with_time_and_host() -> None:
    """The age decides, unless the snapshot was meant to be the last."""
    assert silent({**STATUS, "as_of": NOW - SILENT}, Facts(NOW)) == ""
    told = silent({**STATUS, "as_of": NOW - SILENT - 1}, Facts(NOW))
    assert told.startswith("silent since 2023-")
    assert told.endswith(" on node7")
    for last in ({"done": True}, {"held": "stopped by hand"}, {"state": "finished"}):
        assert silent({**STATUS, **last, "as_of": 0}, Facts(NOW)) == ""


def test_a_killed_supervisor_is_told_at_once_with_the_cure() -> None:
    """On the same host nobody waits 90 s to hear that its process is gone."""
    item = made(Facts(NOW, supervisor_alive=False))
    assert cell(item, "STATE").startswith("gone since")
    assert any("outlast run" in note for note in item.notes)
    assert item.level == "bad"
    assert (cell(item, "RATE"), cell(item, "LEFT")) == ("", "")  # nothing comes nearer to its end
    assert cell(made(Facts(NOW, supervisor_alive=None)), "LEFT")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"unprotected": "no space left"}, "unprotected: no space left"),
        ({"violation": "nothing sealed for 90 s"}, "violation: nothing sealed"),
        ({"held": "stopped by ann"}, "outlast release RUN"),
        ({"unjournaled": True}, "unjournaled"),
        ({"pending": "SIGTERM pending, last boundary 3 s ago, in phase eval"}, "SIGTERM pending"),
        ({"exclusion": "flock on nfs4 may not reach other hosts"}, "exclusion: flock"),
        ({"warnings": ["the PATH has no scontrol"]}, "the PATH has no scontrol"),
        ({"audit": "12 of 12 replayed steps compared, step 207 differs"}, "step 207"),
        ({"deadline": NOW + 120}, "in 2m 0s"),
        (
            {"deadline": NOW + 9, "deadline_from": "time_limit of the job"},
            "the deadline (time_limit of the job) is at",
        ),
    ],
)
def test_what_is_wrong_is_said_below_the_line(change: dict[str, Any], note: str) -> None:
    """Each trouble has its note; a run without any has none."""
    assert any(note in text for text in made(**change).notes)
    assert made().notes == ()


def test_large_logs_are_warned_of() -> None:
    """From 1 GiB on, with the cure."""
    assert made(Facts(NOW, log_bytes=LARGE_LOG - 1)).notes == ()
    assert any("max_bytes" in note for note in made(Facts(NOW, log_bytes=LARGE_LOG)).notes)


def test_a_replay_that_agreed_is_no_trouble() -> None:
    """It stands in the details."""
    item = made(audit="12 of 12 replayed steps compared, all equal")
    assert item.notes == ()
    assert ("replay", "12 of 12 replayed steps compared, all equal") in item.details


def test_details_name_attempt_origin_counts_and_generation() -> None:
    """Everything else that a person asks for."""
    details = dict(made().details)
    assert details["attempt"] == "3, from step-000000400.a0002"
    assert details["ends"] == "2 preempted, 1 crashed without"
    assert details["verified"] == "step-000000480.a0003"


def test_a_finished_run_shows_no_rate_and_no_time_left() -> None:
    """What is over has no speed."""
    item = made(done=True, state="finished", steps_at_risk=0)
    assert (cell(item, "STATE"), cell(item, "RATE"), cell(item, "LEFT"), cell(item, "AT RISK")) == (
        "done",
        "",
        "",
        "",
    )
    assert item.level == "good"


def test_without_a_snapshot_the_journal_speaks() -> None:
    """Held or done is known even where status.json is gone."""
    assert cell(row("runs/x", None, Facts(NOW, held="gave up", attempts=5)), "STATE") == "held"
    assert cell(row("runs/x", None, Facts(NOW, done=True)), "STATE") == "done"
    assert cell(row("runs/x", None, Facts(NOW)), "STATE") == "unknown"


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    """Plain text for pipes: a header, a line a run, notes below, nothing that nobody filled."""
    lines = plain([made(loss=None), made(loss=None, name="a-much-longer-name", unprotected="full")])
    assert "LOSS" not in lines[0]
    assert lines[0].index("STATE") == lines[1].index("running") == lines[2].index("running")
    assert lines[3] == "  ! unprotected: full"


def test_a_narrow_terminal_has_fewer_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole columns are left out rather than cells folded, and never what is at risk."""
    widths = {
        120: HEADINGS,
        80: [*HEADINGS[:5], *HEADINGS[6:]],
        60: [*HEADINGS[:4], *HEADINGS[6:]],
        45: HEADINGS[:4],
    }
    for columns, shown in widths.items():
        monkeypatch.setenv("COLUMNS", str(columns))
        tables.show([made()], detailed=False, clear=False)
        head, *rest = capsys.readouterr().out.splitlines()
        assert head.split() == " ".join(shown).split()
        assert len(rest) == 1
        assert "20 steps, 40 s" in rest[0]


odd = st.none() | st.booleans() | st.integers(0, 99) | st.text(max_size=4)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(set(STATUS) - {"rate", "eta", "last_save", "counters"})), odd),
    st.sampled_from([None, True, False]),
)
def test_a_snapshot_of_odd_values_is_shown_as_far_as_it_goes(
    changes: dict[str, Any], alive: bool | None
) -> None:
    """Another version's snapshot, or a damaged one, never breaks the table."""
    item = row("r", {**STATUS, **changes}, Facts(NOW, alive))
    assert len(item.cells) == len(HEADINGS)
    assert plain([item], detailed=True)
    ended({**STATUS, **changes})
