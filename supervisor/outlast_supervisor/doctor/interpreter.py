"""The Python that the job's command runs, which need not be ours: has it torch and the library."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from outlast_jobs import __version__
from outlast_jobs.jobfile import Job

from .. import spawn
from .line import Line, failure, ok, undecided, warning

PATIENCE = 90.0  # seconds: importing torch from a cold network disk takes long
TORCH = (2, 6)
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_PROBE = """
import json, sys
if len(sys.argv) > 1:
    sys.path[0:0] = [sys.argv[1]]
found = {"executable": sys.executable, "python": sys.version.split()[0]}
for name in ("torch", "outlast_worker", "outlast_jobs"):
    try:
        module = __import__(name)
        found[name] = str(getattr(module, "__version__", "unknown"))
    except BaseException as error:
        found[name + " failed"] = f"{type(error).__name__}: {error}"
try:
    __import__("tempfile").gettempdir()
except BaseException as error:
    found["tempfile failed"] = str(error)
print("\\n" + json.dumps(found))
"""


class Looked(Struct, frozen=True):
    """What the interpreter said of itself; ``trouble`` is why it did not."""

    words: tuple[str, ...]
    said: Mapping[str, str] = {}
    trouble: str = ""
    late: bool = False


def words_of(job: Job, first_line: str) -> tuple[tuple[str, ...], str] | None:
    """The interpreter's words of a command, and the folder of its script; None where it runs no Python itself.

    ``first_line`` is that of the program, where it is a script.
    """
    program, *rest = job.command
    if first_line.startswith("#!") and not _is_python(program):
        shebang = first_line[2:].split()
        if shebang and Path(shebang[0]).name == "env":
            shebang = [word for word in shebang[1:] if "=" not in word and word != "-S"]
        if not shebang or not _is_python(shebang[0]):
            return None
        return tuple(shebang), ""
    if not _is_python(program):
        return None
    options, script = [program], ""
    words = iter(rest)
    for word in words:
        if not word.startswith("-") or word in ("-", "-c", "-m", "--"):
            script = str(Path(job.workdir, word).parent) if word.endswith(".py") else ""
            break
        options.append(word)
        if word in _WITH_VALUE:
            options.append(next(words, ""))
    return tuple(options), script


def python_of(job: Job, environment: Mapping[str, str]) -> tuple[tuple[str, ...], str] | None:
    """As ``words_of``, where the program is looked for as a worker with this environment would be."""
    return words_of(job, _first_line(job, environment.get("PATH", os.defpath)))


def look(job: Job, env: Mapping[str, str], patience: float = PATIENCE) -> Looked | None:
    """Run the interpreter as the job would; None where the command is no Python program."""
    environment = spawn.worker_environment(env, job.env, {})
    found = python_of(job, environment)
    if found is None:
        return None
    words, script = found
    given = [*words, "-c", _PROBE, *([script] if script else [])]
    try:
        process = subprocess.Popen(
            given,
            cwd=job.workdir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Looked(words, trouble=str(getattr(error, "strerror", None) or error))
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is still its own
        process.communicate()
        return Looked(words, trouble=f"no answer in {patience:g} s", late=True)
    try:
        said = json.loads(out.decode(errors="replace").strip().splitlines()[-1])
        return Looked(words, {str(k): str(v) for k, v in said.items()})
    except (ValueError, IndexError, AttributeError):
        last = (err.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return Looked(words, trouble=last[:200])


def verdict(looked: Looked | None, job: Job) -> Iterator[Line]:
    """Whether the worker will find what it needs."""
    if looked is None:
        yield warning(
            "python",
            f'"{job.command[0]}" is no Python, so it was not looked whether its Python has torch',
            "try there: python -c 'import torch, outlast_worker'",
        )
        return
    name = looked.words[0]
    if looked.trouble:
        cure = f"try: {name} -c 'import torch'"
        say = undecided if looked.late else failure
        yield say("python", f'"{name}" does not say what it has: {looked.trouble}', cure)
        return
    said = looked.said
    name = said.get("executable") or name
    yield from _torch(said, name, needed=job.signals.mode == "outlast")
    if job.signals.mode != "outlast":
        return
    if problem := said.get("outlast_worker failed"):
        cure = f"install outlast {__version__} for that Python too; or signals: native for a script without the library"
        yield failure("python", f'"{name}" does not find outlast_worker: {problem}', cure)
    elif (theirs := said.get("outlast_jobs", __version__)) not in ("unknown", __version__):
        cure = f"install outlast {__version__} for that Python"
        yield warning("python", f'"{name}" has outlast {theirs}, this is {__version__}', cure)
    if problem := said.get("tempfile failed"):
        cure = "mount a folder that can be written at /tmp, or name one as TMPDIR, under env: in the job file"
        yield failure(
            "python", f'"{name}" has no room for temporary files, which torch needs: {problem}', cure
        )


def _torch(said: Mapping[str, str], name: str, *, needed: bool) -> Iterator[Line]:
    problem, version = said.get("torch failed"), said.get("torch", "")
    if problem is not None:
        text = f'"{name}" does not import torch: {problem}'
        cure = (
            f"install torch {'.'.join(map(str, TORCH))} or newer there, or name another python in the command"
        )
        yield failure("python", text, cure) if needed else warning("python", text, cure)
        return
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if len(numbers) == 2 and numbers < TORCH:
        text = (
            f'"{name}" has torch {version}; older than {TORCH[0]}.{TORCH[1]} it loads checkpoints less safely'
        )
        yield failure("python", text, f"{name} -m pip install --upgrade torch")
    else:
        yield ok("python", f'"{name}": Python {said.get("python")}, torch {version}')


def _first_line(job: Job, path: str) -> str:
    """Of the program where it is a script: it names the interpreter."""
    program = job.command[0]
    found = str(Path(job.workdir, program)) if "/" in program else shutil.which(program, path=path)
    if found is None:
        return ""
    try:
        with open(found, "rb") as file:
            return file.readline(200).decode(errors="replace")
    except OSError:
        return ""


def _is_python(program: str) -> bool:
    return re.fullmatch(r"(python|pypy)[\d.]*", Path(program).name) is not None
