"""A real run whose cadence is `every: auto`: it is asked for its saves, and learns from its own ends."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from msgspec.structs import replace
from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import outcomes, plain

from outlast_jobs.contract import ExitCode
from outlast_jobs.history import read_history
from outlast_jobs.pacing import Past, automatic, cost_of_a_save
from outlast_jobs.units import format_duration

FIRST = 0.3  # seconds until the first save, which shows what one costs


def test_a_run_is_asked_for_its_saves_and_learns_from_its_ends(make_run: MakeRun) -> None:
    """The first save comes at the lower bound, the next ones later; a kill and a notice are counted apart."""
    save = {"every": "auto", "between": "300ms..1h"}
    run = make_run(plain(steps=600, seconds=0.01, save=save, keep={"last": 10_000}))
    first = run.start()

    def measured() -> dict[str, Any] | None:
        found = (run.status() or {}).get("cadence")
        return found if found and found["reason"].startswith("a save costs ") else None

    cadence = run.until(measured, "a cadence that follows a measured save")
    assert cadence["seconds"] > 2 * FIRST
    assert "  cadence    every " in run.cli("status", "--details", str(run.directory.path)).out
    os.kill(first.worker(), signal.SIGKILL)
    run.until(lambda: len(run.records("attempt_attached")) == 2, "a second attempt")
    run.until_step(120, 2)
    first.send(signal.SIGTERM)
    assert first.wait() == ExitCode.SAVED, run.report()
    past = read_history(run.directory).past
    assert (past.lost, past.noticed) == pytest.approx((1, 1), abs=0.05)
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert outcomes(run) == ["crashed_progress", "saved", "done"]
    assert run.records("violation") == []
    reasons = [found.index.reason for found in run.findings() if not found.index.final]
    assert "asked for" in reasons
    assert set(reasons) <= {"asked for", "SIGTERM"}
    asked = min(found.index.step for found in run.findings())
    # from the attach, as seen by either of the two, to the end of the boundary: both may be stopped in between
    after = {line["step"] - 1: line["back"] for line in run.metrics(1)}
    assert after[asked] - min(after[0], run.records("attempt_attached")[0].mono) >= 0.8 * FIRST
    assert read_history(run.directory).past.up > past.up, "what is done has its time counted"


def test_a_save_that_costs_less_than_its_time_is_made_more_often(make_run: MakeRun) -> None:
    """Beside the training a save takes its time and costs a part of it; the cadence goes by what it costs."""
    often = {"every": "auto", "between": "100ms..200ms"}
    run = make_run(plain("--ballast", 8 << 20, steps=3000, seconds=0.01, save=often))
    supervisor = run.start()
    run.until(lambda: sum("cost" in r.data for r in run.records("sealed")) > 4, "saves beside the training")
    told = (run.status() or {})["cadence"]["reason"]
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == ExitCode.SAVED, run.report()
    saves = [record.data for record in run.records("sealed")]
    assert "cost" not in saves[0]
    # one that was waited for, by the stop, costs all of its time
    assert all(0 < saved["cost"] <= saved["seconds"] for saved in saves if "cost" in saved)
    past = read_history(run.directory).past
    all_of_it = replace(past, costs=tuple(saved["seconds"] for saved in saves))
    freely = (1e-6, 1e9)
    assert automatic(past, freely).seconds < automatic(all_of_it, freely).seconds
    pasts = [
        Past().saved(*(save.get("cost", save["seconds"]) for save in saves[:n]))
        for n in range(len(saves) + 1)
    ]
    costs = {format_duration(cost) for cost in map(cost_of_a_save, pasts) if cost is not None}
    assert told.partition(",")[0] in {f"a save costs {cost}" for cost in costs}
