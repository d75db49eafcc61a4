"""`outlast run`, with every record told that its journal has taken, and every generation that it begins to delete."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tell import tell

from outlast_jobs.journal import JournalWriter
from outlast_supervisor.cli import main

write = JournalWriter.write


def told(self: JournalWriter, lines: Iterable[bytes]) -> None:
    whole = list(lines)
    write(self, whole)
    tell("journal", file=self.path.name, lines=[line.decode() for line in whole])


def watch(event: str, args: tuple[Any, ...]) -> None:
    if event == "outlast.discard" and Path(args[0]).name.startswith("step-"):
        tell("discarded", name=Path(args[0]).name)


JournalWriter.write = told  # type: ignore[method-assign]
sys.addaudithook(watch)
del sys.argv[0]
main()
