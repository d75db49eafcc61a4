"""Ask a process that may import torch: how large differences are, and how many draws lie between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PATIENCE = 600.0  # seconds; two large states are read and compared

Request = Mapping[str, Any]
Reply = Mapping[str, Any]


def difference(a: Path, b: Path) -> Request:
    """How two generations differ, part by part."""
    return {"a": str(a), "b": str(b)}


def draws(generation: Path, stream: str, to: Sequence[str]) -> Request:
    """How far each place of a random stream lies from the state in a generation."""
    return {"generation": str(generation), "draws": stream, "to": list(to)}


def ask(requests: Sequence[Request]) -> list[Reply]:
    """The replies in order; each may be an error, which costs a detail of the report and nothing else."""
    if not requests:
        return []
    command = [sys.executable, "-m", "outlast_worker.compare", "-", "--json"]
    try:
        done = subprocess.run(
            command, input=json.dumps(requests), capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
        replies = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [{"error": str(error)} for _ in requests]
    return replies if isinstance(replies, list) else [{"error": "no answer"} for _ in requests]
