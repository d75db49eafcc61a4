"""The protocol that a shipped job brings with it: a proof.py beside its job file, run after the general proof."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlast_jobs.catalog import is_shipped
from outlast_jobs.contract import Answer
from outlast_jobs.jobfile import Job

_SCRIPT = "proof.py"
_PATIENCE = 1800.0  # seconds


def protocol_of(job: Job) -> Path | None:
    """The script, for jobs that ship with outlast."""
    if job.source is None or not is_shipped(job.source):
        return None
    script = Path(job.source).with_name(_SCRIPT)
    return script if script.is_file() else None


def run_protocol(script: Path, output: Path) -> Mapping[str, Any]:
    """Carry it out into a fresh folder; what it came to. What it says goes to standard error."""
    if output.exists():
        shutil.rmtree(output)
    command = [sys.executable, str(script), "--output", str(output)]
    try:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=_PATIENCE, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"exit_code": int(Answer.UNDECIDED), "text": f"could not be carried out: {error}"}
    words = {0: "held, every check passed", 1: "did not hold"}
    text = words.get(code, "could not be completed")
    answer = code if code in words else int(Answer.UNDECIDED)
    return {
        "exit_code": answer,
        "text": f"{text}; see {output.name}/verification.json",
        "output": output.name,
    }
