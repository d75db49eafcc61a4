"""Two generations compared part by part, as `outlast prove` asks for it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast_jobs.claim import claim
from outlast_jobs.contract import Schema
from outlast_jobs.generation import GenerationName
from outlast_worker import compare
from outlast_worker.rng import capture_rng_state
from outlast_worker.saving import IndexFields, save_generation


def saved(folder: Path, **changes: Any) -> Path:
    """A generation whose state has these differences."""
    folder.mkdir()
    claim(folder, 1)
    weight = changes.get("weight", torch.ones(3))
    state = {
        "schema": Schema.META,
        "parts": {"model": {"weight": weight}, "plan": changes.get("plan", {"last": 1, "rate": 0.5})},
        "kinds": {"model": "stateful", "plan": "stateful"},
        "counters": {"step": 4, "epoch": 0, "batch_in_epoch": 4},
        "losses": [],
        "rng": changes.get("rng", RNG),
        "extra": {},
    }
    return save_generation(folder, GenerationName(4, 1), state, run_id="0" * 32, fields=IndexFields()).path


RNG = capture_rng_state()


def compared(a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = compare.main([str(a), str(b), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_equal_states_are_equal_in_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal states have one digest and no part that differs."""
    code, found = compared(saved(tmp_path / "a"), saved(tmp_path / "b"), capsys)
    assert (code, found["equal"], len(set(found["sha256"]))) == (0, True, 1)
    assert set(found["parts"]) == {
        *("model", "plan", "rng/python", "rng/numpy", "rng/torch", "counters", "losses", "extra")
    }


def test_the_largest_difference_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For numbers the largest difference and its place; other parts stay equal."""
    other = torch.tensor([1.0, 1.5, 0.75])
    code, found = compared(saved(tmp_path / "a"), saved(tmp_path / "b", weight=other), capsys)
    assert (code, found["equal"]) == (1, False)
    assert found["parts"]["model"] == {"equal": False, "largest": 0.5, "where": "weight"}
    assert found["parts"]["plan"]["equal"]


@pytest.mark.parametrize(
    ("weight", "plan"),
    [
        (torch.ones(4), {"last": 1, "rate": 0.5}),
        (torch.ones(3, dtype=torch.float64), {"last": 1, "rate": 0.5}),
        (torch.tensor([1.0, float("nan"), 1.0]), {"last": 1, "rate": 0.5}),
        (torch.ones(3), {"last": 1}),
        (torch.ones(3), {"last": 1, "rate": "0.5"}),
    ],
)
def test_form_and_nan_are_never_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], weight: torch.Tensor, plan: dict[str, Any]
) -> None:
    """Another shape or type, a missing entry, or a NaN has no number for its difference."""
    code, found = compared(saved(tmp_path / "a"), saved(tmp_path / "b", weight=weight, plan=plan), capsys)
    assert code == 1
    assert [part["largest"] for part in found["parts"].values() if not part["equal"]] == [None]


def test_requests_are_answered_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of requests has a list of answers; one that can't be answered costs only its own."""
    path = saved(tmp_path / "a")
    place = compare.draws_between.__globals__["places"](RNG)["torch"]
    requests = [
        {"generation": str(path), "draws": "torch", "to": [place, "mt:0:0:"]},
        {"a": str(path), "b": str(tmp_path / "nowhere")},
        {"a": str(path), "b": str(path)},
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(requests)))
    assert compare.main(["-"]) == 0
    draws, failed, equal = json.loads(capsys.readouterr().out)
    assert draws == {"draws": [0, None]}
    assert "nowhere" in failed["error"]
    assert equal["equal"]


def test_what_cannot_be_read_is_undecided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing or damaged generation is neither equal nor different."""
    path = saved(tmp_path / "a")
    assert compare.main([str(path), str(tmp_path / "nowhere")]) == 2
    (path / "meta.pt").write_bytes(b"x")
    assert compare.main([str(path), str(path)]) == 2
    assert "cannot compare" in capsys.readouterr().err
