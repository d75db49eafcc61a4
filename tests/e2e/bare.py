"""Runs of bare commands, and what a test of them may need of the machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Run

PYTHON = "{python}"
WAITS = "import signal, pathlib, time; pathlib.Path('up').touch()\nwhile True: time.sleep(0.05)"
"""A worker that is there and does nothing."""


def bare(command: list[str], **more: Any) -> dict[str, Any]:
    return {"command": command, "signals": "native", "stop": {"grace": "5s"}, **more}


def up(run: Run) -> Path:
    """Wait until the script says that it is there."""
    run.until(lambda: (run.folder / "up").exists(), "the worker's word")
    return run.folder / "up"


def in_namespace(*flags: str) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(not in_namespace("-m"), reason="needs the right to mount")
needs_pids = pytest.mark.skipif(
    not in_namespace("--pid", "--fork", "--mount-proc"), reason="needs the right to make a pid namespace"
)
