"""The jobs that ship with the tool, and how the name of a job finds its file."""

from __future__ import annotations

from pathlib import Path

from outlast_jobs.jobfile_errors import JobFileError, did_you_mean, listed, near

_FOLDER = Path(__file__).parent / "shipped"
_FILE = "job.yaml"


def shipped_jobs() -> dict[str, Path]:
    """The job file of each shipped job, by name."""
    return {file.parent.name: file for file in sorted(_FOLDER.glob(f"*/{_FILE}"))}


def is_shipped(path: Path) -> bool:
    """Whether a job file is one of those that ship with the tool."""
    return path.resolve().parent.parent == _FOLDER.resolve()


def resolve_job(name: str) -> Path:
    """The job file that a person means: a file, a folder with job.yaml in it, or a shipped job's name."""
    path = Path(name)
    try:
        if path.is_dir() and (path / _FILE).exists():
            return path / _FILE
        if name and path.exists() and not (path.is_dir() and name in shipped_jobs()):
            return path
    except (OSError, ValueError):  # a name too long, or with a null in it, is no file
        pass
    shipped = shipped_jobs()
    if name in shipped:
        return shipped[name]
    nearest = near(name, shipped)
    problem = "there is no such job file"
    if shipped:
        problem += f", and the jobs that ship with outlast are {listed(shipped)}"
    raise JobFileError(name, problem + did_you_mean(nearest), nearest=nearest)
