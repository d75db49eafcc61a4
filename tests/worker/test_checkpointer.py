"""A training script under a supervisor that only listens: kills, signals, failures, and what is on disk."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from outlast_jobs.claim import claim
from outlast_jobs.generation import GenerationName, Index, decode_index
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.look import Verdict, look
from outlast_jobs.rundir import RunDirectory

TRAIN = """
import os, random, sys, time
import numpy as np
import torch
from outlast_worker import Checkpointer, batches

torch.set_num_threads(1)
mode = os.environ.get("MODE", "")
total = int(os.environ.get("TOTAL", "40"))
pause = float(os.environ.get("PAUSE", "0.002"))
torch.manual_seed(1); random.seed(2); np.random.seed(3)

class Squares(torch.utils.data.Dataset):
    identity = {"name": "squares"}
    def __len__(self): return 30
    def __getitem__(self, i): return torch.tensor([float(i), random.random(), float(np.random.rand())]) / 30

model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
data = batches(Squares(), 4, workers=int(os.environ.get("WORKERS", "0")), seed=5, start_method="fork")
noise = np.random.default_rng(7)
ckpt = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, data=data, noise=noise)
ckpt.extra.setdefault("began", 0)
accumulate = int(os.environ.get("ACCUMULATE", "1"))
with ckpt:
    for found in ckpt.steps(total, accumulate):
        loss = torch.zeros(())
        for batch in found if accumulate > 1 else [found]:
            loss = loss + model(batch + torch.rand(()) + random.random() + np.random.rand()).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step(); scheduler.step()
        time.sleep(pause)
        at = ckpt.step_count + 1
        if mode == "nan" and at == 5: loss = loss * float("nan")
        if mode == "raise" and at == 7: raise ValueError("bad luck")
        if mode == "ignore": ckpt.step(loss, step=at - 3)
        elif mode == "full" and at == 10:
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)); import signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            ckpt.step(loss)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            ckpt.extra["last"] = at
            ckpt.step(loss)
        if mode == "eval" and ckpt.step_count == 6:
            with ckpt.phase("eval"):
                torch.rand(9); random.random(); np.random.rand(3)
                for parameter in model.parameters(): parameter.data.mul_(2)   # weights swapped in
                while os.environ["OUTLAST_ATTEMPT"] == "1":
                    ckpt.poll(); time.sleep(0.005)
                for parameter in model.parameters(): parameter.data.mul_(0.5)
        if mode == "break" and ckpt.step_count == 12: break
print("after", ckpt.step_count, ckpt.epoch, ckpt.batch_in_epoch, flush=True)
"""


class Listener:
    """What a supervisor hears, and how it starts an attempt; it decides nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = RunDirectory(folder / "run")
        self.run_id = self.run.create().run.run_id
        self.heard: list[dict[str, str]] = []
        self.address = str(folder / "n")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.attempt = 0
        self.started: list[subprocess.Popen[str]] = []
        (folder / "train.py").write_text(TRAIN)

    def start(self, **env: str) -> subprocess.Popen[str]:
        self.attempt += 1
        self.heard.clear()
        claim(self.run.checkpoints, self.attempt)
        newest = self.newest()
        process = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=self.folder,
            env={
                **os.environ,
                "NOTIFY_SOCKET": self.address,
                "OUTLAST_RUN": str(self.run.path),
                "OUTLAST_RUN_ID": self.run_id,
                "OUTLAST_ATTEMPT": str(self.attempt),
                "OUTLAST_CHECKPOINTS": str(self.run.checkpoints),
                "OUTLAST_SUPERVISOR": str(ProcessIdentity.current()),
                "OUTLAST_RECORD_IDS": "1",
                "PYTHONHASHSEED": "0",
                **({"OUTLAST_RESUME": str(newest)} if newest else {}),
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        out, err = process.communicate(timeout=60)
        return process.returncode, out + err

    def generations(self) -> list[Path]:
        names = [name for path in self.run.checkpoints.iterdir() if (name := GenerationName.parse(path.name))]
        return [self.run.checkpoints / str(name) for name in sorted(names)]

    def newest(self) -> Path | None:
        return next(iter(reversed(self.generations())), None)

    def index(self, path: Path | None = None) -> Index:
        found = path or self.newest()
        if found is None:
            raise FileNotFoundError("no generation")
        return decode_index((found / "index.json").read_bytes())

    def values(self, key: str) -> list[str]:
        return [message[key] for message in list(self.heard) if key in message]

    def wait(self, key: str, value: str | None = None) -> None:
        wait_until(
            lambda: any(value in (None, found) for found in self.values(key)), 60, f"{key}={value or '…'}"
        )

    def wait_for_step(self, step: int) -> None:
        wait_until(
            lambda: any(int(found) >= step for found in self.values("X_OUTLAST_STEP")), 60, f"step {step}"
        )

    def history(self) -> dict[int, dict[str, Any]]:
        """Each step once, from the attempt that went on; the clock and the attempt left out."""
        steps: dict[int, dict[str, Any]] = {}
        for path in sorted(self.run.metrics.iterdir()):
            header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
            steps = {step: line for step, line in steps.items() if step <= header["restored_step"]}
            for line in lines:
                del line["t"]
                steps[line["step"]] = line
        return steps

    def close(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._socket.recv(8192):
                self.heard.append(dict(line.split("=", 1) for line in data.decode().split("\n")))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Listener]]:
    made: list[Listener] = []

    def one(name: str) -> Listener:
        (tmp_path / name).mkdir()
        made.append(Listener(tmp_path / name))
        return made[-1]

    yield one
    for listener in made:
        listener.close()


@pytest.fixture
def listener(make: Callable[[str], Listener]) -> Listener:
    return make("a")


def _uninterrupted(make: Callable[[str], Listener], **env: str) -> Listener:
    whole = make("whole")
    code, output = whole.finish(whole.start(**env))
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
    code, output = listener.finish(listener.start(OUTLAST_SAVE_EVERY_STEPS="15"))
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
    assert index.data == {"name": "squares"}
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
    assert done.stdout.startswith("after 40 ")
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
        process.send_signal(number)
        if number == signal.SIGUSR1:
            process.kill()
        code, output = cut.finish(process)
        assert code in (75, -9, 0), output
    code, output = cut.finish(cut.start(**env))
    assert code == 0, output
    _assert_same_run(cut, whole)


def test_term_to_the_whole_group_saves_once_and_leaves_no_loader(make: Callable[[str], Listener]) -> None:
    """Fifty TERMs to trainer and loader processes: one save at the boundary, exit 75, one line with the
    count, nobody left; and the run goes on bit for bit."""
    env = {"WORKERS": "2", "PAUSE": "0.01"}
    whole = _uninterrupted(make, **env)
    cut = make("cut")
    process = cut.start(**env)
    cut.wait_for_step(5)
    for _ in range(50):
        os.killpg(process.pid, signal.SIGTERM)
    code, output = cut.finish(process)
    assert code == 75, output
    assert "Traceback" not in output
    assert output.count("stopping after SIGTERM") == 1
    assert len(cut.generations()) == 1
    assert cut.values("X_OUTLAST_EXIT") == ["saved"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    code, output = cut.finish(cut.start(**env))
    assert code == 0, output
    assert "(bit-exact expected)" in output
    _assert_same_run(cut, whole)


def test_a_request_saves_the_next_boundary_and_training_goes_on(listener: Listener) -> None:
    """USR1 brings one generation and no exit."""
    process = listener.start(TOTAL="60", PAUSE="0.02")
    listener.wait_for_step(3)
    process.send_signal(signal.SIGUSR1)
    listener.wait("X_OUTLAST_SEALED")
    code, output = listener.finish(process)
    assert code == 0, output
    assert len(listener.generations()) == 2
    assert listener.index(listener.generations()[0]).reason == "asked for"


def test_a_stop_before_the_first_step_has_nothing_to_save(listener: Listener) -> None:
    """TERM that was blocked across exec and came while torch was imported: exit 75 at once, no generation."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        process = listener.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    process.send_signal(signal.SIGTERM)
    code, output = listener.finish(process)
    assert code == 75, output
    assert "nothing to save yet" in output
    assert not listener.generations()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_an_evaluation_answers_with_the_last_boundary(make: Callable[[str], Listener], number: int) -> None:
    """In the middle of an evaluation, with other weights swapped in, the last boundary's state is saved; what
    the evaluation drew changes nothing in the training that follows."""
    whole = _uninterrupted(make)
    cut = make("cut")
    process = cut.start(MODE="eval")
    cut.wait("X_OUTLAST_PHASE", "eval")
    process.send_signal(number)
    cut.wait("X_OUTLAST_SEALED", "step-000000006.a0001")
    if number == signal.SIGUSR1:
        process.kill()
    code, output = cut.finish(process)
    assert code == (75 if number == signal.SIGTERM else -9), output
    code, output = cut.finish(cut.start(MODE="eval"))
    assert code == 0, output
    _assert_same_run(cut, whole)


def test_when_the_supervisor_dies_the_trainer_saves_and_stops(listener: Listener) -> None:
    """The socket refuses and the process named is gone: save at the next boundary, exit 75."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as supervisor:
        identity = ProcessIdentity.of(supervisor.pid)
        process = listener.start(OUTLAST_SUPERVISOR=str(identity), TOTAL="100000", PAUSE="0.02")
        listener.wait_for_step(2)
        supervisor.communicate(b"\n")
    os.unlink(listener.address)
    code, output = listener.finish(process)
    assert code == 75, output
    assert "the supervisor is gone" in output
    assert len(listener.generations()) == 1


def test_a_failed_save_costs_that_save_only(listener: Listener) -> None:
    """A full disk at one cadence: the failure is told, training goes on, the next save succeeds."""
    code, output = listener.finish(listener.start(MODE="full", TOTAL="20", OUTLAST_SAVE_EVERY_STEPS="5"))
    assert code == 0, output
    assert [int(path.name[5:14]) for path in listener.generations()] == [5, 15, 20]
    assert len(listener.values("X_OUTLAST_SAVE_FAILED")) == 1
    assert "training goes on unprotected" in output


def test_a_stale_writer_is_fenced(listener: Listener) -> None:
    """A newer attempt has claimed the run: the old trainer seals nothing and stops."""
    process = listener.start(TOTAL="100000", PAUSE="0.01")
    listener.wait_for_step(2)
    claim(listener.run.checkpoints, 9)
    process.send_signal(signal.SIGUSR1)
    code, output = listener.finish(process)
    assert code == 75, output
    assert "stopping without a save" in output
    assert not listener.generations()
    assert not listener.values("X_OUTLAST_EXIT")


def test_a_failure_says_what_where_and_when(listener: Listener) -> None:
    """An exception is reported with its place, its step and its phase; nothing is saved by it."""
    code, _ = listener.finish(listener.start(MODE="raise"))
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


def test_a_loss_that_is_not_finite_is_told_once_and_marks_its_generations(listener: Listener) -> None:
    """NaN at step 5: told once, its generation unhealthy, and the history reads it back."""
    code, output = listener.finish(listener.start(MODE="nan", TOTAL="10", OUTLAST_SAVE_EVERY_STEPS="5"))
    assert code == 0, output
    assert listener.values("X_OUTLAST_SICK") == ["5"]
    assert [listener.index(path).healthy for path in listener.generations()] == [False, True]
    assert listener.history()[5]["loss"] == "nan"


def test_a_script_that_ignores_the_restored_step_is_refused(listener: Listener) -> None:
    """A counter that disagrees with the restored one ends the worker with 65 before anything is saved."""
    code, output = listener.finish(listener.start(MODE="ignore", OUTLAST_SAVE_EVERY_STEPS="1"))
    assert code == 65, output
    assert "restore not honoured" in listener.values("X_OUTLAST_REFUSED")[0]
    assert not listener.generations()


def test_a_flipped_bit_is_never_trained_from(listener: Listener) -> None:
    """A shard that does not match its index: told with generation and file, exit 65, not one step trained."""
    listener.finish(listener.start(TOTAL="4"))
    newest = listener.newest()
    if newest is None:
        raise FileNotFoundError("no generation")
    shard = newest / "model.shard-000.pt"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    heard = len(listener.heard)
    code, output = listener.finish(listener.start(TOTAL="8"))
    assert code == 65, output
    bad = json.loads(listener.values("X_OUTLAST_BAD")[0])
    assert bad["generation"] == newest.name
    assert bad["file"] == "model.shard-000.pt"
    assert not any("READY" in message or "X_OUTLAST_STEP" in message for message in listener.heard[heard:])


def test_strict_identity_refuses_a_changed_environment(listener: Listener) -> None:
    """Drift is listed and trained through, or refused with 65 where the job says strict."""
    listener.finish(listener.start(TOTAL="4"))
    code, output = listener.finish(listener.start(TOTAL="6", PYTHONHASHSEED="1"))
    assert code == 0, output
    assert "PYTHONHASHSEED 0→1" in json.loads(listener.values("X_OUTLAST_DRIFT")[0])[0]
    assert "bit-exact not expected" in output
    code, output = listener.finish(listener.start(TOTAL="8", PYTHONHASHSEED="2", OUTLAST_IDENTITY="strict"))
    assert code == 65, output
    assert "PYTHONHASHSEED 1→2" in listener.values("X_OUTLAST_REFUSED")[0]


def test_a_break_at_a_sealed_step_still_ends_with_a_final_generation(listener: Listener) -> None:
    """Left early at a step that this attempt had sealed: a second, final seal of it under its own name."""
    code, output = listener.finish(listener.start(MODE="break", OUTLAST_SAVE_EVERY_STEPS="4"))
    assert code == 0, output
    assert [path.name for path in listener.generations()][-2:] == [
        "step-000000012.a0001",
        "step-000000012.a0001.final",
    ]
    assert listener.index().final


def test_a_run_killed_after_its_last_step_is_finished_without_training(listener: Listener) -> None:
    """Resumed from the last step, unsealed as final: nothing is trained, the final generation is sealed."""
    process = listener.start(TOTAL="8", OUTLAST_SAVE_EVERY_STEPS="4", PAUSE="0.05")
    listener.wait("X_OUTLAST_SEALED", "step-000000004.a0001")
    process.kill()
    listener.finish(process)
    code, output = listener.finish(listener.start(TOTAL="4"))
    assert code == 0, output
    assert listener.newest() == listener.run.checkpoints / "step-000000004.a0002"
    assert listener.index().final
    code, output = listener.finish(listener.start(TOTAL="4"))
    assert code == 0, output
    assert listener.newest() == listener.run.checkpoints / "step-000000004.a0002"
