"""What lies beside an exported generation: load.py, the job as it was resolved, and README.txt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from outlast_jobs import __version__, durable
from outlast_jobs.generation import Index
from outlast_jobs.jobfile import Hooks, job_from_resolved, job_to_yaml
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.units import format_size

LOAD = "load.py"
README = "README.txt"
JOB = "job.yaml"
_LIMIT = 1 << 20


def write_load(folder: Path) -> None:
    """The script that loads it where outlast is not."""
    durable.write_file(folder / LOAD, (resources.files("outlast_jobs") / "templates" / LOAD).read_bytes())


def write_job(folder: Path, run: RunDirectory) -> str:
    """The run's record of its job, without what may be secret; why there is none, empty where there is."""
    try:
        text = durable.read_file(run.job_yaml, _LIMIT).decode()
    except FileNotFoundError:
        return "the run has none"
    except (OSError, ValueError) as error:
        return str(error)
    try:
        job = job_from_resolved(text)
    except ValueError as error:
        return str(error)
    hooks = [name for name in Hooks.__struct_fields__ if getattr(job.hooks, name) is not None]
    left_out = [("the values of env", list(job.env)), ("the commands of hooks", hooks)]
    notes = "".join(f"# left out: {what} ({', '.join(names)})\n" for what, names in left_out if names)
    kept = msgspec.structs.replace(job, env={}, hooks=Hooks())
    durable.write_file(folder / JOB, (notes + job_to_yaml(kept)).encode())
    return ""


def write_readme(
    folder: Path, run: RunDirectory, generation: str, index: Index, found: Mapping[str, Any]
) -> None:
    """For whoever finds the folder in a year. ``found`` is what loading it told."""
    health = "" if index.healthy else "\nNOT HEALTHY: its loss or a part of it was not finite."
    parts = ", ".join(f"{name} ({tensors} tensors)" for name, (tensors, _) in found["parts"].items())
    versions = ", ".join(
        f"{name} {index.fingerprint[name]}"
        for name in ("python", "torch", "numpy", "outlast")
        if index.fingerprint.get(name)
    )
    text = f"""\
A checkpoint of a PyTorch training, exported by outlast {__version__} on {_day(time.time())}.
{health}
run         {run.path.absolute().name} ({index.run_id})
generation  {generation}, {format_size(index.total_bytes)}
step        {index.step}, epoch {index.epoch}
loss        {found["loss"]}
saved       {_day(index.saved_at)}, by {versions or "unknown versions"}
parts       {parts}

To load it with nothing but torch 2.6 or newer:

    import sys; sys.path.insert(0, "path/of/this/folder")
    from load import load
    model.load_state_dict(load()["model"])

"python load.py" verifies every file against its sha256 and prints what there is. load() has each part by its name,
load_state() the counters, losses and random streams too. With outlast a job goes on from it by the line
"start_from: path/of/this/folder/{generation}" in its job file.

It was loaded here by torch {found["torch"]}, once by load.py and once by outlast: {found["tensors"]} tensors, equal;
digest of the whole state {found["library"]}.
"""
    durable.write_file(folder / README, text.encode(errors="replace"))


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
