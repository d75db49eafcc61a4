"""Whether a run still is what was proven, and how `status` says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outlast_jobs.generation import INDEX
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.commands import invoke
from outlast_supervisor.prove.stale import changed, proof_notes

PROOF: dict[str, Any] = {
    "schema": "outlast.proof/1",
    "verdict": "held",
    "reason": "every difference is 0",
    "code": {"script": "train.py", "sha256": "a" * 64},
    "command_digest": "c",
    "environment": {
        "torch": "2.13",
        "threads": 1,
        "hash_seed": "random",
        "determinism": {"cudnn.benchmark": False},
    },
}
INDEX_OF_RUN: dict[str, Any] = {
    "code": PROOF["code"],
    "config": {"sha256": "c"},
    "fingerprint": {**PROOF["environment"], "hash_seed": "0"},
}


def written(folder: Path, proof: dict[str, Any], index: dict[str, Any]) -> RunDirectory:
    run = RunDirectory(folder / "run")
    run.create()
    run.proof.mkdir()
    (run.proof / "proof.json").write_text(json.dumps(proof))
    generation = run.checkpoints / "step-000000005.a0001"
    generation.mkdir()
    (generation / INDEX).write_text(json.dumps(index))
    return run


def test_a_run_as_proven_has_no_note(tmp_path: Path) -> None:
    """The same code, command and environment, whatever the hash seed: nothing is said."""
    assert changed(PROOF, INDEX_OF_RUN) == []
    assert proof_notes(written(tmp_path, PROOF, INDEX_OF_RUN)) == []


def test_a_change_of_code_or_environment_is_told(tmp_path: Path) -> None:
    """Another script, command, version or flag is named, and that it has to be proven again."""
    index = {
        "code": {"script": "train.py", "sha256": "b" * 64},
        "config": {"sha256": "d"},
        "fingerprint": {"torch": "2.14", "threads": 1, "determinism": {"cudnn.benchmark": True}},
    }
    (note,) = proof_notes(written(tmp_path, PROOF, index))
    assert note.startswith("no longer as proven: ")
    for words in (
        "code: sha256",
        "command or its environment",
        "torch 2.13 → 2.14",
        "cudnn.benchmark False → True",
    ):
        assert words in note


def test_a_proof_that_did_not_hold_is_told(tmp_path: Path) -> None:
    """A proof that failed is shown with its reason; one that is damaged is no proof."""
    run = written(tmp_path, {**PROOF, "verdict": "did not hold", "reason": "stop@5: x"}, INDEX_OF_RUN)
    assert proof_notes(run) == ["proof: did not hold: stop@5: x"]
    (run.proof / "proof.json").write_text("{")
    assert proof_notes(run) == []


def test_status_shows_it(tmp_path: Path, capsys: Any) -> None:
    """`outlast status` has the note below the run."""
    run = written(tmp_path, {**PROOF, "command_digest": "other"}, INDEX_OF_RUN)
    run.write_status({"name": "job", "state": "finished", "done": True})
    assert invoke(["status", str(run.path)]) == 0
    assert "no longer as proven: the command" in capsys.readouterr().out
