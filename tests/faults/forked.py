"""Operations carried out in processes that are forked where all is imported; strace attaches to each as it begins."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.faults.marks import GO
from tests.faults.points import SHOWN, Outcome, environment
from tests.waiting import wait_until

_SERVER = Path(__file__).parent / "scripts" / "forking.py"
_PATIENCE = 60.0


def attach(pid: int, options: Sequence[str], trace: Path) -> subprocess.Popen[str]:
    """A strace of the first thread of a process, which it follows from now on until that ends."""
    command = ["strace", *SHOWN, "-o", str(trace), *options, "-p", str(pid)]
    strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert strace.stderr is not None
    line = strace.stderr.readline()
    if "attached" not in line:
        strace.kill()
        raise AssertionError(f"strace cannot attach to {pid}: {line}{strace.stderr.read()}")
    return strace


def attach_at(place: Path, options: Sequence[str], trace: Path) -> subprocess.Popen[str]:
    """Attach to the process that waits at its first mark, and let it go on."""
    wait_until(place.exists, _PATIENCE, f"a process at {place}")
    strace = attach(int(place.read_text()), options, trace)
    Path(f"{place}{GO}").touch()
    return strace


class Forked:
    """The process that forks. One operation at a time; ``broken`` names one in which the product is broken first."""

    def __init__(self, broken: str = "") -> None:
        command = [sys.executable, "-S", "-s", str(_SERVER), *([broken] if broken else [])]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment(), text=True)

    def target(self, *arguments: str) -> ForkedOperation:
        """What operate.py would do with these arguments."""
        return ForkedOperation(self, arguments)

    def carry_out(self, arguments: Sequence[str], options: Sequence[str]) -> Outcome:
        """Once, traced."""
        asked, answers = self._pipes()
        with tempfile.TemporaryDirectory(prefix="points-") as name:
            folder = Path(name)
            asked.write(json.dumps([name, *arguments]) + "\n")
            asked.flush()
            strace = attach_at(folder / "place", options, folder / "trace")
            code = int(answers.readline())
            strace.communicate(timeout=_PATIENCE)
            out, err = ((folder / file).read_text(errors="replace") for file in ("out", "err"))
            return Outcome(code, out, err, (folder / "trace").read_text(errors="replace").splitlines())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


@dataclass(frozen=True)
class ForkedOperation:
    """One operation, with its arguments."""

    forked: Forked
    arguments: tuple[str, ...]

    def traced(self, options: Sequence[str], *, kills: bool) -> Outcome:
        return self.forked.carry_out(self.arguments, options)
