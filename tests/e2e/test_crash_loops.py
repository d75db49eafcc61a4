"""A crash loop ends and stays ended; a run that gets on is carried to its end, however often it falls."""

from __future__ import annotations

import itertools
import random
import re

from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import GIVES_UP_SOON, ends, only, outcomes, plain, resumed, toy
from tests.e2e.harness import SCRIPTS, Run

from outlast_jobs.contract import ExitCode


def test_a_worker_that_always_fails_in_one_step_is_given_up_at_once(make_run: MakeRun) -> None:
    """Failing in step 137 twice ends the run with 70, the signature, the counts and the log's last 20 lines."""
    run = make_run(toy("--raise-at", 137, "--log-every", 1))
    first = run.start()
    assert first.wait() == ExitCode.HELD, run.report()
    assert run.attempts() == [1, 2]
    assert outcomes(run) == ["crashed_progress", "crashed"]
    assert resumed(run) == [None, "step-000000100.a0001"]

    gave_up = only(run.records("gave_up")).data
    signature = gave_up["signature"]
    assert signature.startswith("RuntimeError after step 136 (faults.py:")
    assert signature.endswith("in strike)")
    assert gave_up["reason"].startswith(f"deterministic: {signature}, twice in a row")
    assert "1 crashed with progress, 1 without, 0 hung" in gave_up["reason"]
    tail = run.log(2).splitlines()[-20:]
    assert tail[-1] == "RuntimeError: step 137 fails: --raise-at"
    assert gave_up["tail"].splitlines() == tail
    said = first.output
    assert gave_up["reason"] in said
    assert "\n".join(tail) in said
    status = run.status() or {}
    assert (status["exit_code"], status["done"]) == (70, False)
    assert signature in status["held"]

    again = run.start()
    assert again.wait() == ExitCode.HELD
    assert signature in again.output
    assert "--release" in again.output
    assert run.attempts() == [1, 2]
    run.nothing_left()


def test_a_worker_that_fails_at_random_but_advances_is_carried_to_the_end(make_run: MakeRun) -> None:
    """More crashes than the tries that are allowed, each past a new generation, never end the run."""
    steps = [0]
    while len(steps) <= 3:
        steps.append(steps[-1] + random.SystemRandom().randint(12, 30))
    end = steps[-1] + 5
    run = make_run(
        plain("--fail-in", ",".join(map(str, steps[1:])), steps=end)
        | {"save": {"every_steps": 5}, "restart": {**GIVES_UP_SOON, "without_progress": 2, "waiting": 0}}
    )
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert outcomes(run) == [*["crashed_progress"] * 3, "done"]
    assert [end["counters"]["without_progress"] for end in ends(run)] == [0] * 4
    assert ends(run)[-1]["counters"]["crashed_progress"] == 3
    assert [line["step"] for line in run.history()] == list(range(1, end + 1))
    assert (run.folder / "exported").read_text() == str(sum(range(end + 1)))
    run.nothing_left()


def test_whoever_is_told_of_the_end_has_time_for_it(make_run: MakeRun) -> None:
    """What a hook of a given-up run takes is waited for: a unit or a job would end it with the supervisor."""
    hook = "sleep 11 && echo told > told.txt"  # longer than there is where the machine goes
    job = {"command": ["sh", "-c", "exit 3"], "restart": {"never_on": [3]}, "hooks": {"given_up": hook}}
    run = make_run(job)
    assert run.start().wait() == ExitCode.HELD, run.report()
    assert (run.directory.path / "told.txt").read_text() == "told\n"


def trained_until(run: Run, step: int) -> str:
    """Train, stop after this step as a notice does, and name the newest generation."""
    first = run.start()
    run.until_step(step)
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    return run.generations()[0].name


def test_a_typo_is_given_up_and_the_newest_generation_waits_for_its_cure(make_run: MakeRun) -> None:
    """A typo at import ends after the stated tries; all of them, and the first after the cure, take the newest."""
    sound = (SCRIPTS / "plain.py").read_text()
    job = plain(steps=400, seconds=0.01, save={"every_steps": 20}, restart=GIVES_UP_SOON)
    job["command"][1] = "train.py"
    run = make_run(job, script=sound)
    newest = trained_until(run, 45)

    (run.folder / "train.py").write_text(sound.replace("import argparse", "import argprase"))
    second = run.start()
    assert second.wait() == ExitCode.HELD, run.report()
    tries = len(run.attempts()) - 1
    waited = ends(run)[-1]["counters"]["waited"]
    assert ends(run)[-1]["counters"]["without_progress"] == tries
    assert tries >= 3
    assert waited >= 0.1  # both have to be reached, so the last try but one was made before
    assert tries == 3 or ends(run)[-3]["counters"]["waited"] < 0.1
    assert outcomes(run) == ["saved", *["crashed"] * tries]
    assert resumed(run)[1:] == [newest] * tries
    assert re.search(r"given up: ModuleNotFoundError \(train.py:\d+ in <module>\)", second.output)
    assert "No module named 'argprase'" in only(run.records("gave_up")).data["tail"]

    (run.folder / "train.py").write_text(sound)
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert only(run.records("released")).data["why"] == "the code changed"
    assert resumed(run)[-1] == newest
    assert [line["step"] for line in run.history()] == list(range(1, 401))
    run.nothing_left()


def test_a_state_that_does_not_load_is_stepped_back_from_for_one_start(make_run: MakeRun) -> None:
    """A failure while restoring the newest generation brings the one before it, and the run goes on."""
    run = make_run(plain("--fail-in", 45) | {"save": {"every_steps": 20}, "keep": {"last": 9}})
    (run.folder / "poison").write_text("40")
    assert run.start().wait() == ExitCode.DONE, run.report()
    older, newest = "step-000000020.a0001", "step-000000040.a0001"
    assert resumed(run) == [None, newest, older]
    assert outcomes(run) == ["crashed_progress", "crashed", "done"]
    assert "(plain.py:" in ends(run)[1]["signature"]
    assert "this state does not load" in ends(run)[1]["reason"]
    assert newest in [path.name for path in run.generations()], "a step back accuses nobody"
    assert (run.folder / "exported").read_text() == str(sum(range(61)))
    run.nothing_left()


def test_a_restore_that_fails_from_the_older_one_too_acquits_the_newest(make_run: MakeRun) -> None:
    """The same failure from the older generation ends the run; the newest is whole and taken after the cure."""
    run = make_run(plain("--fail-in", 45) | {"save": {"every_steps": 20}})
    (run.folder / "poison").write_text("all")
    first = run.start()
    assert first.wait() == ExitCode.HELD, run.report()
    older, newest = "step-000000020.a0001", "step-000000040.a0001"
    assert resumed(run) == [None, newest, older]
    assert "twice while restoring" in only(run.records("gave_up")).data["reason"]
    assert [path.name for path in run.generations()] == [newest, older]

    (run.folder / "poison").unlink()
    assert run.start("--release").wait() == ExitCode.DONE, run.report()
    assert resumed(run)[-1] == newest
    assert (run.folder / "exported").read_text() == str(sum(range(61)))
    run.nothing_left()


def shell(script: str, **restart: object) -> dict[str, object]:
    """A bare command, which knows nothing of outlast."""
    return {"command": ["sh", "-c", script], "signals": "native", "restart": {**GIVES_UP_SOON, **restart}}


def test_a_bare_command_that_fails_at_once_is_not_started_for_ever(make_run: MakeRun) -> None:
    """Exit 1 again and again is given up after the stated tries, with delays that grow."""
    run = make_run(shell("date +%s.%N >> born; echo address already in use; exit 1", backoff="20ms..200ms"))
    first = run.start()
    assert first.wait() == ExitCode.HELD, run.report()
    waits = [end["counters"]["waited"] for end in ends(run)]
    delays = [after - before for before, after in zip([0.0, *waits], waits, strict=False)]
    tries = len(delays)
    assert 3 <= tries <= 4
    assert all(end["counters"]["without_progress"] == n for n, end in enumerate(ends(run), 1))
    assert delays[0] < delays[1] < 0.2
    assert delays[-1] == 0, "the last failure is not waited for"
    starts = [float(line) for line in (run.folder / "born").read_text().splitlines()]
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert all(gap >= delay for gap, delay in zip(gaps, delays, strict=False))
    assert first.output.splitlines().count("address already in use") == 1
    run.nothing_left()


def test_never_on_gives_up_at_the_first_such_exit(make_run: MakeRun) -> None:
    """An exit code that never_on names ends the run after one attempt; the others are tried again."""
    run = make_run(shell("[ -e once ] && exit 7; touch once; exit 3", never_on=[7]))
    first = run.start()
    assert first.wait() == ExitCode.HELD, run.report()
    assert [end["code"] for end in ends(run)] == [3, 7]
    assert "never_on names exit 7" in first.output


def test_free_on_is_never_counted(make_run: MakeRun) -> None:
    """Exits that free_on names, a signal's too, come as often as they like and the run goes on to its end."""
    count = (
        'echo x >> count; n=$(wc -l < count); [ "$n" -le 3 ] && exit 9; [ "$n" -le 6 ] && kill -9 $$; exit 0'
    )
    run = make_run(shell(count, free_on=[9, 137], waiting=0))
    assert run.start().wait() == ExitCode.DONE, run.report()
    counters = ends(run)[-1]["counters"]
    assert (counters["preempted"], counters["crashed"], counters["without_progress"]) == (6, 0, 0)
    assert len(run.attempts()) == 7


def test_a_missing_script_is_an_error_before_the_first_attempt(make_run: MakeRun) -> None:
    """A script, or a program, that is not there ends with 64 and no attempt, and says which."""
    run = make_run({"command": ["{python}", "trian.py"]})
    first = run.start()
    assert first.wait() == ExitCode.USAGE
    assert "trian.py" in first.output
    run.write_job({"command": ["pyhton", "train.py"]})
    second = run.start()
    assert second.wait() == ExitCode.USAGE
    assert '"pyhton"' in second.output
    assert run.attempts() == []
    assert run.records() == []
