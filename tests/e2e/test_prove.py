"""`outlast prove` on real jobs: one that holds, twelve that are broken each in its own way, and those in between."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.e2e.harness import OUTLAST, SCRIPTS, all_pids
from tests.e2e.reference import TOY
from tests.e2e.warm import Warm
from tests.waiting import wait_until

BROKEN = SCRIPTS.parent / "broken"


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    """A process that forks the trainers of this module."""
    made = Warm()
    yield made
    made.close()


class Proved(NamedTuple):
    """How `outlast prove` ended, and what it left."""

    code: int
    found: dict[str, Any]
    folder: Path
    err: str

    @property
    def flows(self) -> dict[str, dict[str, Any]]:
        return {flow["flow"]: flow for flow in self.found["flows"]}

    @property
    def controls(self) -> dict[str, str]:
        return {control["part"]: control["verdict"] for control in self.found["controls"]}


def prove(folder: Path, command: list[str], *words: str, env: dict[str, str] | None = None) -> Proved:
    """Write the job file and prove the job."""
    job = {
        "name": "job",
        "command": command,
        "env": {"OMP_NUM_THREADS": "1", **(env or {})},
        "signals": "outlast",
        "run_dir": "run",
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    done = subprocess.run(
        [OUTLAST, "prove", str(folder / "job.yaml"), "--json", "--quiet", *words],
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = json.loads(done.stdout) if done.stdout else {}
    return Proved(done.returncode, found, folder / "run" / "proof", done.stderr)


class Expected(NamedTuple):
    """What the proof has to say of a broken job: where it parts first, and why."""

    step: int
    at_restore: bool
    thing: str
    name: str
    cause: str


TELLS = {
    "late_iterator": Expected(
        6, False, "rng", "torch", "ahead by 2 words of 32 bits, which are 1 draw of 64"
    ),
    "reseed": Expected(6, False, "rng", "torch", "after step 1: it was seeded again after the restore"),
    "late_scheduler": Expected(5, True, "lr", "", "'scheduler' was made after the optimizer was restored"),
    "early_boundary": Expected(6, False, "lr", "", "between the optimizer's step and the scheduler's"),
    "forgotten_optimizer": Expected(5, True, "unregistered", "adam (AdamW)", "Checkpointer as optimizer="),
    "forgotten_ema": Expected(5, True, "unregistered", "self.ema (AveragedModel)", "Checkpointer as ema="),
    "forgotten_generator": Expected(5, True, "unregistered", "noise (Generator)", "Checkpointer as noise="),
    "new_permutation": Expected(6, False, "ids", "", "another order was drawn in the middle of the epoch"),
    "fetched_cursor": Expected(6, False, "ids", "", "2 batches ahead, so it counts what was fetched"),
    "half_window": Expected(
        6, False, "gradient", "model.0.weight", "in the middle of an accumulation window"
    ),
    "new_window": Expected(6, False, "updates", "", "in the middle of an accumulation window"),
    "boundary_first": Expected(6, False, "updates", "", "an update was still to come"),
    "more_threads": Expected(0, False, "", "", "threads 1 → 2"),
}


@pytest.mark.parametrize("script", TELLS)
def test_a_broken_job_is_told_by_its_cause(tmp_path: Path, warm: Warm, script: str) -> None:
    """A job that resumes wrongly does not hold; the first thing that differs and its cause are named."""
    expected = TELLS[script]
    proved = prove(
        tmp_path, warm.command(BROKEN / f"{script}.py"), "--cut", "5", "--only", "stop", env=warm.env
    )
    assert (proved.code, proved.found["verdict"]) == (1, "did not hold"), proved.err
    flow = proved.flows["stop@5"]
    assert flow["verdict"] == "diverged"
    assert expected.cause in flow["cause"]
    first = flow["first"]
    if expected.thing:
        told = (first["step"], first["at_restore"], first["thing"], first["name"])
        assert told == expected[:4], first
    else:  # in which step the last bit turns, and in what, hangs on the machine
        assert first["step"] >= 6
        assert first["thing"] in ("loss", "gradient", "parameter")


def test_a_model_without_an_optimizer_is_warned_about(tmp_path: Path, warm: Warm) -> None:
    """A worker that registers a model and no optimizer says so at each start, in its log, which is kept."""
    command = warm.command(BROKEN / "forgotten_optimizer.py")
    proved = prove(tmp_path, command, "--cut", "2", "--steps", "4", "--only", "stop", env=warm.env)
    assert proved.code == 1
    logs = sorted(proved.folder.glob("flows-*/*/logs/*.log"))
    assert len(logs) == 3
    assert all("a model is registered and no optimizer" in log.read_text() for log in logs)


def test_a_slip_in_what_is_to_be_proven_is_no_proof(tmp_path: Path, warm: Warm) -> None:
    """Nothing is called that, so nothing was compared: 2, with the names that there are."""
    command = warm.command(BROKEN / "forgotten_optimizer.py")
    proved = prove(tmp_path, command, "--cut", "2", "--steps", "4", "--only", "modle", env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (2, "undecided"), proved.err
    assert 'nothing is called "modle": --only takes stop,' in proved.found["reason"]
    assert "model" in proved.found["reason"]


def test_an_order_by_hash_is_found_by_trying_one_hash_seed(tmp_path: Path) -> None:
    """A job whose order hangs on the hash seed differs from itself, and agrees once the seed is given."""
    command = ["{python}", str(BROKEN / "hash_order.py")]
    proved = prove(tmp_path, command, "--cut", "2", "--steps", "4", "--only", "stop")
    assert (proved.code, proved.found["verdict"]) == (1, "did not hold"), proved.err
    flow = proved.flows["stop@2"]
    assert "an order hangs on the hash seed" in flow["cause"]
    assert (flow["first"]["step"], flow["first"]["thing"]) == (1, "ids")


def test_the_toy_holds_and_every_part_is_missed(tmp_path: Path, warm: Warm) -> None:
    """The toy is exact in all flows, cut inside both epochs; whatever is left out is detected; all is stored."""
    words = ("--workers", "0", "--samples", "64", "--step-seconds", "0")
    proved = prove(tmp_path, warm.command(Path(TOY), *words), "--steps", "14", env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (0, "held"), proved.found or proved.err
    assert list(proved.flows) == ["repeat", "stop@4", "kill@4", "save@4", "stop@11"]
    rows = [row for flow in proved.found["flows"] for row in flow["parts"].values()]
    assert {(row["verdict"], row["largest"]) for row in rows} == {("exact", 0.0)}
    parts = ["model", "optimizer", "scheduler", "data", "rng/python", "rng/numpy", "rng/torch"]
    assert proved.controls == dict.fromkeys(parts, "detected")
    assert sorted(path.name for path in proved.folder.iterdir()) == ["proof.json", "report.md"]
    assert json.loads((proved.folder / "proof.json").read_text()) == proved.found
    page = (proved.folder / "report.md").read_text()
    assert "# Proof of `job`: held" in page
    assert proved.found["environment"]["torch"] in page
    assert not left(tmp_path)


def test_all_that_a_large_training_holds(tmp_path: Path, warm: Warm) -> None:
    """Loader processes, accumulation, a scaler, an average, two optimizers and private draws resume exactly."""
    command = warm.command(SCRIPTS / "everything.py")
    proved = prove(tmp_path, command, "--cut", "5", "--only", "stop", "--only", "controls", env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (0, "held"), proved.found or proved.err
    assert set(proved.controls.values()) == {"detected"}
    assert {"second", "scaler", "ema", "scale", "noise", "extra"} <= proved.controls.keys()


def test_a_script_that_saves_files_by_itself(tmp_path: Path, warm: Warm) -> None:
    """A script with no Checkpointer, that only calls the save and load functions, is proven at its saves."""
    script = SCRIPTS / "by_files.py"
    words = ("--cut", "6", "--only", "stop", "--only", "kill", "--only", "controls")
    proved = prove(tmp_path, warm.command(script), *words, env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (0, "held"), proved.found or proved.err
    assert {flow: found["verdict"] for flow, found in proved.flows.items()} == {
        "stop@6": "exact",
        "kill@6": "exact",
    }
    assert proved.controls == {
        **dict.fromkeys(("model", "optimizer", "scheduler", "noise", "rng/python", "rng/torch"), "detected"),
        "rng/numpy": "not needed",
    }
    proved = prove(
        tmp_path, warm.command(script, "--forget-noise"), "--cut", "6", "--only", "stop", env=warm.env
    )
    assert proved.code == 1
    assert "'noise' (Generator), which was never registered" in proved.flows["stop@6"]["cause"]
    assert "in parts=" in proved.flows["stop@6"]["cause"]


def test_a_script_that_saves_elsewhere_is_refused(tmp_path: Path, warm: Warm) -> None:
    """Files that all flows would share are refused, and how to save them is said."""
    (tmp_path / "shared.py").write_text(
        "import torch\nfrom outlast_worker import TrainState, save_checkpoint\n"
        f"save_checkpoint(torch.nn.Linear(1, 1), None, None, TrainState(step=1), {str(tmp_path / 'c.pt')!r})\n"
    )
    proved = prove(tmp_path, warm.command(tmp_path / "shared.py"), "--only", "stop", env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (2, "undecided")
    assert "its flows would share the file" in proved.found["reason"]
    assert not (tmp_path / "c.pt").exists()


def test_a_job_that_cannot_be_told_from_a_fresh_start_proves_nothing(tmp_path: Path, warm: Warm) -> None:
    """Where nothing random or stateful can be told apart, the flows agree and still nothing is proven."""
    proved = prove(tmp_path, warm.command(BROKEN / "nothing.py"), env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (2, "proves nothing"), proved.err
    assert {flow["verdict"] for flow in proved.found["flows"]} == {"exact"}
    assert set(proved.controls.values()) == {"not needed"}


def test_differences_within_the_tolerance_hold(tmp_path: Path, warm: Warm) -> None:
    """What another thread count changes holds under a tolerance, and is called what it is."""
    command = warm.command(BROKEN / "more_threads.py")
    words = ("--cut", "5", "--only", "stop", "--tolerance", "0.01")
    proved = prove(tmp_path, command, *words, env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (0, "held"), proved.found or proved.err
    parts = proved.flows["stop@5"]["parts"]
    assert parts["model"]["verdict"] == "within tolerance"
    assert 0 < parts["model"]["largest"] <= 0.01
    assert parts["rng/torch"]["verdict"] == "exact"


def test_a_job_without_the_library_is_undecided(tmp_path: Path, warm: Warm) -> None:
    """A command that never attaches, or fails, is undecided with the reason, and never a pass."""
    (tmp_path / "plain.py").write_text("print('trained')\n")
    proved = prove(tmp_path, warm.command(tmp_path / "plain.py"), "--only", "stop", env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (2, "undecided")
    assert "no trainer attached" in proved.found["reason"]
    (tmp_path / "plain.py").write_text("raise ValueError('no data')\n")
    proved = prove(tmp_path, warm.command(tmp_path / "plain.py"), "--only", "stop", env=warm.env)
    assert (proved.code, proved.found["verdict"]) == (2, "undecided")
    assert "no data" in proved.found["reason"]


def test_a_cut_behind_the_end_is_bad_usage(tmp_path: Path) -> None:
    """A cut that is not before the last step is refused before anything runs."""
    proved = prove(tmp_path, ["false"], "--steps", "5", "--cut", "5")
    assert proved.code == 64
    assert "cut before the last one" in proved.err
    assert not proved.folder.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_of_an_interrupted_proof_is_left(tmp_path: Path, number: int, code: int) -> None:
    """Interrupted, a proof ends what it launched and removes what it wrote."""
    script = "import os, pathlib, time; pathlib.Path('begun').touch(); time.sleep(600)"
    job = {"name": "job", "command": ["{python}", "-c", script], "run_dir": "run"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    process = subprocess.Popen(
        [OUTLAST, "prove", "-q", str(tmp_path / "job.yaml")], start_new_session=True, cwd=tmp_path
    )
    wait_until((tmp_path / "begun").exists, 60, "a flow")
    process.send_signal(number)
    assert process.wait(60) == code
    assert not left(tmp_path)
    assert list((tmp_path / "run" / "proof").iterdir()) == []


def left(folder: Path) -> list[int]:
    """Processes that belong to a run below a folder."""
    mark = f"OUTLAST_RUN={folder}".encode()
    found = []
    for pid in all_pids():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(entry.startswith(mark) for entry in environ):
            found.append(pid)
    return found
