"""Properties of a run's metrics: history has each step once, and a replayed step that differs is named."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from outlast_jobs.metrics import (
    Header,
    attempts,
    compare_replay,
    history,
    loss_of,
    read_header,
    read_metrics,
    replayed,
)
from outlast_jobs.rundir import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path)
    made.metrics.mkdir()
    return made


def _write(
    run: RunDirectory, attempt: int, restored: str | None, steps: range, *, step: int | None = None
) -> Path:
    """An attempt's file; a loss tells attempt and step."""
    if step is None:
        step = int(restored[5:14]) if restored else 0
    head = {"schema": "outlast.metrics/1", "attempt": attempt, "restored_step": step, "restored": restored}
    lines = [head, *({"step": s, "loss": attempt + s / 1000} for s in steps)]
    path = run.attempt_metrics(attempt)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _told(run: RunDirectory) -> list[tuple[int, int]]:
    return [(line["step"], line["attempt"]) for line in history(run)]


def _steps(attempt: int, first: int, last: int) -> list[tuple[int, int]]:
    return [(step, attempt) for step in range(first, last + 1)]


def _gen(step: int, attempt: int) -> str:
    return f"step-{step:09d}.a{attempt:04d}"


def test_replayed_steps_are_told_once(run: RunDirectory) -> None:
    """Checkpoint at 200, crash at 212, resumed: history has 1 to 300 once, from 201 on by the second."""
    _write(run, 1, None, range(1, 213))
    _write(run, 2, _gen(200, 1), range(201, 301))
    assert _told(run) == _steps(1, 1, 200) + _steps(2, 201, 300)
    assert [line["loss"] for line in history(run)][199:201] == [1.2, 2.201]


def test_a_restart_that_has_not_trained_yet_takes_nothing_away(run: RunDirectory) -> None:
    """Until the new attempt's first step the old steps are the history."""
    _write(run, 1, None, range(1, 21))
    _write(run, 2, _gen(10, 1), range(0))
    assert _told(run) == _steps(1, 1, 20)
    _write(run, 2, _gen(10, 1), range(11, 13))
    assert _told(run) == _steps(1, 1, 10) + _steps(2, 11, 12)


def test_history_follows_the_state_not_the_number(run: RunDirectory) -> None:
    """After a step back that led nowhere, steps come from the attempts whose generations were restored."""
    _write(run, 1, None, range(1, 31))
    _write(run, 2, _gen(10, 1), range(11, 27))  # an older generation was tried, and sealed nothing
    _write(run, 3, _gen(30, 1), range(31, 41))
    assert _told(run) == _steps(1, 1, 30) + _steps(3, 31, 40)


def test_many_restarts_from_one_generation_count_once(run: RunDirectory) -> None:
    """Attempts that all restored the same generation and died leave only the last one's steps."""
    _write(run, 1, None, range(1, 15))
    for attempt in (2, 3, 4):
        _write(run, attempt, _gen(10, 1), range(11, 20))
    _write(run, 5, _gen(15, 4), range(16, 18))
    assert _told(run) == _steps(1, 1, 10) + _steps(4, 11, 15) + _steps(5, 16, 17)


def test_a_fresh_start_begins_a_fresh_history(run: RunDirectory) -> None:
    """An attempt that restored nothing is the beginning, whatever ran before it."""
    _write(run, 1, None, range(1, 15))
    _write(run, 2, None, range(1, 4))
    assert _told(run) == _steps(2, 1, 3)


def test_a_generation_of_another_run_is_where_the_history_begins(run: RunDirectory) -> None:
    """start_from names an attempt of another run: none of our own steps are taken for it."""
    pretrained = _gen(90_000, 3)
    for attempt in (1, 2, 3):
        _write(run, attempt, pretrained, range(90_001, 90_001 + attempt))
    _write(run, 5, pretrained, range(90_001, 90_004))
    assert _told(run) == _steps(5, 90_001, 90_003)
    _write(run, 6, _gen(90_002, 5), range(90_003, 90_006))
    assert _told(run) == _steps(5, 90_001, 90_002) + _steps(6, 90_003, 90_005)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_file_costs_its_own_steps_only(run: RunDirectory, lost: int) -> None:
    """Without one attempt's file no step comes twice, and those of the others are still told."""
    _write(run, 1, None, range(1, 15))
    _write(run, 2, _gen(10, 1), range(11, 25))
    _write(run, 3, _gen(20, 2), range(21, 35))
    run.attempt_metrics(lost).unlink()
    told = [step for step, _ in _told(run)]
    assert told == sorted(set(told))
    expected = {1: range(11, 35), 2: [*range(1, 15), *range(21, 35)], 3: range(1, 25)}[lost]
    assert told == list(expected)


def test_a_torn_header_is_made_up_from_the_first_step(run: RunDirectory) -> None:
    """An attempt whose header can't be read still follows on from the step before its first."""
    _write(run, 1, None, range(1, 15))
    path = _write(run, 2, _gen(10, 1), range(11, 16))
    path.write_bytes(b"{torn\n" + path.read_bytes().split(b"\n", 1)[1])
    assert read_header(path) is None
    assert _told(run) == _steps(1, 1, 10) + _steps(2, 11, 15)


def test_random_kills_leave_each_step_once(run: RunDirectory) -> None:
    """Over any saves and kills the history has no gap, and each step is of the state that went on."""
    for seed in range(30):
        rng = random.Random(seed)
        for old in run.metrics.iterdir():
            old.unlink()
        owner: dict[int, int] = {}
        generations: list[tuple[int, int]] = []  # (attempt, step), newest last
        for attempt in range(1, 12):
            start, restored = (generations[-1][1], _gen(*generations[-1][::-1])) if generations else (0, None)
            trained = range(start + 1, start + rng.randrange(0, 30) + 1)
            _write(run, attempt, restored, trained)
            if trained:
                owner = {step: who for step, who in owner.items() if step <= start}
                owner |= dict.fromkeys(trained, attempt)
                generations += [(attempt, step) for step in trained if rng.random() < 0.1]
        assert _told(run) == sorted(owner.items())


def test_torn_blank_and_foreign_lines_are_left_out(run: RunDirectory) -> None:
    """Whatever a crash left between the lines costs no other line; a step that comes twice counts once."""
    path = _write(run, 1, None, range(1, 6))
    lines = path.read_bytes().splitlines(keepends=True)
    noise = (
        b'\n  \n\0\0\0\n[1]\n{"step": "x"}\n{"step": 2.5}\n{"step": true}\n{"st\n' + b"[" * 100_000 + b"\n"
    )
    path.write_bytes(
        b"".join([*lines[:3], noise, *lines[2:], b"x" * (3 << 20), b"\n", lines[5], b'{"step": 6'])
    )
    found = read_metrics(path)
    assert found.header == Header(1, 0, None)
    assert [line["step"] for line in found.lines] == [1, 2, 3, 4, 5]


def test_what_is_no_file_has_no_lines(run: RunDirectory) -> None:
    """A missing file, a link and a pipe are read as nothing, and nothing hangs on them."""
    run.attempt_metrics(2).symlink_to("/etc/passwd")
    os.mkfifo(run.attempt_metrics(3))
    for attempt in (1, 2, 3):
        assert read_metrics(run.attempt_metrics(attempt)).lines == ()
    assert attempts(run) == [2, 3]
    assert _told(run) == []
    assert attempts(RunDirectory(run.path / "none")) == []


@pytest.mark.parametrize("loss", [0.1, 1e-320, -0.0, 1.7976931348623157e308, math.nan, math.inf, -math.inf])
def test_losses_keep_every_bit(run: RunDirectory, loss: float) -> None:
    """A loss is read as the very float that was recorded, the ones that JSON lacks included."""
    text = loss if math.isfinite(loss) else repr(loss)
    path = _write(run, 1, None, range(0))
    path.write_bytes(path.read_bytes() + json.dumps({"step": 1, "loss": text}).encode() + b"\n")
    found = loss_of(read_metrics(path).lines[0])
    assert repr(found) == repr(loss)


def test_a_line_without_a_loss_has_none() -> None:
    """Text, lists and booleans are no losses."""
    assert [loss_of({"loss": value}) for value in ("x", [1], True, None)] == [None] * 4
    assert loss_of({}) is None


def _line(step: int, **changes: Any) -> dict[str, Any]:
    rng = {"python": "aa", "torch": "bb"} | changes.pop("rng", {})
    return {"step": step, "loss": step / 7, "lr": [0.1, 0.2], "rng": rng, "ids": f"d{step}"} | changes


def test_an_identical_replay_is_said_to_be_equal() -> None:
    """Every repeated step that has come so far is compared, and the text counts them."""
    older = [_line(step) for step in range(195, 213)]
    audit = compare_replay(older, [_line(step) for step in range(201, 300)])
    assert (audit.compared, audit.total, audit.equal) == (12, 12, True)
    assert audit.text == "12 of 12 replayed steps compared, all equal"
    assert (
        compare_replay(older, [_line(201), _line(202)]).text == "2 of 12 replayed steps compared, all equal"
    )
    assert compare_replay(older, []).text == "0 of 18 replayed steps compared"
    assert compare_replay([], older).total == 0


@pytest.mark.parametrize(
    ("changes", "stream", "amount", "also"),
    [
        ({"loss": 205 / 7 + 0.5}, "loss", 0.5, ()),
        ({"loss": "nan"}, "loss", math.nan, ()),
        ({"rng": {"torch": "xx"}}, "rng/torch", None, ()),
        ({"rng": {"torch": "xx"}, "loss": 1.0}, "rng/torch", None, ("loss",)),
        ({"lr": [0.1, 0.3]}, "lr", 0.3 - 0.2, ()),
        ({"ids": "other", "loss": 2.0, "rng": {"python": "x"}}, "ids", None, ("rng/python", "loss")),
    ],
)
def test_a_differing_replay_names_step_stream_and_amount(
    changes: dict[str, Any], stream: str, amount: float | None, also: tuple[str, ...]
) -> None:
    """The first differing step is named, the stream nearest to the cause, how much, and what else differs."""
    newer = [_line(s, **(changes if s >= 205 else {})) for s in range(201, 212)]
    audit = compare_replay([_line(s) for s in range(201, 213)], newer)
    assert not audit.equal
    assert audit.first is not None
    assert (audit.first.step, audit.first.stream, audit.first.also) == (205, stream, also)
    assert (audit.compared, audit.total) == (5, 12)
    assert audit.text.startswith("5 of 12 replayed steps compared, first difference at step 205: " + stream)
    assert repr(audit.first.amount) == repr(amount)


def test_the_last_bit_and_the_sign_of_zero_count() -> None:
    """Equal means equal in every bit; NaN is equal to itself."""
    older = [_line(1, loss=0.1), _line(2, loss=0.0), _line(3, loss="nan")]
    assert compare_replay(older, [_line(1, loss=math.nextafter(0.1, 1))]).first is not None
    assert compare_replay(older, [_line(2, loss=-0.0)]).first is not None
    assert compare_replay(older, [_line(3, loss="nan")]).equal


def test_what_only_one_attempt_recorded_is_not_compared() -> None:
    """Digests that were off in one attempt, or ids in two forms, are no difference."""
    assert compare_replay([_line(1)], [{"step": 1, "loss": 1 / 7}]).equal
    assert compare_replay([_line(1)], [_line(1, ids=[1, 2, 3])]).equal
    assert compare_replay([{"step": 1}], [_line(1)]).compared == 0


def test_the_steps_to_repeat_are_those_past_the_restored_one(run: RunDirectory) -> None:
    """What is held against a replay is the newest earlier record of each step after the restored one."""
    _write(run, 1, None, range(1, 21))
    _write(run, 2, _gen(10, 1), range(11, 16))
    _write(run, 3, _gen(10, 1), range(11, 14))
    found = replayed(run, 3)
    assert sorted(found) == list(range(11, 21))
    assert [found[11]["loss"], found[16]["loss"]] == [2.011, 1.016]
    assert replayed(run, 1) == {}
    assert replayed(run, 9) == {}
