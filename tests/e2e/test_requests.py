"""What a person asks of a running job is done, and answered in the journal; what cannot be done is refused."""

from __future__ import annotations

import contextlib
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.bare import PYTHON, WAITS, bare, up
from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import ends, plain, resumed
from tests.e2e.harness import Run
from tests.shortage import no_more_files

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_jobs.history import read_history
from outlast_jobs.requests import write_request


def ask(run: Run, verb: str, *args: str) -> str:
    """Ask through the command line; its answer."""
    found = run.cli(verb, str(run.directory.path), *args)
    assert found.code == 0, f"{found}\n{run.report()}"
    return found.out.strip()


def reasons(run: Run) -> dict[str, str]:
    return {f.path.name: f.index.reason for f in run.findings()}


def newest_verified(run: Run, other_than: str | None = None) -> str:
    """Wait until a further generation was read back, and name it."""
    found = run.until_status(lambda s: s["verified"] not in (None, other_than), "a verified generation")
    return str(found["verified"])


def test_requests_are_carried_out_and_answered(make_run: MakeRun) -> None:
    """save, pin, reload, restart, stop, and what nobody knows: each is done or refused, and answered."""
    job = plain(steps=100_000, seconds=0.01, save={"every_steps": 1_000_000}, keep={"last": 1})
    run = make_run(job)
    first = run.start()
    run.until_step(5)

    said = ask(run, "save")
    kept = newest_verified(run)
    assert said == f"saved {kept}"
    assert reasons(run) == {kept: "asked for"}

    dance = write_request(run.directory, "dance", {}, "ann")
    answer = run.until(lambda: read_history(run.directory).answers.get(dance), "an answer")
    assert (answer.ok, answer.text) == (False, 'nothing is known to do for "dance"')

    assert ask(run, "pin") == f"pinned {kept}: it is kept until it is unpinned"
    refused = run.cli("pin", str(run.directory.path), "step-000000001.a0099")
    assert refused.code == 1
    assert 'there is no generation "step-000000001.a0099"' in refused.err
    second = ask(run, "save").removeprefix("saved ")
    newest_verified(run, kept)
    third = ask(run, "save").removeprefix("saved ")
    run.until(lambda: second not in [p.name for p in run.generations()], "the pruning of the second")
    assert [p.name for p in run.generations()] == [third, kept], "keep: last 1, and the one that is pinned"
    assert ask(run, "pin", kept, "--remove") == f"unpinned {kept}"

    sooner: dict[str, Any] = {**job, "save": {"every_seconds": "1s"}}
    run.write_job({**sooner, "save": {"evry_seconds": "1s"}})
    refused = run.cli("reload", str(run.directory.path))
    assert refused.code == 1
    assert "the old job stays" in refused.err
    assert "every_seconds" in refused.err
    run.write_job(sooner)
    assert ask(run, "reload").startswith("read again")
    # a second later the next one takes its place
    why = run.until(lambda: reasons(run).get(newest_verified(run, third)), "a save by itself")
    assert why == "asked for", "the supervisor asks a worker that does not know better"
    run.until(lambda: kept not in [p.name for p in run.generations()], "the pruning of what is not pinned")

    assert ask(run, "restart") == "saving and starting again"
    first.until(lambda: run.attempts() == [1, 2], "a second attempt")
    run.until_step(1, attempt=2)
    assert resumed(run)[1] == f"step-{run.metrics(1)[-1]['step']:09d}.a0001", "no step was lost"
    own = first.until(lambda: [r for r in reasons(run).values() if r.startswith("every ")], "a save")
    assert own[0] in ("every 0.25 s for the first save after a restart", "every 1 s")

    assert ask(run, "stop") == "stopped; the run is held"
    assert first.wait() == ExitCode.HELD, run.report()
    assert [end["outcome"] for end in ends(run)] == ["saved", "saved"]
    asked = [record.data["verb"] for record in run.records("request")]
    verbs = ["save", "dance", "pin", "pin", "save", "save", "unpin", "reload", "reload", "restart", "stop"]
    assert asked == verbs
    answers = read_history(run.directory).answers
    assert {record.data["id"] for record in run.records("request")} == set(answers)
    assert list(run.directory.requests.iterdir()) == [], "what is answered is taken away"

    nobody = run.cli("save", str(run.directory.path))
    assert nobody.code == 1
    assert "no supervisor has this run" in nobody.err
    run.nothing_left()


def test_logging_out_takes_nothing_that_a_run_needs(make_run: MakeRun) -> None:
    """A run that was left in the background is heard, saves on request and prunes when $XDG_RUNTIME_DIR is gone."""
    run = make_run(plain(steps=100_000, seconds=0.01, save={"every_steps": 20}, keep={"last": 2}))
    place = run.folder / "user"
    place.mkdir(mode=0o700)
    first = run.start(env={"XDG_RUNTIME_DIR": str(place)})
    run.until_step(10)
    assert list(place.iterdir()), "the socket is there"
    shutil.rmtree(place)
    told = run.cli("save", str(run.directory.path))
    assert told.code == 0, f"{told.err}{run.report()}"
    first.until(lambda: run.records("dropped"), "a generation that was pruned")
    first.send(signal.SIGTERM)
    assert first.wait() == ExitCode.SAVED
    assert len(run.attempts()) == 1


def test_a_save_that_nobody_answers_is_answered_when_the_attempt_ends(make_run: MakeRun) -> None:
    """Whoever asks for a save that never comes is told so, and is not left to wait."""
    run = make_run(plain("--fail-in", 2, steps=3, seconds=3) | {"restart": {"never_on": [1]}})
    first = run.start()
    run.until_step(1)
    request = write_request(run.directory, "save", {}, "ann")
    assert first.wait() == ExitCode.HELD, run.report()
    answer = read_history(run.directory).answers[request]
    assert (answer.ok, answer.text) == (False, "the attempt ended before a save")


def test_what_was_answered_is_not_done_again(make_run: MakeRun) -> None:
    """A stop whose file comes back after its answer, as after a power cut, stops no run that was released since."""
    run = make_run(plain(steps=100_000, seconds=0.01))
    run.start()
    run.until_step(5)
    kept = run.folder / "kept"

    def asked_again() -> Path | None:
        for file in run.directory.requests.glob("*-*.json"):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                kept.hardlink_to(file)
        return kept if kept.exists() else None

    with ThreadPoolExecutor(1) as other:
        stopped = other.submit(ask, run, "stop")
        run.until(asked_again, "the request")
        assert stopped.result() == "stopped; the run is held"
    run.supervisors[0].wait()
    request = next(r.data["id"] for r in run.records(journal.REQUEST))
    back = run.directory.requests / f"{request}.json"
    kept.rename(back)
    second = run.start("--release")
    second.until(lambda: not back.exists(), "the request to be taken away")
    run.until_step(run.metrics(1)[-1]["step"] + 20, attempt=2)
    assert second.running()
    assert len(run.records(journal.REQUEST)) == 1
    second.send(signal.SIGTERM)
    assert second.wait() == ExitCode.SAVED


def test_what_could_not_be_read_when_it_was_asked_is_read_later(make_run: MakeRun) -> None:
    """A request that comes while the supervisor can open nothing is answered once it can, without another one."""
    run = make_run(plain(steps=100_000, seconds=0.01))
    supervisor = run.start()
    run.until_step(5)
    supervisor.until(lambda: not list(run.directory.requests.iterdir()), "nothing to be asked")
    with no_more_files(supervisor.pid):
        asked = write_request(run.directory, "save", {}, "ann")
        supervisor.until(lambda: "cannot read what is asked" in supervisor.output, "a look in vain")
    assert run.until(lambda: read_history(run.directory).answers.get(asked), "an answer").ok
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == ExitCode.SAVED


def test_a_request_to_save_ends_nothing(make_run: MakeRun) -> None:
    """A command without a handler for its signal trains on, and who asked is told why."""
    run = make_run(bare([PYTHON, "train.py"]), script=WAITS)
    supervisor = run.start()
    up(run)
    worker = supervisor.worker()
    asked = run.cli("save", str(run.directory.path))
    assert asked.code == 1
    assert "no handler for SIGUSR1, which would end it" in asked.err + asked.out
    supervisor.send(signal.SIGUSR1)
    supervisor.until(
        lambda: supervisor.output.count("no save: the command has no handler") == 2, "the second word"
    )
    assert supervisor.worker() == worker
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    assert len(run.attempts()) == 1


@pytest.mark.parametrize(
    "how",
    [
        "signal.signal(signal.SIGUSR1, lambda n, f: pathlib.Path('heard').touch()); pathlib.Path('up')",
        "import threading; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); "
        "wait = lambda: signal.sigwait([signal.SIGUSR1]) and pathlib.Path('heard').touch(); "
        "threading.Thread(target=wait, daemon=True).start(); pathlib.Path('up')",
    ],
)
def test_a_request_to_save_reaches_who_hears_it(make_run: MakeRun, how: str) -> None:
    """A command without the library gets the signal where it has a handler, and where a thread waits for it."""
    run = make_run(bare([PYTHON, "train.py"]), script=WAITS.replace("pathlib.Path('up')", how))
    supervisor = run.start()
    up(run)
    supervisor.send(signal.SIGUSR1)
    run.until(lambda: (run.folder / "heard").exists(), "the signal")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
