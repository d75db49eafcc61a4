"""A process and all that it started, ended by their pids."""

from __future__ import annotations

import subprocess
from typing import Any

import psutil


def end(process: subprocess.Popen[Any]) -> None:
    """End it and its descendants; returns when they are gone, or after 10 s."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    psutil.wait_procs(family[1:], timeout=10)
