"""The small protocol: a full resume is the run in every number, the control diverges, and doubt is refused."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.e2e.harness import OUTLAST, PATIENCE

from outlast_jobs.jobfile import shipped_jobs
from outlast_worker import capture_rng_state, restore_rng_state
from outlast_worker.atomic import serialized

HOME = shipped_jobs()["proof24"].parent
FLOWS = ("continuous", "cut", "resumed", "without-rng")
MODULES = ("task", "flow", "compare", "verify", "proof")


def script(name: str, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HOME / name), *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE * 4,
        env=env,
    )


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory, whole_torch: dict[str, str]) -> Path:
    """One proof with the whole of torch, that every test looks at and none changes, once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "proof24"
    with (base / "proof24.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "verification.json").exists():
            done = script("proof.py", "--output", str(folder), env=whole_torch)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The job's own modules, imported here and forgotten afterwards."""
    streams = capture_rng_state()
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    monkeypatch.syspath_prepend(str(HOME))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    kept = {name: sys.modules.pop(name, None) for name in MODULES}
    yield {name: importlib.import_module(name) for name in MODULES}
    for name, module in kept.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)
    restore_rng_state(streams)


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "verification.json").read_text())


def summary(folder: Path, flow: str) -> dict[str, Any]:
    return json.loads((folder / flow / "summary.json").read_text())


def test_each_flow_leaves_its_three_files(proven: Path) -> None:
    """Each flow leaves a checkpoint, its digest and a summary in a folder of its own."""
    for flow in FLOWS:
        names = sorted(path.name for path in (proven / flow).iterdir())
        assert names == ["checkpoint.pt", "checkpoint.pt.sha256", "summary.json"]
        digest = hashlib.sha256((proven / flow / "checkpoint.pt").read_bytes()).hexdigest()
        assert summary(proven, flow)["checkpoint"]["sha256"] == digest
        assert digest in (proven / flow / "checkpoint.pt.sha256").read_text()


def test_a_full_resume_differs_in_nothing(proven: Path) -> None:
    """Every difference between the run and the run that was cut and resumed is 0, in every aspect."""
    found = report(proven)
    assert found["all_checks_passed"] is True
    assert found["positive"]["passed"] is True
    assert found["positive"]["largest_difference"] == 0
    assert found["tolerance"] == {"absolute": 1e-12, "relative": 0}
    assert set(found["positive"]["aspects"]) >= {
        "row_ids",
        "learning_rates",
        "next_learning_rate",
        "losses",
        "parameters",
        "optimizer",
        "scheduler",
        "progress",
        "evaluation",
        "next_draws",
    }
    for aspect in found["positive"]["aspects"].values():
        assert aspect == {"passed": True, "largest_difference": 0.0, "differences": []}


def test_the_control_diverges(proven: Path) -> None:
    """Without the restore of the random streams a weight is off by more than 0.001, and what differs is listed."""
    found = report(proven)
    assert found["negative_divergence_detected"] is True
    assert found["negative"]["largest_weight_difference"] == pytest.approx(0.0114, abs=0.002)
    aspects = found["negative"]["aspects"]
    assert aspects["next_draws"]["differences"]
    assert aspects["losses"]["differences"]
    assert aspects["learning_rates"]["passed"]
    assert aspects["row_ids"]["largest_difference"] >= 1


def test_the_protocol_is_the_published_one(proven: Path) -> None:
    """33 parameters, 24 rows, ten updates cut after five at row 20, 40 rows consumed, next rate 0.00375."""
    assert all(report(proven)["protocol"].values())
    whole, cut, resumed = (summary(proven, flow) for flow in FLOWS[:3])
    assert whole["parameters"] == 33
    ids = [step["ids"] for step in whole["steps"]]
    assert len(ids) == 10
    assert {len(four) for four in ids} == {4}
    assert sorted(row for four in ids[:6] for row in four) == list(range(24))
    assert len({row for four in ids[6:] for row in four}) == 16
    assert cut["progress"]["rows"]["cursor"] == 20
    assert whole["progress"]["consumed"] == 40
    assert whole["next_lr"] == resumed["next_lr"] == 0.00375
    rates = [step["lr"] for step in whole["steps"]]
    assert rates == [0.03] * 3 + [0.015] * 3 + [0.0075] * 3 + [0.00375]
    assert resumed["flow"] == {"began_at": 5, "steps": 5, "resumed": True, "rng_restored": True}
    assert math.isfinite(whole["evaluation"]["mse"])


def test_an_output_that_exists_is_refused(proven: Path) -> None:
    """Neither a flow nor the proof writes into a folder that is there: exit code 2, and nothing changed."""
    before = sorted(path.name for path in proven.rglob("*"))
    for done in (
        script("proof.py", "--output", str(proven)),
        script("flow.py", "--output", str(proven / "cut"), "--steps", "1"),
    ):
        assert done.returncode == 2
        assert "exists already" in done.stderr
    assert sorted(path.name for path in proven.rglob("*")) == before


def test_the_comparison_answers_1_and_2(proven: Path, tmp_path: Path) -> None:
    """A resumed run that was not the run is 1; a flow whose checkpoint is damaged can't be compared: 2."""
    folder = tmp_path / "proof"
    folder.mkdir()
    for flow in FLOWS:
        # the control stands in for the resumed run: a resume that forgot its streams
        source = "without-rng" if flow == "resumed" else flow
        (folder / flow).symlink_to(proven / source)
    done = script("verify.py", str(folder))
    assert done.returncode == 1
    assert "DID NOT HOLD" in done.stdout
    found = report(folder)
    assert found["all_checks_passed"] is False
    assert found["positive"]["aspects"]["parameters"]["passed"] is False
    (folder / "resumed").unlink()
    (folder / "resumed").mkdir()
    for name in ("summary.json", "checkpoint.pt.sha256"):
        (folder / "resumed" / name).write_bytes((proven / "resumed" / name).read_bytes())
    (folder / "resumed" / "checkpoint.pt").write_bytes(b"x")
    done = script("verify.py", str(folder))
    assert done.returncode == 2
    assert "has 1 bytes" in done.stderr


def copied(proven: Path, folder: Path, change: Callable[[dict[str, Any]], object] | None = None) -> Path:
    """The checkpoint of the cut with its content changed and the digest right."""
    payload = torch.load(proven / "cut" / "checkpoint.pt", weights_only=True)
    if change is not None:
        change(payload)
    folder.mkdir()
    path = folder / "checkpoint.pt"
    with serialized(payload) as chunks:
        path.write_bytes(b"".join(chunks))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name("checkpoint.pt.sha256").write_text(f"{digest}  checkpoint.pt\n")
    return path


@pytest.mark.parametrize(
    ("what", "change", "words"),
    [
        ("schema", lambda p: p.update(schema="outlast.ckpt/3"), "has schema 'outlast.ckpt/3'"),
        ("progress", lambda p: p["counters"].update(step=6), "of step 6, but the rows of it tell of step 5"),
        ("progress", lambda p: p["counters"].update(epoch=1), "but the epoch of it tell of step 11"),
        ("progress", lambda p: p["parts"]["rows"].update(cursor=16), "but the rows of it tell of step 4"),
        ("progress", lambda p: p["parts"]["rows"].update(cursor=25), "the cursor 25 is outside"),
        ("progress", lambda p: p["parts"]["rows"]["order"].reverse() or p["losses"].pop(), "the losses"),
        (
            "scheduler",
            lambda p: p["parts"]["scheduler"].update(last_epoch=4),
            "the scheduler of it tell of step 4",
        ),
        ("optimizer", lambda p: p["parts"]["optimizer"]["state"][0]["step"].add_(1), "the optimizer of it"),
        ("versions", lambda p: p["fingerprint"].update(torch="2.6.0"), "another environment: torch 2.6.0→"),
        ("versions", lambda p: p["fingerprint"].clear(), "does not say in which environment"),
        ("code", lambda p: p["code"].update({"task.py": "0" * 64}), "is of other code: task.py"),
        ("data", lambda p: p["data"].update(rows=25), "is of other data: rows 25 → 24"),
        (
            "parts",
            lambda p: p["parts"].pop("noise"),
            "part 'noise': is in the script but not in the checkpoint",
        ),
    ],
)
def test_the_loader_refuses(
    proven: Path, tmp_path: Path, loaded: dict[str, ModuleType], what: str, change: Any, words: str
) -> None:
    """Other progress, versions, code, data or parts than they must be are refused, none begun anew in silence."""
    path = copied(proven, tmp_path / "changed", change)
    with pytest.raises(ValueError) as caught:
        loaded["flow"].load(loaded["task"].Task(), path, restore_rng=True)
    assert words in str(caught.value)


def test_the_loader_takes_what_was_not_changed(
    proven: Path, tmp_path: Path, loaded: dict[str, ModuleType]
) -> None:
    """The same checkpoint, written again unchanged, is loaded: what is refused above is refused for its change."""
    path = copied(proven, tmp_path / "same")
    assert loaded["flow"].load(loaded["task"].Task(), path, restore_rng=True).step == 5


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], "bytes, 'checkpoint.pt.sha256' says"),
        (lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:], "has sha256"),
    ],
)
def test_a_flow_that_can_not_load_answers_2(proven: Path, tmp_path: Path, damage: Any, words: str) -> None:
    """A checkpoint cut short or changed ends the flow with 2, the reason, and no summary."""
    for name in ("checkpoint.pt", "checkpoint.pt.sha256"):
        (tmp_path / name).write_bytes((proven / "cut" / name).read_bytes())
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(damage(path.read_bytes()))
    done = script("flow.py", "--output", str(tmp_path / "out"), "--steps", "5", "--resume", str(path))
    assert done.returncode == 2
    assert words in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        (1.0, 1.0 + 9e-13, ["value"]),
        (float("nan"), float("nan"), ["not finite"]),
        (float("inf"), float("inf"), ["not finite"]),
        ("nan", "nan", ["not finite"]),
        (1.0, float("nan"), ["not finite"]),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), ["not finite"]),
        (1, 1.0, ["structure"]),
        (True, 1, ["structure"]),
        ([1], [1, 2], ["structure"]),
        ([1], (1,), ["structure"]),
        ({"a": 1}, {"b": 1}, ["structure", "structure"]),
        (torch.zeros(2), torch.zeros(3), ["structure"]),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), ["structure"]),
        (torch.zeros(2, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8), ["value"]),
        (3, 4, ["value"]),
        ("a", "b", ["value"]),
        ({"a": [torch.ones(2), None]}, {"a": [torch.ones(2), None]}, []),
    ],
)
def test_nothing_is_waved_through(
    loaded: dict[str, ModuleType], old: Any, new: Any, kinds: list[str]
) -> None:
    """Non-finite values, even equal ones, and differences of structure are reported; only 1e-12 is tolerated."""
    found = loaded["compare"].compare(old, new)
    assert [difference.kind for difference in found.differences] == kinds
    assert found.passed is (not kinds or repr(new) == repr(1.0 + 9e-13))


def test_next_draws_disturb_nothing(loaded: dict[str, ModuleType]) -> None:
    """Looking at the next draws leaves each stream where it is, and shows what then is drawn."""
    task = loaded["task"].Task()
    first = loaded["flow"].next_draws(task)
    assert loaded["flow"].next_draws(task) == first
    assert torch.rand(3, dtype=torch.float64).tolist() == first["torch"]
    assert task.noise.normal(size=3).tolist() == first["noise"]


def test_the_proof_itself_loads_no_torch() -> None:
    """The orchestration runs in a process without torch, so that a supervisor may call it."""
    code = "import sys, proof; print(proof.main.__name__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["main", "False"]


def test_proof24_is_an_ordinary_job_too(proven: Path, tmp_path: Path) -> None:
    """Run as a job, the same code makes the same ten updates, and the run is done."""
    done = subprocess.run(
        [OUTLAST, "run", "proof24"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE * 2
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs" / "proof24" / "metrics" / "attempt-0001.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines if "step" in json.loads(line)]
    assert losses == [step["loss"] for step in summary(proven, "continuous")["steps"]]
