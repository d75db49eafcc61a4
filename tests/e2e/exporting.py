"""A trained run for the tests of `outlast export`: its copies, the command, and a command struck in its middle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import OUTLAST, PATIENCE, Ended, Run, light

STEPS = (14, 12, 8)
"""Of the generations that the trained run has, the newest first."""
MakeCopy = Callable[[], Path]

# Acts at the so-manieth event of a name (or of a file's name that is opened), inside a real `outlast export`.
_STRUCK = """
import os, shutil, signal, sys
event, number, act = sys.argv[1:4]
seen = []
def strike(name, arguments):
    if name == event or (name, arguments[:1]) == ("open", (event,)):
        seen.append(name)
        if len(seen) == int(number):
            exec(act)
sys.addaudithook(strike)
sys.argv[1:] = sys.argv[4:]
from outlast_supervisor.cli import main
main()
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run with every kind of part, done; nobody changes it."""
    job = {
        "command": ["{python}", "{scripts}/everything.py"],
        "save": {"every_steps": 4},
        "env": {"SECRET_TOKEN": "hunter2-5e7f", **light()},
        "hooks": {"done": "true https://hooks.invalid/hunter2-9a1c"},
    }
    run = Run(tmp_path_factory.mktemp("trained"), job)
    assert run.start().wait() == 0, run.report()
    assert [finding.step for finding in run.verified()] == list(STEPS)
    yield run
    run.close()


@pytest.fixture
def copied(trained: Run, tmp_path: Path) -> Path:
    """A run directory of the test's own."""
    return Path(shutil.copytree(trained.directory.path, tmp_path / "copied"))


def generation(run: Path, number: int = 0) -> Path:
    """Of the trained run or a copy: the newest, or an older one."""
    return run / "checkpoints" / f"step-{STEPS[number]:09d}.a0001"


def export(*words: object, cwd: Path | None = None) -> Ended:
    """`outlast export …`, waited for."""
    return _ended([OUTLAST, "export", *map(str, words)], cwd)


def struck(event: str, number: int, act: str, *words: object) -> Ended:
    """The same, with ``act`` done inside it at the so-manieth ``event``."""
    return _ended([sys.executable, "-c", _STRUCK, event, str(number), act, "export", *map(str, words)], None)


def beside(dest: Path) -> list[str]:
    """What lies where an export goes, without the export, and without what the test itself put there."""
    return sorted(name for name in os.listdir(dest.parent) if name.startswith(".") or "export" in name)


def _ended(command: list[str], cwd: Path | None) -> Ended:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **light()}, capture_output=True, text=True, timeout=PATIENCE
    )
    return Ended(done.returncode, done.stdout, done.stderr)
