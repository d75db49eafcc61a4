"""What a trainer had copied when it was killed is saved, and the run goes on from there; what was not right is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import PATIENCE, SCRIPTS, Run, light
from tests.faults.scale import scaled, told
from tests.waiting import whole_lines

TOTAL = 60
EVERY = 2


def job(kills: int, when: str, **sections: Any) -> dict[str, Any]:
    command = ["{python}", SCRIPTS / "outliving.py", kills, when, TOTAL]
    env = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **light()}
    restart = {"backoff": "10ms..20ms", "without_progress": 50}
    return {"command": command, "env": env, "save": {"every_steps": EVERY}, "restart": restart, **sections}


def notes(run: Run, kind: str) -> dict[int, Any]:
    """What each attempt wrote down of this kind."""
    lines = [json.loads(line) for line in whole_lines(run.folder / "notes")]
    return {line[0]: line[2] for line in lines if line[1] == kind}


def losses(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["step"], line["loss"], line["rng"]


def end_state(run: Run) -> str:
    newest = run.verified()[0].index
    assert newest is not None
    assert newest.final, run.report()
    return str(newest.state_sha256)


@pytest.mark.timeout(1800)
def test_a_save_whose_copy_was_right_is_sealed_whoever_is_killed(make_run: MakeRun) -> None:
    """Killed 1 ms after the copy's end, every time: sealed, resumed from there, out of the same memory, and the end
    is that of the undisturbed run to the last bit."""
    kills = scaled(5, 20)
    undisturbed = make_run(job(0, "copied"))
    assert undisturbed.start().wait() == 0, undisturbed.report()
    run = make_run(job(kills, "copied"))
    supervisor = run.start()
    assert supervisor.wait(kills * PATIENCE) == 0, run.report()
    copied = notes(run, "copied")
    assert len(copied) == kills, run.report()
    finished = {record.data["attempt"]: record.data for record in run.records("save_finished")}
    started = {record.data["attempt"]: record.data for record in run.records("attempt_started")}
    for attempt, step in copied.items():
        # where the trainer was quicker than its death, nothing is left to do
        assert finished.get(attempt, {"ok": True})["ok"], run.report()
        assert started[attempt + 1]["resume"] == f"step-{step:09d}.a{attempt:04d}", run.report()
        log = run.log(attempt + 1)
        assert f"at step {step} (bit-exact expected, read from memory)" in log, run.report()
    assert finished, "each trainer was quicker than its death"
    assert "was finished after the worker's death" in supervisor.output
    memory = [set(inodes) for inodes in notes(run, "memory").values()]
    assert memory == kills * [memory[0]], "memory was made anew"
    assert len(memory[0]) == 1, "more than one copy"
    assert [losses(line) for line in run.history()] == [losses(line) for line in undisturbed.history()]
    assert end_state(run) == end_state(undisturbed)
    told("trainers killed 1 ms after a copy's end, whose save was sealed", kills)
    told("of them whose save was finished after their death", len(finished))


def test_a_standby_is_given_the_memory_too(make_run: MakeRun) -> None:
    """A worker that was a standby reads what its predecessor had copied from memory, as a new process does."""
    made = job(1, "copied", standby=True)
    made["env"]["WAIT_FOR"] = "go"
    run = make_run(made)
    supervisor = run.start()
    ready = run.until_status(lambda s: (s.get("standby") or {}).get("state") == "ready", "a standby")
    (run.folder / "go").touch()
    assert supervisor.wait() == 0, run.report()
    [second] = [r.data for r in run.records("attempt_attached") if r.data["attempt"] == 2]
    assert second["pid"] == ready["standby"]["pid"], run.report()
    assert "(bit-exact expected, read from memory)" in run.log(2), run.report()
    assert len(set(notes(run, "memory")[2])) == 1


@pytest.mark.parametrize("when", ["announced", "unsaid"])
def test_what_is_not_known_to_be_right_is_not_sealed(make_run: MakeRun, when: str) -> None:
    """Killed before the copy, or before the training said that it is right: the generation before is taken."""
    run = make_run(job(1, when, keep={"last": 100}))
    assert run.start().wait() == 0, run.report()
    assert not run.records("save_finished"), run.report()
    first = {path.name for path in run.generations() if path.name.endswith(".a0001")}
    assert first == {"step-000000002.a0001"}, run.report()
    [second] = [r.data for r in run.records("attempt_started") if r.data["attempt"] == 2]
    assert second["resume"] == "step-000000002.a0001"
    left = {p.name for p in run.directory.checkpoints.iterdir()} - {p.name for p in run.generations()}
    assert left <= {".writing-0002"}, run.report()


def test_a_run_that_was_told_to_end_finishes_the_save_first(make_run: MakeRun) -> None:
    """Held or stopped, or given up at its first death: what was copied is sealed before the supervisor goes."""
    restart = {"backoff": "10ms..20ms", "never_on": [137], "without_progress": 1}
    run = make_run(job(50, "copied", restart=restart))
    supervisor = run.start()
    run.until(lambda: notes(run, "copied").get(1), "a copy")
    supervisor.send(15)
    assert supervisor.wait() in (70, 75), run.report()
    step = notes(run, "copied")[max(notes(run, "copied"))]
    newest = run.verified()[0]
    assert newest.index is not None
    assert newest.index.step == step, run.report()
    run.nothing_left()
