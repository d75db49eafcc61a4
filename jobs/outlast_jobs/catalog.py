"""The jobs that ship with the tool, and how the name of a job finds its file."""

from __future__ import annotations

from pathlib import Path

from outlast_jobs.jobfile_errors import JobFileError, did_you_mean, listed, near

_FOLDER = Path(__file__).parent / "shipped"
_FILE = "job.yaml"
_PROGRAMS = {".py": "python", ".sh": "sh"}


def shipped_jobs() -> dict[str, Path]:
    """The job file of each shipped job, by name."""
    return {file.parent.name: file for file in sorted(_FOLDER.glob(f"*/{_FILE}"))}


def is_shipped(path: str | Path | None) -> bool:
    """Whether a job file is one of those that ship with the tool; a bare command has none."""
    return path is not None and Path(path).resolve().parent.parent == _FOLDER.resolve()


def resolve_job(name: str) -> Path:
    """The job file that a person means: a file, a folder with job.yaml in it, or a shipped job's name."""
    path = Path(name)
    try:
        folder = path.is_dir()
        if folder and (path / _FILE).exists():
            return path / _FILE
        there = bool(name) and path.exists() and not (folder and name in shipped_jobs())
    except (OSError, ValueError):  # a name too long, or with a null in it, is no file
        folder = there = False
    if there:
        _refuse_others(path, folder)
        return path
    shipped = shipped_jobs()
    if name in shipped:
        return shipped[name]
    nearest = near(name, shipped)
    problem = "there is no such job file"
    if shipped:
        problem += f", and the jobs that ship with outlast are {listed(shipped)}"
    raise JobFileError(name, problem + did_you_mean(nearest), nearest=nearest)


def _refuse_others(path: Path, folder: bool) -> None:
    """What people name in the place of a job file is told by what it is, and not by what yaml makes of it."""
    if folder:
        raise JobFileError(str(path), f"is a folder without a {_FILE} in it; name the job file")
    if (program := _PROGRAMS.get(path.suffix)) is not None:
        import shlex

        words = f"{program} {shlex.quote(str(path))}"
        raise JobFileError(str(path), f"is a program and no job file; to run it: outlast run -- {words}")
