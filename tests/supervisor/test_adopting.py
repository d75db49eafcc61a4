"""Properties of the choice among checkpoints that a script writes itself, where some can't be looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast_jobs import events as journal
from outlast_jobs.jobfile_model import Adopt
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import events as ev
from outlast_supervisor.actions import Choose
from outlast_supervisor.adopting import adopt
from outlast_supervisor.chores import Desk

ADOPT = Adopt("step-*", "--from {path}")


def test_what_can_not_be_read_is_looked_at_again_and_then_passed_over(tmp_path: Path) -> None:
    """A disk error says nothing of a checkpoint: it is waited for, then passed over, and never taken for none."""
    whole, unread = tmp_path / "step-5", tmp_path / "step-9"
    for folder in (whole, unread):
        folder.mkdir()
    (whole / "state.json").write_text("{}")
    # of links that go round the kernel says ELOOP, to root too
    (unread / "state.json").symlink_to("state.json")
    records: list[tuple[str, Any]] = []
    desk = Desk(RunDirectory(tmp_path / "run"), "id", lambda event, data: records.append((event, data)))

    def chosen(*, pass_over: bool) -> object:
        return adopt(desk, ADOPT, str(tmp_path), Choose(1, "newest", pass_over), None)

    first = chosen(pass_over=False)
    assert isinstance(first, ev.ChooseFailed)
    assert first.unreadable == "step-9"
    assert records == []
    later = chosen(pass_over=True)
    assert isinstance(later, ev.Chosen)
    assert (later.name, later.step) == ("step-5", 5)
    assert [event for event, _ in records] == [journal.PASSED_OVER]
    (whole / "state.json").unlink()
    assert isinstance(chosen(pass_over=True), ev.Unusable)
