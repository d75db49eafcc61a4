"""A job written down as resolved, and the digests by which a changed job or command is noticed."""

from __future__ import annotations

import os
import sys
from typing import Any

from outlast_jobs.contract import Schema
from outlast_jobs.jobfile_fields import keys_of
from outlast_jobs.jobfile_model import Job, Save, Section

_HEAD = (
    "# the job as outlast resolved it at the latest start; written anew each time, never read as a job file\n"
)

# what every job has, and does not count: it is added, or is where the job lies
_ALWAYS = frozenset({"name", "command", "env", "workdir", "run_dir", "source"})


def job_to_yaml(job: Job) -> str:
    """The text of a run's job.yaml, which ``job_from_resolved`` reads back as the same job."""
    import yaml

    from outlast_jobs.jobfile_yaml import plain_value

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        pass

    def text(dumper: Any, value: str) -> Any:
        # what YAML 1.2 or 1.1 would take for a number or a word of its own is written in quotes
        style = None if plain_value(value) is value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    tree: dict[str, Any] = {"schema": Schema.JOB}
    if job.source is not None:
        tree["source"] = job.source
    tree |= _plain(job, defaults=True)
    dumped = yaml.dump(
        tree, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=2**20
    )
    return f"{_HEAD}{dumped}"


def job_digest(job: Job) -> str:
    """Digest of what a job asks for, wherever it lies or waits; unset keys don't count, so new ones change nothing."""
    tree = _set(job) | _command(job)
    for apart in ("workdir", "run_dir", "daemon"):  # where it lies, and its place in a queue
        tree.pop(apart, None)
    if job.start_from is not None:
        tree["start_from"] = os.path.relpath(job.start_from, job.workdir)
    return _digest(tree)


def command_digest(job: Job) -> str:
    """Digest of the command and its environment alone: what a finished run is done for."""
    return _digest(_command(job))


def _command(job: Job) -> dict[str, Any]:
    # the same job under another Python installation is the same job
    return {
        "command": [word.replace(sys.executable, "{python}") for word in job.command],
        "env": dict(job.env),
    }


def _digest(tree: dict[str, Any]) -> str:
    import hashlib
    import json

    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _set(job: Job) -> dict[str, Any]:
    """What ``_plain`` makes of a job without its defaults: where all is as by default, without the model's keys."""
    blank = Job(name="", command=())
    for name in job.__struct_fields__:
        if name not in _ALWAYS and getattr(job, name) != getattr(blank, name):
            return _plain(job, defaults=False)
    return {"name": job.name}


def _plain(section: Section, *, defaults: bool) -> dict[str, Any]:
    """A section as a job file would write it. The first look at a model's keys takes a start two milliseconds."""
    tree: dict[str, Any] = {}
    for key in keys_of(type(section)).values():
        value = getattr(section, key.name)
        pointless = key.name == "between" and isinstance(section, Save) and not section.auto
        pointless = pointless or (key.name == "preload" and isinstance(section, Job) and not section.standby)
        if value is None or pointless or (not defaults and value == key.default):
            continue
        if isinstance(value, Section):
            value = _plain(value, defaults=defaults)
        elif key.spec.read == "range":
            value = "..".join(f"{end!r}".removesuffix(".0") + "s" for end in value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, dict):
            value = dict(value)
        tree[key.name] = value
    return tree
