"""A run that diverges goes back to its newest healthy generation once, and is not turned in circles."""

from __future__ import annotations

from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import ends, only, outcomes, plain, resumed

from outlast_jobs.contract import ExitCode


def test_a_run_that_diverges_again_is_held_as_sick(make_run: MakeRun) -> None:
    """NaN from step 45 on: back to the healthy generation of step 40, NaN again, held with 70 and left alone."""
    run = make_run(plain("--nan-from", 45, steps=4000, save={"every_steps": 20}, keep={"last": 9}))
    first = run.start()
    assert first.wait() == ExitCode.HELD, run.report()
    assert outcomes(run) == ["sick", "sick"]
    assert resumed(run) == [None, "step-000000040.a0001"]
    assert [record.data["step"] for record in run.records("sick")] == [45, 45]
    assert ends(run)[-1]["counters"]["sick_steps"] == [45]
    health = {f.index.step: f.index.healthy for f in run.findings() if f.index.attempt == 1}
    assert {step for step, healthy in health.items() if healthy} == {20, 40}
    assert any(step >= 45 for step in health), "what was sealed when it was told to stop is kept for a look"
    reason = only(run.records("gave_up")).data["reason"]
    assert reason.startswith("sick: loss or state not finite from step 45 on, again after a restart")
    assert "sick: continue" in first.output
    assert (run.status() or {})["held"] == f"given up: {reason}"

    assert run.start().wait() == ExitCode.HELD
    assert run.attempts() == [1, 2]
    run.nothing_left()


def test_sick_continue_goes_on_to_the_end(make_run: MakeRun) -> None:
    """Under that policy a run that diverges is told of, marked unhealthy, and carried to its end."""
    run = make_run(
        plain("--nan-from", 45, steps=70, save={"every_steps": 20}, keep={"last": 9}, sick="continue")
    )
    first = run.start()
    assert first.wait() == ExitCode.DONE, run.report()
    assert outcomes(run) == ["done"]
    assert only(run.records("sick")).data["step"] == 45
    assert "going on, as sick: continue asks" in first.output
    assert {f.index.step: f.index.healthy for f in run.findings()} == {
        20: True,
        40: True,
        60: False,
        70: False,
    }
    assert run.verified()[0].index.final
    run.nothing_left()
