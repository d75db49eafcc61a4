"""A training script under a supervisor that only listens: kills, signals, failures, and what is on disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.listening import TRAIN, Listener, Zygote

from outlast_jobs.claim import claim
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.look import Verdict, look


@pytest.fixture
def make(tmp_path: Path, zygote: Zygote) -> Iterator[Callable[[str], Listener]]:
    made: list[Listener] = []

    def one(name: str) -> Listener:
        made.append(Listener(tmp_path / name, zygote))
        return made[-1]

    yield one
    for listener in made:
        listener.close()


@pytest.fixture
def listener(make: Callable[[str], Listener]) -> Listener:
    return make("a")


def _uninterrupted(make: Callable[[str], Listener], **env: str) -> Listener:
    whole = make("whole")
    code, output = whole.through(**env)
    assert code == 0, output
    return whole


def _assert_same_run(one: Listener, other: Listener) -> None:
    assert one.history() == other.history()
    final, expected = one.index(), other.index()
    assert final.final
    assert expected.final
    assert final.state_sha256 == expected.state_sha256


def test_an_uninterrupted_run_speaks_and_seals(listener: Listener) -> None:
    """Phases, READY, steps, seals, done, in that order; a final generation with its digest; a line a step."""
    code, output = listener.through(OUTLAST_SAVE_EVERY_STEPS="15")
    assert code == 0, output
    listener.wait("X_OUTLAST_EXIT", "done")
    assert listener.heard[0]["X_OUTLAST_PHASE"] == "restore"
    assert listener.heard[1] == {
        "READY": "1",
        "X_OUTLAST_PROTOCOL": "1",
        "X_OUTLAST_RANK": "0",
        "X_OUTLAST_STEP": "0",
    }
    first_step = next(m for m in listener.heard[2:] if "X_OUTLAST_STEP" in m)
    assert first_step["X_OUTLAST_STEP"] == "1"
    assert first_step["X_OUTLAST_TOTAL"] == "40"
    float(first_step["X_OUTLAST_LOSS"])
    names = ["step-000000015.a0001", "step-000000030.a0001", "step-000000040.a0001"]
    assert listener.values("X_OUTLAST_SEALED") == names
    assert [path.name for path in listener.generations()] == names
    for path in listener.generations():
        assert look(path, listener.run_id, full=True).verdict is Verdict.VERIFIED
    index = listener.index()
    assert index.final
    assert index.healthy
    assert index.state_sha256
    assert (index.data["name"], index.data["batch_size"]) == ("squares", 4)
    assert sorted(listener.history()) == list(range(1, 41))
    ids = [i for line in listener.history().values() for i in line["ids"]]
    assert all(sorted(ids[k : k + 30]) == list(range(30)) for k in range(0, len(ids) - 29, 30))


def test_without_a_supervisor_the_same_script_trains(tmp_path: Path) -> None:
    """A plain run trains to its end, and leaves no file and no handler's trace."""
    (tmp_path / "train.py").write_text(TRAIN)
    env = {key: value for key, value in os.environ.items() if not key.startswith("OUTLAST_")}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("after 40 ")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("accumulate", ["1", "3"])
def test_killed_and_stopped_at_random_the_run_is_the_run(
    make: Callable[[str], Listener], accumulate: str
) -> None:
    """KILL, TERM and USR1 at random instants: losses, rates, ids, streams and the final state are bit for bit
    those of the uninterrupted run."""
    env = {"OUTLAST_SAVE_EVERY_STEPS": "4", "ACCUMULATE": accumulate, "PAUSE": "0.01"}
    whole = _uninterrupted(make, **env)
    cut = make("cut")
    draw = random.Random(int(accumulate))
    for number in [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1, signal.SIGKILL]:
        process = cut.start(**env)
        cut.wait_for_step(min(39, (cut.index().step if cut.newest() else 0) + draw.randrange(1, 8)))
        process.signal(number)
        if number == signal.SIGUSR1:
            process.signal(signal.SIGKILL)
        code, output = process.finish()
        assert code in (75, -9, 0), output
    code, output = cut.through(**env)
    assert code == 0, output
    _assert_same_run(cut, whole)


def test_term_to_the_whole_group_saves_once_and_leaves_no_loader(make: Callable[[str], Listener]) -> None:
    """Fifty TERMs to trainer and loader processes: one save at the boundary, exit 75, one line with the
    count, nobody left; and the run goes on bit for bit."""
    env = {"WORKERS": "2", "PAUSE": "0.01"}
    whole = _uninterrupted(make, **env)
    cut = make("cut")
    process = cut.start(**{**env, "PAUSE": "0.1"})  # far from done when it is stopped
    cut.wait_for_step(5)
    for _ in range(50):
        os.killpg(process.pid, signal.SIGTERM)
    code, output = process.finish()
    assert code == 75, output
    assert "Traceback" not in output
    assert output.count("stopping after SIGTERM") == 1
    assert len(cut.generations()) == 1
    assert cut.values("X_OUTLAST_EXIT") == ["saved"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    code, output = cut.through(**env)
    assert code == 0, output
    assert "(bit-exact expected)" in output
    _assert_same_run(cut, whole)


def test_a_request_saves_the_next_boundary_and_training_goes_on(listener: Listener) -> None:
    """USR1 brings one generation and no exit."""
    process = listener.start(TOTAL="60", PAUSE="0.04")
    listener.wait_for_step(3)
    process.signal(signal.SIGUSR1)
    listener.wait("X_OUTLAST_SEALED")
    code, output = process.finish()
    assert code == 0, output
    assert len(listener.generations()) == 2
    assert listener.index(listener.generations()[0]).reason == "asked for"


def test_a_stop_before_the_first_step_has_nothing_to_save(listener: Listener) -> None:
    """TERM that was blocked across exec and came while torch was imported: exit 75 at once, no generation."""
    # A real exec, unlike the others: blocks the signal, sends it to itself, and becomes the script.
    begin = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
        "os.kill(os.getpid(), signal.SIGTERM); os.execv(sys.executable, [sys.executable, 'train.py'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin],
        cwd=listener.folder,
        env=listener.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "nothing to save yet" in done.stderr
    assert not listener.generations()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_an_evaluation_answers_with_the_last_boundary(make: Callable[[str], Listener], number: int) -> None:
    """In the middle of an evaluation, with other weights swapped in, the last boundary's state is saved; what
    the evaluation drew changes nothing in the training that follows."""
    whole = _uninterrupted(make, MODE="eval", SHORT="1")
    cut = make("cut")
    process = cut.start(MODE="eval")
    cut.wait("X_OUTLAST_PHASE", "eval")
    process.signal(number)
    cut.wait("X_OUTLAST_SEALED", "step-000000006.a0001")
    if number == signal.SIGUSR1:
        process.signal(signal.SIGKILL)
    code, output = process.finish()
    assert code == (75 if number == signal.SIGTERM else -9), output
    code, output = cut.through(MODE="eval")
    assert code == 0, output
    _assert_same_run(cut, whole)


def test_when_the_supervisor_dies_the_trainer_saves_and_stops(listener: Listener) -> None:
    """The socket refuses and the process named is gone: save at the next boundary, exit 75."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as supervisor:
        identity = ProcessIdentity.of(supervisor.pid)
        process = listener.start(OUTLAST_SUPERVISOR=str(identity), TOTAL="100000", PAUSE="0.02")
        listener.wait_for_step(2)
        supervisor.communicate(b"\n")
    listener.fall_silent()
    code, output = process.finish()
    assert code == 75, output
    assert "the supervisor is gone" in output
    assert len(listener.generations()) == 1


def test_a_failed_save_costs_that_save_only(listener: Listener) -> None:
    """A full disk at one cadence: the failure is told, training goes on, the next save succeeds."""
    code, output = listener.through(MODE="full", TOTAL="20", OUTLAST_SAVE_EVERY_STEPS="5")
    assert code == 0, output
    assert [int(path.name[5:14]) for path in listener.generations()] == [5, 15, 20]
    assert len(listener.values("X_OUTLAST_SAVE_FAILED")) == 1


def test_a_name_that_is_taken_costs_that_save_only(listener: Listener) -> None:
    """What lies under the name of a save that is made meanwhile is never touched; the training goes on all the same."""
    taken = "step-000000014.a0001"
    script = listener.folder / "train.py"
    script.write_text(f"import os; os.mkdir(os.environ['OUTLAST_CHECKPOINTS'] + '/{taken}')\n{TRAIN}")
    code, output = listener.through(OUTLAST_SAVE_EVERY_STEPS="7")
    assert code == 0, output
    assert f'cannot save "{taken}": it is there already' in output
    assert not list((listener.run.checkpoints / taken).iterdir())
    steps = [int(name[5:14]) for name in listener.values("X_OUTLAST_SEALED")]
    assert steps == [7, 21, 28, 35, 40]


def test_a_stale_writer_is_fenced(listener: Listener) -> None:
    """A newer attempt has claimed the run: the old trainer seals nothing and stops."""
    process = listener.start(TOTAL="100000", PAUSE="0.01")
    listener.wait_for_step(2)
    claim(listener.run.checkpoints, 9)
    process.signal(signal.SIGUSR1)
    code, output = process.finish()
    assert code == 75, output
    assert "stopping without a save" in output
    assert not listener.generations()
    assert not listener.values("X_OUTLAST_EXIT")


def test_a_failure_says_what_where_and_when(listener: Listener) -> None:
    """An exception is reported with its place, its step and its phase; nothing is saved by it."""
    code, _ = listener.through(MODE="raise")
    assert code == 1
    listener.wait("X_OUTLAST_FAILURE")
    failure = json.loads(listener.values("X_OUTLAST_FAILURE")[0])
    where = failure.pop("where")
    assert where.startswith("train.py:")
    assert where.endswith(" in <module>")
    assert failure == {
        "exception": "ValueError",
        "message": "bad luck",
        "step": 6,
        "phase": "train",
        "passing": False,
    }
    assert not listener.generations()


@pytest.mark.parametrize(
    ("mode", "exception", "phase"), [("wide", "PartError", "restore"), ("exit", "SystemExit", "train")]
)
def test_a_failed_restore_and_a_script_that_exits_are_failures_too(
    listener: Listener, mode: str, exception: str, phase: str
) -> None:
    """A state that does not fit fails in the phase restore, told before the attach; so does sys.exit(3)."""
    assert listener.through(TOTAL="4")[0] == 0
    code, output = listener.through(MODE=mode)
    assert code == (3 if mode == "exit" else 1), output
    failure = json.loads(listener.values("X_OUTLAST_FAILURE")[0])
    assert failure["exception"].endswith(exception)
    assert failure["phase"] == phase
    assert ("READY" in {key for message in listener.heard for key in message}) == (mode == "exit")
    assert len(listener.generations()) == 1


def test_a_loss_that_is_not_finite_is_told_once_and_marks_its_generations(listener: Listener) -> None:
    """NaN at step 5: told once, its generation unhealthy, and the history reads it back."""
    code, output = listener.through(MODE="nan", TOTAL="10", OUTLAST_SAVE_EVERY_STEPS="5")
    assert code == 0, output
    assert listener.values("X_OUTLAST_SICK") == ["5"]
    assert [listener.index(path).healthy for path in listener.generations()] == [False, True]
    assert listener.history()[5]["loss"] == "nan"


def test_a_script_that_ignores_the_restored_step_is_refused(listener: Listener) -> None:
    """A counter that disagrees with the restored one ends the worker with 65 before anything is saved."""
    assert listener.through(TOTAL="4")[0] == 0
    sealed = listener.generations()
    code, output = listener.through(MODE="ignore", OUTLAST_SAVE_EVERY_STEPS="1")
    assert code == 65, output
    assert "restore not honoured" in listener.values("X_OUTLAST_REFUSED")[0]
    assert listener.generations() == sealed


def test_a_flipped_bit_is_never_trained_from(listener: Listener) -> None:
    """A shard that does not match its index: told with generation and file, exit 65, not one step trained."""
    listener.through(TOTAL="4")
    newest = listener.newest()
    if newest is None:
        raise FileNotFoundError("no generation")
    shard = newest / "model.shard-000.pt"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    heard = len(listener.heard)
    code, output = listener.through(TOTAL="8")
    assert code == 65, output
    bad = json.loads(listener.values("X_OUTLAST_BAD")[0])
    assert bad["generation"] == newest.name
    assert bad["file"] == "model.shard-000.pt"
    assert not any("READY" in message or "X_OUTLAST_STEP" in message for message in listener.heard[heard:])


def test_strict_identity_refuses_a_changed_environment(listener: Listener) -> None:
    """Drift is listed and trained through, or refused with 65 where the job says strict."""
    listener.through(TOTAL="4")
    code, output = listener.through(TOTAL="6", PYTHONHASHSEED="1")
    assert code == 0, output
    assert "PYTHONHASHSEED 0→1" in json.loads(listener.values("X_OUTLAST_DRIFT")[0])[0]
    assert "bit-exact not expected" in output
    code, output = listener.through(TOTAL="8", PYTHONHASHSEED="2", OUTLAST_IDENTITY="strict")
    assert code == 65, output
    assert "PYTHONHASHSEED 1→2" in listener.values("X_OUTLAST_REFUSED")[0]


def test_another_class_that_takes_the_state_is_told(listener: Listener) -> None:
    """A script that was changed from AdamW to Adam, whose state is of the same form: told, or refused where strict."""
    listener.through(TOTAL="4")
    code, output = listener.through(TOTAL="6", MODE="adam")
    assert code == 0, output
    assert "code: optimizer class AdamW → Adam" in output
    code, output = listener.through(TOTAL="8", OUTLAST_IDENTITY="strict")
    assert code == 65, output
    assert "optimizer class Adam → AdamW" in listener.values("X_OUTLAST_REFUSED")[0]


def test_an_option_more_of_the_same_class_is_told(listener: Listener) -> None:
    """A newer version of somebody's optimizer goes on with what an older one saved, and says what that had not."""
    listener.through(TOTAL="4", MODE="mine")
    code, output = listener.through(TOTAL="6", MODE="newer")
    assert code == 0, output
    assert "optimizer: saved without warm" in output


def test_a_break_at_a_sealed_step_still_ends_with_a_final_generation(listener: Listener) -> None:
    """Left early at a step that this attempt had sealed: a second, final seal of it under its own name."""
    code, output = listener.through(MODE="break", OUTLAST_SAVE_EVERY_STEPS="4")
    assert code == 0, output
    assert [path.name for path in listener.generations()][-2:] == [
        "step-000000012.a0001",
        "step-000000012.a0001.final",
    ]
    assert listener.index().final


def test_what_follows_the_training_is_without_its_loader_processes(listener: Listener) -> None:
    """A script that goes on, to export or to evaluate, has the memory and the cores that they had."""
    count = "import multiprocessing; print('left', multiprocessing.active_children())"
    (listener.folder / "train.py").write_text(f"{TRAIN}\n{count}\n")
    code, output = listener.through(MODE="break", WORKERS="2")
    assert code == 0, output
    assert "left []" in output


def test_a_run_killed_after_its_last_step_is_finished_without_training(listener: Listener) -> None:
    """Resumed from the last step, unsealed as final: nothing is trained, the final generation is sealed."""
    process = listener.start(TOTAL="8", OUTLAST_SAVE_EVERY_STEPS="4", PAUSE="0.4")
    listener.wait("X_OUTLAST_SEALED", "step-000000004.a0001")
    process.signal(signal.SIGKILL)
    process.finish()
    code, output = listener.through(TOTAL="4")
    assert code == 0, output
    assert listener.newest() == listener.run.checkpoints / "step-000000004.a0002"
    assert listener.index().final
    code, output = listener.through(TOTAL="4")
    assert code == 0, output
    assert listener.newest() == listener.run.checkpoints / "step-000000004.a0002"


def test_a_script_knows_its_own_values_before_it_sets_up_anything_else(listener: Listener) -> None:
    """What a script stored, such as the id of its run at a tracker, is there as soon as the Checkpointer is."""
    code, output = listener.through(MODE="raise", OUTLAST_SAVE_EVERY_STEPS="3")
    assert code == 1, output
    assert "before: None 0" in output
    code, output = listener.through(TOTAL="8")
    assert code == 0, output
    assert "before: 6 6" in output
