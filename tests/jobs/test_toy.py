"""The shipped job toy: a whole run, and each of its faults, which other tests rely on."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.waiting import wait_until

from outlast_jobs.catalog import shipped_jobs
from outlast_jobs.identity import ProcessIdentity

FOLDER = shipped_jobs()["toy"].parent


def _faults_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy_faults", FOLDER / "faults.py")
    if spec is None or spec.loader is None:
        raise ImportError("faults")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


faults = _faults_module()


def _faults(*switches: str) -> Any:
    parser = argparse.ArgumentParser()
    faults.add_switches(parser)
    return faults.Faults(parser.parse_args(switches))


def _environment(**changes: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("OUTLAST_")}
    return {**env, "OMP_NUM_THREADS": "1", **changes}


def _toy(folder: Path, *switches: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "train.py"), "--step-seconds", "0", *switches]
    return subprocess.run(
        command, cwd=folder, env=_environment(**env), capture_output=True, text=True, timeout=120, check=False
    )


# --- the run ---


def test_two_supervised_runs_are_the_same_run(tmp_path: Path) -> None:
    """Loader processes or none: the same final state and the same samples, each once an epoch."""
    outlast = str(Path(sys.executable).with_name("outlast"))
    finals, orders = [], []
    for workers in ("0", "2"):
        run = tmp_path / workers
        switches = ["--steps", "15", "--samples", "50", "--step-seconds", "0", "--ids", "--workers", workers]
        command = [outlast, "run", "toy", "--run-dir", str(run), "--", *switches]
        subprocess.run(command, cwd=tmp_path, env=_environment(), timeout=120, check=True)
        newest = max((run / "checkpoints").glob("step-*/index.json"))
        finals.append(json.loads(newest.read_text())["state_sha256"])
        lines = (run / "metrics" / "attempt-0001.jsonl").read_text().splitlines()[1:]
        orders.append([sample for line in lines for sample in json.loads(line)["ids"]])
    assert finals[0] == finals[1] is not None
    assert orders[0] == orders[1]
    assert Counter(orders[0][:100]) == dict.fromkeys(range(50), 2)


def test_a_plain_run_trains_and_ends_as_a_rank_of_torchrun_too(tmp_path: Path) -> None:
    """Without a supervisor, with accumulation, evaluations and torchrun's environment: trained, and no file left."""
    switches = ["--steps", "4", "--workers", "0", "--accumulate", "3", "--log-every", "2"]
    switches += ["--eval-every", "2", "--eval-seconds", "0.01", "--ballast", "1000"]
    done = _toy(tmp_path, *switches, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_PORT="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["step 2 of 4", "step 4 of 4"]
    assert not list(tmp_path.iterdir())


# --- the faults ---


def test_the_help_explains_every_switch() -> None:
    """No switch without a word on what it does."""
    parser = argparse.ArgumentParser()
    faults.add_switches(parser)
    assert [action.dest for action in parser._actions if not action.help] == []


def test_without_switches_nothing_goes_wrong() -> None:
    """Every fault is off unless it is asked for."""
    calm = _faults()
    calm.begin()
    for step in range(1, 400):
        calm.strike(step)
    assert not any(calm.spoils(step) for step in range(400))
    assert calm.claimed(7, 5) == 7
    assert not calm.deaf


def test_raise_at_fails_in_that_step_whenever_it_is_reached() -> None:
    """The same error each time at the step, and none before or after."""
    fault = _faults("--raise-at", "137")
    fault.strike(136)
    fault.strike(138)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="step 137 fails"):
            fault.strike(137)


def test_raise_random_fails_at_other_steps_each_time() -> None:
    """Sometimes, with no regard to the seeds; always at 1 and never at 0."""
    with pytest.raises(RuntimeError):
        _faults("--raise-random", "1").strike(1)
    fault, failed = _faults("--raise-random", "0.5"), 0
    for step in range(200):
        try:
            fault.strike(step)
        except RuntimeError:
            failed += 1
    assert 40 < failed < 160
    _faults("--raise-random", "0").strike(1)


def test_nan_from_spoils_that_step_and_all_later_ones() -> None:
    """The loss is NaN from the step on."""
    fault = _faults("--nan-from", "450")
    assert [fault.spoils(step) for step in (1, 449, 450, 451, 9999)] == [False, False, True, True, True]


def test_forget_step_counts_anew() -> None:
    """After a restore to step 40 the next step is called 1; after none it is called what it is."""
    fault = _faults("--forget-step")
    assert (fault.claimed(41, 41), fault.claimed(42, 41), fault.claimed(3, 1)) == (1, 2, 3)


def test_fault_attempts_ends_the_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults strike in the first attempts only, where that is asked for."""
    for attempt, strikes in (("1", True), ("2", True), ("3", False)):
        monkeypatch.setenv("OUTLAST_ATTEMPT", attempt)
        assert _faults("--nan-from", "1", "--fault-attempts", "2").spoils(1) is strikes


def test_fail_import_dies_before_torch_is_there(tmp_path: Path) -> None:
    """A worker that fails at import: a traceback, exit code 1, nothing trained."""
    done = _toy(tmp_path, "--fail-import")
    assert done.returncode == 1
    assert "ImportError: this import fails" in done.stderr
    assert done.stdout == ""


def test_ignore_term_leaves_sigterm_without_effect() -> None:
    """Once training begins, SIGTERM is ignored by the kernel itself."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        _faults("--ignore-term").begin()
        status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
        assert int(status["SigIgn"], 16) & 1 << signal.SIGTERM - 1
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_grandchild_is_nobodys_child_in_a_session_of_its_own() -> None:
    """A daemon as programs start them: other parent, own session and group, still alive."""
    pid = faults.start_daemon()
    daemon = ProcessIdentity.of(pid)
    try:
        wait_until(lambda: os.getsid(pid) == pid, 60, "a session of its own")
        assert os.getpgid(pid) == pid
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[1])
        assert parent != os.getpid()
        assert daemon is not None
        assert daemon.alive()
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "hears"), [("sleep", True), ("spin", True), ("gil", False)], ids=["sleep", "spin", "gil"]
)
def test_a_hang_never_ends_and_its_stack_can_be_seen(tmp_path: Path, how: str, hears: bool) -> None:
    """Asleep or spinning it still runs signal handlers; holding the GIL in C it runs none; the stack names it."""
    script = """
import faulthandler, signal, sys
sys.path.insert(0, sys.argv[1])
import faults
faulthandler.register(signal.SIGUSR2)
signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
print("hanging", flush=True)
faults.HANGS[sys.argv[2]]()
"""
    out, stacks = tmp_path / "out", tmp_path / "stacks"
    with out.open("wb") as stdout, stacks.open("wb") as stderr:
        command = [sys.executable, "-c", script, str(FOLDER), how]
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)

    def shows_itself() -> bool:
        process.send_signal(signal.SIGUSR2)
        return f"in {faults.HANGS[how].__name__}\n" in stacks.read_text()

    try:
        wait_until(lambda: out.read_text() == "hanging\n", 60, "the hang to begin")
        wait_until(shows_itself, 60, "the stack")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not _pending(process.pid), 60, "SIGTERM to be delivered")
        if hears:
            wait_until(lambda: "handled" in out.read_text(), 60, "the handler")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert ("handled" in out.read_text()) is hears


def _pending(pid: int) -> bool:
    """Whether a signal waits to be delivered to the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(int(mask, 16) for mask in masks)
