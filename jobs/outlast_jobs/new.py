"""Writes a job file and a training script that run as they are, for a person to make their own."""

from __future__ import annotations

from pathlib import Path

from outlast_jobs.jobfile_errors import JobFileError, quoted
from outlast_jobs.jobfile_values import ReadError, read_value

_TEMPLATES = Path(__file__).parent / "templates"
_FILES = ("job.yaml", "train.py")


def write_new(name: str, folder: Path = Path()) -> list[Path]:
    """Writes FOLDER/NAME/job.yaml and train.py; nothing is written if either is there already."""
    try:
        read_value("name", name)
    except ReadError as error:
        problem = 'is no name for a job: 1 to 100 characters without "/" or a "." or "-" in front'
        raise JobFileError(quoted(name), problem) from error
    target = folder / name
    files = [target / file for file in _FILES]
    for file in files:
        if file.exists() or file.is_symlink():
            raise JobFileError(str(file), "is there already; take another name or move it away")
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        text = (_TEMPLATES / file.name).read_text(encoding="utf-8")
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text.replace("{{name}}", _in_yaml(name)))
    return files


def _in_yaml(name: str) -> str:
    """The name as it may stand in the template, which for a plain word is the word."""
    return name if name.isascii() and name.replace("-", "").replace("_", "").isalnum() else quoted(name)
