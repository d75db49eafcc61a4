"""Whether a run still is what was proven: its newest generation's code and environment against the proof's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outlast_jobs import durable
from outlast_jobs.contract import Schema
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import INDEX
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.verify import scan

_LIMIT = 16 << 20
_PASSED_OVER = ("hash_seed",)


def read_proof(run: RunDirectory) -> Mapping[str, Any] | None:
    """The run's proof; None where there is none that can be read."""
    try:
        found = json.loads(durable.read_file(run.proof / "proof.json", _LIMIT))
    except (OSError, ValueError, IntegrityError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == Schema.PROOF else None


def proof_notes(run: RunDirectory) -> list[str]:
    """What `status` says about the proof of a run: nothing where it holds for what runs now."""
    proof = read_proof(run)
    if proof is None:
        return []
    if proof.get("verdict") != "held":
        return [f"proof: {proof.get('verdict')}: {proof.get('reason')}"]
    index = _newest_index(run)
    changes = changed(proof, index) if index is not None else []
    return [f"no longer as proven: {'; '.join(changes)}; prove it again"] if changes else []


def changed(proof: Mapping[str, Any], index: Mapping[str, Any]) -> list[str]:
    """How a generation's code and environment differ from those of a proof. Pure."""
    found = _differences(proof.get("code"), index.get("code"), "code: ")
    config = index.get("config") or {}
    digest = proof.get("command_digest")
    if digest and config.get("sha256") and config["sha256"] != digest:
        found.append("the command or its environment variables changed")
    return found + _differences(proof.get("environment"), index.get("fingerprint"), "")


def _differences(old: Any, new: Any, prefix: str) -> list[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return []
    found = []
    for key in sorted(old.keys() & new.keys()):
        if key in _PASSED_OVER or old[key] == new[key]:
            continue
        if isinstance(old[key], dict):
            found += _differences(old[key], new[key], prefix)
        else:
            found.append(f"{prefix}{key.replace('_', ' ')} {_short(old[key])} → {_short(new[key])}")
    return found


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else text[:12] + "…"


def _newest_index(run: RunDirectory) -> Mapping[str, Any] | None:
    try:
        for path in scan(run.checkpoints):
            found = json.loads(durable.read_file(path / INDEX, _LIMIT))
            return found if isinstance(found, dict) else None
    except (OSError, ValueError, IntegrityError):
        pass
    return None
