"""The job file: loading it, and the job that a bare command makes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from outlast_jobs.catalog import is_shipped, resolve_job, shipped_jobs
from outlast_jobs.contract import Schema
from outlast_jobs.jobfile_errors import JobFileError, quoted
from outlast_jobs.jobfile_model import (
    Daemon,
    Hang,
    Hooks,
    Job,
    Keep,
    Logs,
    Restart,
    Save,
    Signals,
    Slurm,
    Stop,
)
from outlast_jobs.jobfile_values import ReadError, read_value
from outlast_jobs.resolved import command_digest, job_digest, job_to_yaml

if TYPE_CHECKING:
    from outlast_jobs.jobfile_yaml import Mapping

__all__ = [
    "Daemon",
    "Hang",
    "Hooks",
    "Job",
    "JobFileError",
    "Keep",
    "Logs",
    "Restart",
    "Save",
    "Signals",
    "Slurm",
    "Stop",
    "command_digest",
    "job_digest",
    "job_from_command",
    "job_from_resolved",
    "job_to_yaml",
    "load_job",
    "resolve_job",
    "shipped_jobs",
]

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


def load_job(path: Path, *, run_dir: str | None = None, extra: Sequence[str] = ()) -> Job:
    """The job in a file, all paths absolute; ``extra`` is appended to its command.

    The file's own relative paths start at its folder; those given on the command line, and the run directory
    of a shipped job, start at the current directory.
    """
    from outlast_jobs.jobfile_check import check_job  # the job of a bare command needs neither of the two
    from outlast_jobs.jobfile_yaml import parse, read_text

    file = str(path)
    tree = parse(read_text(path), file)
    resolved = "schema" in tree.pairs
    _take_schema(tree, file)
    job = check_job(tree, file, resolved=resolved)
    home = os.path.dirname(os.path.abspath(path))

    def at(key: str) -> tuple[str, str, int | None]:
        return file, key, tree.lines.get(key)

    workdir = _absolute(job.workdir, home, *at("workdir"))
    if not os.path.isdir(workdir):
        raise JobFileError(
            file,
            f"expected a folder that exists, got {quoted(job.workdir)}",
            line=tree.lines.get("workdir"),
            key="workdir",
            expected="a folder that exists",
        )
    here = os.getcwd() if run_dir or is_shipped(path) else home
    return msgspec.structs.replace(
        job,
        command=(*(word.replace("{python}", sys.executable) for word in job.command), *_words(extra)),
        workdir=workdir,
        run_dir=_absolute(
            run_dir or job.run_dir or f"runs/{job.name}", here, *(() if run_dir else at("run_dir"))
        ),
        start_from=None if job.start_from is None else _absolute(job.start_from, home, *at("start_from")),
        source=os.path.abspath(path),
    )


def job_from_command(argv: Sequence[str], run_dir: str | None = None, cwd: str | Path | None = None) -> Job:
    """The job that a bare command makes: named after its script, signals native, the rest by default."""
    here = os.path.abspath(cwd or os.getcwd())
    if not argv or not argv[0]:
        raise JobFileError("command line", "expected a command after --, got none")
    name = _name_of(argv)
    return Job(
        name=name,
        command=_words(argv),
        workdir=here,
        run_dir=_absolute(run_dir or f"runs/{name}", here),
    )


def job_from_resolved(text: str) -> Job:
    """The job that ``job_to_yaml`` wrote; nothing in it is looked up again, so any host can read it."""
    file = "job.yaml"
    from outlast_jobs.jobfile_check import check_job
    from outlast_jobs.jobfile_yaml import parse

    tree = parse(text, file)
    if "schema" not in tree.pairs:
        raise JobFileError(file, f"missing; expected {quoted(Schema.JOB)}", line=tree.line, key="schema")
    source = _take_schema(tree, file)
    return msgspec.structs.replace(check_job(tree, file, resolved=True), source=source)


def _take_schema(tree: Mapping, file: str) -> str | None:
    """Takes out the two keys that only resolved jobs have, and tells where the job came from."""
    from outlast_jobs.jobfile_yaml import Scalar

    schema = tree.pairs.pop("schema", None)
    if schema is None:
        return None
    if not isinstance(schema, Scalar) or schema.value != Schema.JOB:
        shown = quoted(schema.value) if isinstance(schema, Scalar) else "something else"
        problem = f"this version reads {quoted(Schema.JOB)}, got {shown}"
        raise JobFileError(file, problem, line=schema.line, key="schema", expected=Schema.JOB)
    source = tree.pairs.pop("source", None)
    return source.text if isinstance(source, Scalar) else None


def _absolute(
    path: str, home: str, file: str = "command line", key: str = "--run-dir", line: int | None = None
) -> str:
    expanded = os.path.expanduser(path)
    if expanded == "~" or expanded.startswith("~/"):  # or a folder of that name would be made
        problem = 'HOME is not set and this user has none, so "~" is no folder; write it out'
        raise JobFileError(file, problem, line=line, key=key)
    return os.path.normpath(os.path.join(home, expanded))


def _words(words: Sequence[str]) -> tuple[str, ...]:
    for number, word in enumerate(words, 1):
        try:
            read_value("word", word)
        except ReadError as error:
            raise JobFileError("command line", f"word {number} can't be kept: {error.hint}") from error
    return tuple(words)


def _name_of(argv: Sequence[str]) -> str:
    """A name for a run: the script's, the module's after -m, or else the program's."""
    named = os.path.basename(argv[0])
    for before, word in zip(["", *argv], argv, strict=False):
        if before == "-m" and not word.startswith("-"):
            named = word
            break
        if word.endswith((".py", ".sh")) and not word.startswith("-"):
            named = os.path.basename(word)[:-3]
            break
    return _UNFIT.sub("-", named).strip("-.")[:100] or "job"
