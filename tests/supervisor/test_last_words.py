"""What is told of an attempt that left by itself and gave no reason: the last line of its log."""

from __future__ import annotations

import pytest
from tests.supervisor.tables import context, running

from outlast_jobs.restart import Failure
from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor.states import Ledger, State
from outlast_supervisor.table import decide

_HEADER = "--- outlast: attempt 1 on vm: starts at step 0"
_USAGE = "train.py: error: unrecognized arguments: --stpes 5"


def _told(
    tail: str, code: int | None = 2, killed: int | None = None, failure: Failure | None = None
) -> list[str]:
    """What is said when a worker ends so."""
    state: State = running(ledger=Ledger(attempt=1))
    said: list[act.Action] = []
    for event in (
        ev.WorkerExited(code, killed),
        ev.LeftoversGone(),
        ev.Examined(None, False, 0, failure, tail),
    ):
        state, actions = decide(state, event, context())
        said.extend(actions)
    return [action.text for action in said if isinstance(action, act.Say) and "ended at step" in action.text]


def test_a_usage_error_is_told_at_its_first_time() -> None:
    """An exit code alone says nothing: the last line of the log stands beside it, as it is read on a terminal."""
    (said,) = _told(f"{_HEADER}\nusage: train.py [-h]\n 10%\r{_USAGE}\x1b\n\n")
    assert said == f'attempt 1 ended at step 0: exit 2; its log ends with "{_USAGE}?"'


@pytest.mark.parametrize(
    "tail",
    ["", "\n", _HEADER],
)
def test_an_empty_log_has_no_last_words(tail: str) -> None:
    """Our own header is nothing that a worker said."""
    assert _told(tail) == ["attempt 1 ended at step 0: exit 2"]


def test_where_the_reason_is_known_nothing_is_added() -> None:
    """An exception says more than the line below it, and of a kill the log knows nothing."""
    (said,) = _told(f"{_HEADER}\nlast", failure=Failure("ValueError", "boom"))
    assert "last" not in said
    (said,) = _told(f"{_HEADER}\nlast", None, 9)
    assert "last" not in said
