"""Pins: whether there is such a generation, and what whoever asked is told."""

from __future__ import annotations

from outlast_jobs.generation import GenerationName
from outlast_jobs.rundir import RunDirectory


def is_generation(run: RunDirectory, name: str) -> bool:
    """Whether there is a generation of this name."""
    return GenerationName.parse(name) is not None and (run.checkpoints / name).is_dir()


def no_generation(name: str) -> str:
    """The answer where there is none."""
    return f'there is no generation "{name}" in this run'


def pinned(name: str) -> str:
    """The answer to a pin."""
    return f"pinned {name}: it is kept until it is unpinned"


def unpinned(name: str) -> str:
    """The answer to the end of one."""
    return f"unpinned {name}"
