"""`outlast run --quiet`, as cron starts it every few minutes: what is wrong is said, and said once."""

from __future__ import annotations

from tests.e2e.conftest import MakeRun

from outlast_jobs.contract import ExitCode


def test_giving_up_is_said_by_the_start_that_does_it(make_run: MakeRun) -> None:
    """A quiet start that gives up says why, with the log's last lines; those after it are silent, until a release."""
    run = make_run(
        {
            "command": ["sh", "-c", "echo the last word; exit 3"],
            "signals": "native",
            "restart": {"never_on": [3]},
        }
    )
    first, later = run.start("--quiet"), []
    assert first.wait() == ExitCode.HELD
    assert "given up" in first.output
    assert "the last word" in first.output
    assert 'run "e2e"' in first.output
    assert "attempt 1 starts" not in first.output
    for _ in range(2):
        later.append(run.start("--quiet"))
        assert later[-1].wait() == ExitCode.HELD
    assert [start.output for start in later] == ["", ""]
    assert run.attempts() == [1]
    again = run.start("--quiet", "--release")
    assert again.wait() == ExitCode.HELD
    assert "given up" in again.output


def test_a_run_without_a_usable_generation_is_told_of_once(make_run: MakeRun) -> None:
    """Quiet starts that end one after the other for the same reason say it once, and again where it changes."""
    run = make_run({"command": ["true"], "signals": "native", "start_from": "pretrained"})
    outputs = []
    for _ in range(3):
        start = run.start("--quiet")
        assert start.wait() == ExitCode.UNUSABLE, run.report()
        outputs.append(start.output)
    assert "pretrained" in outputs[0]
    assert outputs[1:] == ["", ""]
    run.write_job({"command": ["true"], "signals": "native", "start_from": "elsewhere"})
    changed = run.start("--quiet")
    assert changed.wait() == ExitCode.UNUSABLE
    assert "elsewhere" in changed.output
    loud = run.start()
    assert loud.wait() == ExitCode.UNUSABLE
    assert "error: " in loud.output


def test_a_stop_by_hand_is_no_error(make_run: MakeRun) -> None:
    """Whoever stops a run knows it: a quiet start says nothing of it, and an ordinary one does not call it an error."""
    for arguments in (["--quiet"], ["--release"]):
        run = make_run({"command": ["sleep", "1000"], "signals": "native"})
        start = run.start(*arguments)
        start.worker()
        assert run.cli("stop", str(run.directory.path)).code == 0
        assert start.wait() == ExitCode.HELD
        assert "error" not in start.output
        assert ("stopped by" in start.output) == (arguments != ["--quiet"])
