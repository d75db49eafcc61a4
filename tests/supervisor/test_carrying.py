"""What is decided is carried out in order, with its records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from outlast_supervisor import actions as act
from outlast_supervisor.carry import Carrier

ENDED = act.Note("attempt_ended", {})


class Recorder:
    """Stands where the journal is."""

    def __init__(self) -> None:
        self.joined: list[bool] = []

    def note(self, event: str, data: dict[str, Any], *, together: bool) -> int:
        self.joined.append(together)
        return len(self.joined)

    def settled(self, number: int) -> bool:
        return True


@pytest.mark.parametrize(
    ("actions", "joined"),
    [
        ((ENDED, act.Choose(2, "newest", False, None)), True),
        ((ENDED, act.Say("next attempt in 1.0 s", "info")), False),
    ],
)
def test_an_end_waits_for_the_record_of_a_start_alone(actions: tuple[act.Action, ...], joined: bool) -> None:
    """Where the next attempt is chosen at once both records are one write; before a backoff the end is on disk."""
    recorder, anything = (
        Recorder(),
        SimpleNamespace(submit=lambda tag, job: None, state=None, job=None, forced=None),
    )
    parts = dict.fromkeys(
        ("loop", "desk", "launcher", "chores", "pulse", "verifier", "hooks", "standby"), anything
    )
    carrier = Carrier(
        **parts,  # type: ignore[arg-type]
        journaler=recorder,  # type: ignore[arg-type]
        tell=lambda text, level: None,
        finish=lambda code, reason, at_once: None,
        note_data=lambda event, data: data,
    )
    carrier.carry(actions)
    assert recorder.joined == [joined]
