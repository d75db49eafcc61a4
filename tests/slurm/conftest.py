"""Runs the tests of this folder side by side: nearly all of their time is Slurm's own waiting.

A test that takes `site` is called in a thread as soon as the first of them is due, in one process for all of
pytest's workers; when its own turn comes, its outcome is waited for. So the first one is put before all tests of
the session, and the one that takes longest behind them.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm.site import Site

_ORDER = {"test_begin.py": -1, "test_minute.py": 1}
_LONGEST = 280.0  # seconds, below pytest's own limit, so that what went wrong is told


class _Together:
    """Who runs the tests, and where each one's outcome is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.site = Site(folder / str(os.getpid()), folder.parent / "reference")
        self._threads: list[threading.Thread] = []

    def begin(self, items: list[pytest.Item]) -> None:
        """Start all of them, unless they were started, here or by another of pytest's workers."""
        try:
            os.close(os.open(self.folder / "begun", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        for item in sorted(items, key=lambda item: -_ORDER.get(item.path.name, 0)):
            if isinstance(item, pytest.Function) and "site" in item.fixturenames:
                thread = threading.Thread(target=self._call, args=(item,), name=item.name)
                self._threads.append(thread)
                thread.start()

    def outcome(self, item: pytest.Function) -> str:
        """Empty where the test passed, else what it raised."""
        file = self._file(item)
        deadline = time.monotonic() + _LONGEST
        while not file.exists():
            if time.monotonic() > deadline:
                return f"{item.name} did not end in {_LONGEST:g} s"
            time.sleep(0.05)
        return file.read_text()

    def close(self) -> None:
        for thread in self._threads:
            thread.join(_LONGEST)
        self.site.close()

    def _call(self, item: pytest.Function) -> None:
        try:
            known = {"site": self.site, **(item.callspec.params if hasattr(item, "callspec") else {})}
            item.obj(**{name: known[name] for name in inspect.signature(item.obj).parameters})
            told = ""
        except BaseException:
            told = traceback.format_exc()
        written = self._file(item).with_suffix(".part")
        written.write_text(told)
        written.rename(self._file(item))

    def _file(self, item: pytest.Function) -> Path:
        return self.folder / f"{item.path.stem}-{item.name}.txt"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What begins them comes first, what takes longest last."""
    folder = Path(__file__).parent
    items.sort(key=lambda item: _ORDER.get(item.path.name, 0) if item.path.parent == folder else 0)


@pytest.fixture(scope="session")
def _together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Together]:
    base = tmp_path_factory.getbasetemp()
    together = _Together((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "slurm")
    yield together
    together.close()


@pytest.fixture
def site(_together: _Together) -> _Together:
    """The clusters. What the test function gets is a `Site`."""
    return _together


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In place of calling such a test: have all of them begun, and raise what this one raised."""
    together = pyfuncitem.funcargs.get("site")
    if not isinstance(together, _Together):
        return None
    together.begin(pyfuncitem.session.items)
    if told := together.outcome(pyfuncitem):
        pytest.fail(told, pytrace=False)
    return True
