"""A script without the library is carried to its end by the checkpoints that it writes itself."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import Run

from outlast_jobs import events
from outlast_jobs.contract import ExitCode

ADOPT = {
    "pattern": "out/checkpoint-*",
    "complete": "trainer_state.json",
    "resume": "--resume_from_checkpoint {path}",
}


def a_job(*words: object, **more: Any) -> dict[str, Any]:
    command = ["{python}", "{scripts}/trainer.py", *map(str, words)]
    return {"command": command, "signals": "native", "adopt": ADOPT, **more}


def result(steps: int) -> str:
    """What an undisturbed training comes to."""
    total = 0
    for step in range(1, steps + 1):
        total = (total * 31 + step) % 1_000_003
    return str(total)


def resumed(run: Run) -> list[str | None]:
    return [record.data["resume"] for record in run.records(events.ATTEMPT_STARTED)]


def killed_in_a_save(run: Run) -> None:
    """The supervisor, and then its script, in the middle of a save."""
    start = run.start()
    run.until(lambda: (run.folder / "hangs").exists(), "the middle of a save")
    worker = start.worker()
    start.kill()
    os.kill(worker, signal.SIGKILL)


def flip(path: Path) -> None:
    """One bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def test_a_killed_script_goes_on_from_its_furthest_whole_checkpoint(make_run: MakeRun) -> None:
    """Killed in the middle of a save, it is told the one before, and comes to what the undisturbed one comes to."""
    run = make_run(a_job("--hang-at", 30))
    start = run.start()
    run.until(lambda: (run.folder / "hangs").exists(), "the middle of a save")
    os.kill(start.worker(), signal.SIGKILL)
    assert start.wait() == 0, run.report()
    assert resumed(run) == [None, "checkpoint-25"]
    assert "begins behind 25" in run.log(2)
    assert f"--resume_from_checkpoint {run.folder}/out/checkpoint-25" in run.log(2).splitlines()[0]
    assert (run.folder / "total").read_text() == result(60)
    assert "attempt 2 resumes from checkpoint-25" in start.output
    assert "attempt 2 ended at step 60" in start.output
    run.nothing_left()


def test_its_checkpoints_are_its_progress(make_run: MakeRun) -> None:
    """What the script has saved is in the status while it runs, and the last of it once it is done."""
    run = make_run(a_job("--hang-at", 30))
    start = run.start()
    status = run.until_status(lambda status: status["step"] == 25, "the status of its checkpoint")
    assert status["last_save"]["generation"] == "checkpoint-25"
    assert abs(status["last_save"]["at"] - (run.folder / "out/checkpoint-25").stat().st_mtime) < 5
    os.kill(start.worker(), signal.SIGKILL)
    assert start.wait() == 0, run.report()
    done = run.status()
    assert done is not None
    assert (done["step"], done["last_save"]["generation"]) == (60, "checkpoint-60")


def test_the_next_start_goes_on_as_well(make_run: MakeRun) -> None:
    """After the supervisor and its script were killed, the same command goes on; done stays done."""
    run = make_run(a_job("--hang-at", 40))
    killed_in_a_save(run)
    again = run.start()
    assert again.wait() == 0, run.report()
    assert resumed(run) == [None, "checkpoint-35"]
    assert (run.folder / "total").read_text() == result(60)
    done = run.start()
    assert done.wait() == 0
    assert "already complete" in done.output
    assert resumed(run) == [None, "checkpoint-35"]


def test_a_flipped_bit_is_never_trained_from(make_run: MakeRun) -> None:
    """A damaged checkpoint is passed over with its reason, and stays where it is; the whole one before is used."""
    run = make_run(a_job("--hang-at", 30))
    killed_in_a_save(run)
    flip(run.folder / "out/checkpoint-25/model.pt")
    spoilt = (run.folder / "out/checkpoint-25/model.pt").read_bytes()
    again = run.start()
    assert again.wait() == 0, run.report()
    assert resumed(run) == [None, "checkpoint-20"]
    assert "checkpoint-25: 'model.pt' is damaged: the checksum of 'weights' is wrong" in again.output
    (passed,) = run.records(events.PASSED_OVER)
    assert passed.data["generation"] == "checkpoint-25"
    assert (run.folder / "total").read_text() == result(60)
    assert (
        run.folder / "out/checkpoint-25/model.pt"
    ).read_bytes() != spoilt  # by the script that wrote it again


def test_nothing_whole_is_no_start_from_zero(make_run: MakeRun) -> None:
    """With damaged checkpoints alone the run ends with 65 and starts nothing; one that was only begun is none."""
    run = make_run(a_job())
    begun, damaged = run.folder / "out/checkpoint-10", run.folder / "out/checkpoint-5"
    for folder in (begun, damaged):
        folder.mkdir(parents=True)
        (folder / "model.pt").write_bytes(b"PK\3\4 torn")
    (damaged / "trainer_state.json").write_text("{}")
    start = run.start()
    assert start.wait() == ExitCode.UNUSABLE, run.report()
    assert "does not start from zero" in start.output
    assert "checkpoint-5: 'model.pt' is torn" in start.output
    assert run.attempts() == []
    named = run.start("--from", "out/checkpoint-5")
    assert named.wait() == ExitCode.UNUSABLE
    assert (damaged / "model.pt").read_bytes() == (begun / "model.pt").read_bytes() == b"PK\3\4 torn"
    (damaged / "trainer_state.json").unlink()
    fresh = run.start()
    assert fresh.wait() == 0, run.report()
    assert resumed(run) == [None]


def test_verify_reads_what_the_script_wrote(make_run: MakeRun) -> None:
    """Each checkpoint by what its formats say of themselves; none of them is renamed, whatever is asked for."""
    run = make_run(a_job("--steps", 15))
    assert run.start().wait() == 0, run.report()
    whole = run.cli("verify", "--json", str(run.directory.path))
    assert whole.code == 0
    assert [found["generation"] for found in json.loads(whole.out)] == [
        f"checkpoint-{n}" for n in (15, 10, 5)
    ]
    flip(run.folder / "out/checkpoint-10/model.pt")
    (run.folder / "out/checkpoint-5/trainer_state.json").unlink()
    found = run.cli("verify", "--quarantine", str(run.directory.path))
    assert found.code == 1
    lines = [line.split() for line in found.out.splitlines()]
    assert [line[:2] for line in lines] == [
        ["verified", "checkpoint-15"],
        ["corrupt", "checkpoint-10"],
        ["incomplete", "checkpoint-5"],
    ]
    assert len(list((run.folder / "out").iterdir())) == 3


def test_what_only_generations_have_is_told(make_run: MakeRun) -> None:
    """A pin and an export of a script's own checkpoints: neither waits for a first save, nor says that it will come."""
    run = make_run(a_job("--steps", 5))
    assert run.start().wait() == 0, run.report()
    pinned = run.cli("pin", str(run.directory.path))
    assert pinned.code != 0
    assert "kept or deleted by the script alone; copy what has to stay" in pinned.err
    exported = run.cli("export", str(run.directory.path), str(run.folder / "taken"))
    assert exported.code == ExitCode.UNUSABLE
    assert "its script saves by itself what matches 'out/checkpoint-*'; see outlast verify" in exported.err


def test_a_person_names_another_one(make_run: MakeRun) -> None:
    """--from takes a path as a person sees it or as the job does; it is used for one start."""
    run = make_run(a_job("--steps", 20))
    assert run.start().wait() == 0, run.report()
    for place, named in enumerate(("out/checkpoint-10", f"{run.folder}/out/checkpoint-5"), 2):
        run.write_job(a_job("--steps", 20 + place))
        assert run.start("--from", named).wait() == 0, run.report()
        assert f"begins behind {named.rpartition('-')[2]}" in run.log(place)
        assert (run.folder / "total").read_text() == result(20 + place)


@pytest.mark.parametrize(("every", "attempts"), [(5, 10), (1000, 3)])
def test_a_checkpoint_is_progress(make_run: MakeRun, every: int, attempts: int) -> None:
    """Failures with a new checkpoint before each do not add up; three without one end the run."""
    script = (
        "import runpy, sys\n"
        "flag = '--resume_from_checkpoint'\n"
        "resumed = sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else '-0'\n"
        "sys.argv += ['--fail-at', str(int(resumed.rpartition('-')[2]) + 7)]\n"
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
    )
    run = make_run(
        {
            **a_job(),
            "command": [
                "{python}",
                "train.py",
                "{scripts}/trainer.py",
                "--steps",
                "50",
                "--every",
                str(every),
            ],
            "restart": {"backoff": "10ms..20ms", "without_progress": 3, "waiting": 0},
        },
        script=script,
    )
    start = run.start()
    code = start.wait()
    assert code == (0 if every == 5 else ExitCode.HELD), run.report()
    assert len(run.attempts()) == attempts
    if every == 5:
        assert (run.folder / "total").read_text() == result(50)


@pytest.mark.parametrize(("saves", "attempts"), [(True, 10), (False, 3)])
def test_a_file_that_is_written_over_is_progress(make_run: MakeRun, saves: bool, attempts: int) -> None:
    """Its name stays, and so has no step: that it was written anew counts. Where it never is the run is given up."""
    script = (
        "import json, os, sys\n"
        "first = json.load(open(sys.argv[2])) if len(sys.argv) > 2 else 0\n"
        "for step in range(first + 1, 51):\n"
        "    if sys.argv[1] == 'True' and step % 5 == 0:\n"
        "        json.dump(step, open('new', 'w'))\n"
        "        os.replace('new', 'last.json')\n"
        "    if step == first + 7:\n"
        "        raise SystemExit(1)\n"
    )
    run = make_run(
        {
            **a_job(),
            "command": ["{python}", "train.py", str(saves)],
            "adopt": {"pattern": "last.json", "resume": "{path}"},
            "restart": {"backoff": "10ms..20ms", "without_progress": 3, "waiting": 0},
        },
        script=script,
    )
    assert run.start().wait() == (0 if saves else ExitCode.HELD), run.report()
    assert len(run.attempts()) == attempts


def test_what_a_script_keeps_is_not_taken_unasked(make_run: MakeRun) -> None:
    """With --fresh, and in a proof or a drill, its checkpoints would be gone on from: refused, nothing is touched."""
    run = make_run(a_job())
    folder = run.folder / "out/checkpoint-5"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text("{}")
    fresh = run.start("--fresh")
    assert fresh.wait() == ExitCode.USAGE
    assert f'"{folder}" still matches "adopt"; move' in fresh.output
    for command in ("prove", "drill"):
        ended = run.cli(command, str(run.job_file))
        assert ended.code == ExitCode.USAGE
        assert "would go on from, and write over" in ended.err
    assert run.attempts() == []
    assert sorted(path.name for path in folder.parent.rglob("*")) == ["checkpoint-5", "trainer_state.json"]
