"""Writes a job file and a training script that run as they are, for a person to make their own."""

from __future__ import annotations

import json
import re
from pathlib import Path

from outlast_jobs.jobfile_errors import JobFileError, quoted
from outlast_jobs.jobfile_values import ReadError, read_value
from outlast_jobs.jobfile_yaml import plain_value

_TEMPLATES = Path(__file__).parent / "templates"
_FILES = ("job.yaml", "train.py")
_HOLE = re.compile(r"\{\{(name|run_dir)\}\}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")


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
    values = {"name": name, "run_dir": f"runs/{name}"}
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        text = (_TEMPLATES / file.name).read_text(encoding="utf-8")
        with file.open("x", encoding="utf-8") as stream:
            stream.write(_HOLE.sub(lambda hole: _in_yaml(values[hole[1]]), text))
    return files


def _in_yaml(text: str) -> str:
    """The text as it may stand in the template, which for a plain word is the word."""
    is_plain = _WORD.fullmatch(text) and plain_value(text) is text
    return text if is_plain else json.dumps(text, ensure_ascii=False)
