"""Runs a training script whose first attempt halts before one save and tries it in forks: SAVE SCRIPT ARGUMENTS…

Only with a place for the marks in the environment; without it the script is run as it is.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.faults import marks

from outlast_worker.flight import Flight
from outlast_worker.sealing import Seals

_original, _meanwhile = Seals.seal, Seals.begin
_wanted = int(sys.argv[1])
_saves = 0


def seal(self: Seals, state: dict[str, Any], **how: Any) -> bool:
    """Halt before the one save; each fork that is asked for saves as the trainer would, until it is acknowledged."""
    return _counted(self, lambda: _original(self, state, **how), lambda: _original(self, state, **how))


def begin(self: Seals, state: dict[str, Any], **how: Any) -> bool:
    """The same of a save that the training does not wait for: in the fork its own thread carries it out."""
    if self._is_first():
        return False
    self.meanwhile.buffers.settled()

    def in_this_thread(flight: Flight) -> None:
        flight.close()
        flight._run()

    def whole() -> bool:
        Flight.start = in_this_thread  # type: ignore[method-assign]
        begun = _meanwhile(self, state, **how)
        self.settle(wait=True)
        return begun

    return _counted(self, lambda: _meanwhile(self, state, **how), whole)


def _counted(seals: Seals, go_on: Callable[[], bool], whole: Callable[[], bool]) -> bool:
    global _saves
    _saves += 1
    if _saves != _wanted:
        return go_on()
    place = os.environ[marks.PLACE]
    Path(place).touch()
    for number in itertools.count(1):
        os.environ[marks.PLACE] = mine = f"{place}-{number}"
        while not os.access(f"{mine}.ask", os.F_OK):
            time.sleep(0.002)
        if (child := os.fork()) == 0:
            _save(seals, mine, whole)
        _, status = os.waitpid(child, 0)
        Path(f"{mine}.new").write_text(str(os.waitstatus_to_exitcode(status)))
        os.rename(f"{mine}.new", f"{mine}.ended")
    return False


def _save(seals: Seals, place: str, whole: Callable[[], bool]) -> None:
    """In the fork."""
    before = seals.newest
    marks.alone()
    said = os.open(f"{place}.said", os.O_WRONLY | os.O_CREAT)
    code = 1
    try:
        marks.begin()
        if whole() and seals.newest != before:
            os.write(said, f"sealed {seals.newest}\n".encode())
        marks.end()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if marks.PLACE in os.environ and os.environ["OUTLAST_ATTEMPT"] == "1":
    Seals.seal, Seals.begin = seal, begin  # type: ignore[method-assign]
del sys.argv[:2]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
