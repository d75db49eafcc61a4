"""What a standby does before it is needed, and how it knows that this still fits: imports, one step, files, streams."""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlast_jobs.pythoncommand import PythonCommand

_OURS = ("outlast_worker.checkpointer", "outlast_worker.session", "outlast_worker.batches", "numpy.random")
"""What a worker under a supervisor imports of us, and what that needs as it is entered."""
_STREAMS = ("random", "numpy.random", "torch")


class Unfit(RuntimeError):
    """A standby of this job would not be what a new process is. The text says why."""


def warm(preload: Sequence[str]) -> None:
    """Import the modules and, with torch, do one tiny step: its first optimizer imports as much again.

    Raises Unfit where that draws from a random stream or seeds one, since a new process would not have.
    """
    streams = _Streams()
    first = [name for name in ("numpy", "torch") if name in preload]  # their streams are known as they begin
    for name in [*first, *(name for name in preload if name not in first)]:
        importlib.import_module(name)
        streams.hold(f"importing {name}")
    if "torch" in sys.modules:
        for name in _OURS:
            importlib.import_module(name)
        _one_step()
        streams.hold("a step of an optimizer")
    gc.collect()


def _one_step() -> None:
    import torch

    with torch.enable_grad():
        weight = torch.nn.Parameter(torch.ones(2, 2))
        optimizer = torch.optim.AdamW([weight])
        (torch.ones(1, 2) @ weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class _Streams:
    """The process-wide random streams, held to where they were when each was first there: each begins somewhere new."""

    def __init__(self) -> None:
        import random

        self._states: dict[str, Any] = {"random": random.getstate()}

    def hold(self, what: str) -> None:
        for name in _STREAMS:
            if name not in sys.modules:
                continue
            now = _state(name)
            if self._states.setdefault(name, now) != now:
                raise Unfit(f"{what} seeds the random stream of {name} or draws from it")


def _state(name: str) -> Any:
    module = sys.modules[name]
    if name == "random":
        return module.getstate()
    if name == "numpy.random":
        kind, key, *rest = module.get_state()
        return (kind, key.tobytes(), *rest)
    return module.get_rng_state().numpy().tobytes()


class Files:
    """What the worker would be made of: interpreter, script, and each module's file."""

    def __init__(self, command: PythonCommand) -> None:
        self._command = command
        self._interpreter = _interpreter(command, os.environ.get("PATH"))
        self._script = None if command.is_module else _digest(command.script)
        self._modules: dict[str, tuple[int, ...] | None] = {}
        if not command.is_module and self._script is None:
            raise SystemExit(f"outlast: the standby can't read the script {command.script!r}")

    def note_modules(self) -> None:
        """Remember the files of all that is imported by now."""
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str):
                self._modules[path] = _stamp(path)

    def changed(self, path: str | None) -> str | None:
        """What is not as it was, in words; None where all of it is."""
        command = self._command
        if _interpreter(command, path) != self._interpreter:
            return f'the interpreter "{command.interpreter}" is another now'
        if not command.is_module and _digest(command.script) != self._script:
            return f'the script "{command.script}" changed'
        for name, stamp in self._modules.items():
            if _stamp(name) != stamp:
                return f'"{name}", which it has imported, changed'
        return None


def _interpreter(command: PythonCommand, path: str | None) -> tuple[Any, ...]:
    found = shutil.which(command.interpreter, path=path) or command.interpreter
    beside = Path(found).parent.parent / "pyvenv.cfg"
    return found, _stamp(found), os.path.realpath(found), _stamp(str(beside))


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _digest(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def memory() -> dict[str, int]:
    """Bytes that only this process has (``uss``), and these with its share of what others have too (``pss``)."""
    sizes: dict[str, int] = {}
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    for line in lines[1:]:
        key, _, value = line.partition(":")
        sizes[key] = int(value.split()[0]) * 1024
    return {"uss": sizes["Private_Clean"] + sizes["Private_Dirty"], "pss": sizes["Pss"]}
