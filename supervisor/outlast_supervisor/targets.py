"""Which run is meant: a run directory, a job file, the name of a job or run, or where one stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from outlast_jobs.rundir import RunDirectory

RUNS = Path("runs")
"""Where runs lie that were not given a place, under the current folder."""
_LOOK = 0.5  # seconds between two looks for a run that has not begun


class NoSuchRun(ValueError):
    """Nothing of that name is a run; the message says what was looked for."""


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory, also one that is damaged."""
    return (path / "run.json").is_file() or ((path / "journal").is_dir() and (path / "checkpoints").is_dir())


def is_kept(folder: Path) -> bool:
    """Whether a daemon has this folder of jobs, or had it."""
    return (folder / ".outlast" / "state.json").is_file()


def find_runs(arguments: Sequence[str]) -> list[RunDirectory]:
    """The runs meant by the arguments of a command, each once; without arguments those that are at hand."""
    found: dict[Path, RunDirectory] = {}
    for path in [run for argument in arguments for run in _meant(argument)] if arguments else _at_hand():
        found.setdefault(path.resolve(), RunDirectory(path))
    if not found:
        raise NoSuchRun(
            f'no run here: "{Path.cwd()}" is no run directory and has none in a folder "{RUNS}"; name one'
        )
    return list(found.values())


def find_run(argument: str | None) -> RunDirectory:
    """The one run meant; of a folder with a job it is that job's, as for `outlast run`."""
    if argument is not None and (run_dir := _of_folder(Path(argument))) is not None:
        return RunDirectory(_begun(run_dir, argument))
    runs = find_runs([argument] if argument is not None else [])
    if len(runs) > 1:
        names = ", ".join(f'"{run.path}"' for run in runs[:5])
        raise NoSuchRun(f"{len(runs)} runs are meant ({names}{', …' if len(runs) > 5 else ''}); name one")
    return runs[0]


def await_run(argument: str | None, tell: Callable[[str], None]) -> RunDirectory:
    """The one run meant, as soon as it is there: a scheduler may begin it in an hour."""
    told = False
    while True:
        try:
            return find_run(argument)
        except NoSuchRun as none_yet:
            if argument is None or not _may_begin(argument):
                raise
            if not told:
                tell(f"{none_yet}; waiting for it to begin")
                told = True
            time.sleep(_LOOK)


def _may_begin(argument: str) -> bool:
    """Whether it is a job, or a place where a run could be made; anything else is more likely a slip."""
    path = Path(argument)
    if path.is_dir():
        return (path / "job.yaml").is_file() or (path / "lock").exists()
    return path.is_file() or ("/" in argument and path.parent.is_dir())


def _at_hand() -> list[Path]:
    here = Path()
    if is_run(here):
        return [here]
    if is_kept(here):
        return _kept(here)
    below = [run for folder in _folders(here) for run in _inside(folder / RUNS)]
    return [*_inside(RUNS), *below]


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def _inside(folder: Path) -> list[Path]:
    """The runs that lie directly in a folder."""
    try:
        return sorted(path for path in folder.iterdir() if is_run(path))
    except OSError:
        return []


def _kept(folder: Path) -> list[Path]:
    """The runs of a daemon's folder, wherever they lie."""
    from outlast_supervisor.daemon.roster import folder_books, run_dirs

    books = folder_books(folder)
    return [run for run in run_dirs(books) if is_run(run)] if books is not None else []


def _meant(argument: str) -> list[Path]:
    path = Path(argument)
    if path.is_dir():
        if is_kept(path):
            return _kept(path)
        if runs := [path] if is_run(path) else [*_inside(path), *_inside(path / RUNS)]:
            return runs
        if not (path / "job.yaml").is_file():
            raise NoSuchRun(f'"{argument}" is no run directory and holds none')
    if not path.exists() and path.name == argument and is_run(RUNS / argument):
        return [RUNS / argument]
    return [_of_job(argument)]


def _of_job(argument: str) -> Path:
    from outlast_jobs.jobfile import JobFileError, load_job, resolve_job

    try:
        run_dir = Path(load_job(resolve_job(argument)).run_dir)
    except JobFileError as error:
        if Path(argument).is_file():
            raise
        raise NoSuchRun(
            f'"{argument}" is no run directory, no run in "{RUNS}" and no job: {error}'
        ) from error
    return _begun(run_dir, argument)


def _of_folder(folder: Path) -> Path | None:
    """Where the run of the job in a folder lies; None where there is none, or none that can be read."""
    from outlast_jobs.jobfile import JobFileError, load_job

    if is_run(folder) or is_kept(folder) or not (folder / "job.yaml").is_file():
        return None
    try:
        return Path(load_job(folder / "job.yaml").run_dir)
    except JobFileError:  # it may be written just now, and its run be wanted all the same
        return None


def _begun(run_dir: Path, argument: str) -> Path:
    if not is_run(run_dir):
        raise NoSuchRun(f'the job "{argument}" has not been run yet: there is no run directory "{run_dir}"')
    return run_dir
