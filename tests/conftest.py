"""What every test stands on: the repository root on sys.path, and signals as a shell in a terminal hands them on."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# Under nohup, or behind a shell's "&", some signals come to us ignored, and everything that a test starts would
# inherit that: a supervisor obeys it, and a test that waits for what the signal does would wait for ever.
_HEEDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
for _number in _HEEDED:
    if signal.getsignal(_number) is signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# Hundreds of processes would compile every module anew; what is compiled is kept, whatever the caller likes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

LIGHT = str(Path(__file__).parent / "e2e" / "scripts" / "light")


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """A worker or command that ended within a test leaves signals ignored, or kept: the next one's would be, too."""
    before = [(number, signal.getsignal(number)) for number in _HEEDED]
    yield
    for number, handler in before:
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    """Processes that tests start import half of torch; the test processes themselves have all of it.

    Those of pytest-xdist begin as children of one that has this file too: it sets nothing.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        path = [LIGHT, os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))


_LONG = (
    (
        "faults/test_soak.py",  # half an hour, where the whole is asked for
        *("e2e/test_kill_campaign.py", "e2e/test_term_and_usr1.py", "e2e/test_saves_at_random.py"),
    ),
    (
        *("e2e/test_hangs.py", "e2e/test_proof24.py", "e2e/test_cadence.py", "e2e/test_optimized.py"),
        *("jobs/test_bytelm.py", "jobs/test_toy.py", "worker/test_reference_recipe.py"),
    ),
)
"""Those with tests of 10 s and more. The first are those that need the reference run, which is made once."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first: one that began when all others are done would be waited for alone.

    pytest-xdist gives each process one part of the list, and later what is left of it, from its end, to whoever has
    nothing: so the long ones stand at the heads of two parts.
    """
    here = Path(__file__).parent
    long: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    short = []
    for item in items:
        name = "/".join(item.path.relative_to(here).parts)
        part = next((part for part, names in zip(long, _LONG, strict=True) if name in names), short)
        part.append(item)
    for part, names in zip(long, _LONG, strict=True):
        part.sort(key=lambda item: names.index("/".join(item.path.relative_to(here).parts)))
    cut = max(len(items) // 2 - len(long[0]), 0)
    items[:] = [*long[0], *short[:cut], *long[1], *short[cut:]]


@pytest.fixture(scope="session")
def whole_torch() -> dict[str, str]:
    """The environment of a process that imports the whole of torch."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in path if part != LIGHT)}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The last lines say which real parts this machine lacks, so that a green run does not pass for a whole one."""
    from tests.realparts import REASON

    lacking: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if REASON in reason:
            lacking[reason.split(REASON, 1)[1]] += 1
    for part, number in sorted(lacking.items()):
        terminalreporter.write_line(
            f"not tested, since not on this machine: {part}: {number} tests", yellow=True
        )
