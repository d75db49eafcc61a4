"""What is seen of a scratch run while its supervisor goes on working."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tests.supervisor.test_pruning import JOB, sealed

from outlast_jobs import events
from outlast_jobs.journal import Record
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.chores import Desk, prune
from outlast_supervisor.drill.census import Census
from outlast_supervisor.drill.observe import observe
from outlast_supervisor.drill.supervised import ScratchRun


class Busy:
    """A run whose supervisor prunes right after its journal was read, and that has no processes."""

    def __init__(self, path: Path) -> None:
        self.run = RunDirectory(path)
        path.mkdir()
        self.journal: list[Record] = []
        self.desk = Desk(self.run, self.run.create().run.run_id, self.note)

    def note(self, event: str, data: Mapping[str, Any]) -> None:
        self.journal.append(Record(len(self.journal) + 1, 0.0, 0.0, "", 1, "", event, dict(data)))

    def records(self) -> list[Record]:
        read = list(self.journal)
        prune(self.desk, JOB, None)
        return read

    def trainers(self) -> dict[int, int]:
        return {}

    def before(self, attempt: int) -> list[Any]:
        return []

    def described(self, found: Any) -> tuple[str, ...]:
        return ()

    def together(self, pids: dict[int, int]) -> list[str]:
        return []


def test_what_is_pruned_while_it_is_looked_at_is_not_gone(tmp_path: Path) -> None:
    """Each acknowledged generation is seen to be there or to have been pruned, whenever that happens."""
    busy = Busy(tmp_path / "run")
    names = [sealed(busy.desk, step, 1) for step in (10, 20)]
    for name in names:
        busy.note(events.SEALED, {"generation": name})
    for _ in range(2):
        seen = observe(cast(ScratchRun, busy), cast(Census, busy), {})
        assert seen.sealed == tuple(names)
        assert set(names) <= {*seen.generations, *seen.dropped}
    assert seen.dropped == {names[0]}
