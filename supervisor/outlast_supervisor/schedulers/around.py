"""Which scheduler this process runs in; what belongs to one is loaded only there."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .watch import Outside, Wires


def is_in_slurm(env: Mapping[str, str]) -> bool:
    """Whether this process runs inside a Slurm job, whatever started it there."""
    return (env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID") or "").isdecimal()


def around(wires: Wires) -> Outside:
    """The watch for where this process runs."""
    if not is_in_slurm(os.environ):
        return Outside(wires)
    from ..processes import was_submitted_by_worker
    from .slurm import place
    from .slurm_watch import InSlurm

    return InSlurm(wires, place(os.environ, was_submitted_by_worker(os.environ)), os.environ)
