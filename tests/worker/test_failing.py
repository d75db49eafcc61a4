"""The report of a failure: the same failure gives the same report, another one another."""

from __future__ import annotations

import pytest

from outlast_jobs.failure import MESSAGE_LIMIT
from outlast_worker.failing import failure
from outlast_worker.parts import PartError, Parts


class Loading:
    """A part that raises when it is loaded."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def state_dict(self) -> dict[str, int]:
        return {"n": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise self.error


def raised_in_restore(error: Exception) -> PartError:
    parts = Parts({"thing": Loading(error)})
    with pytest.raises(PartError) as caught:
        parts.restore(*parts.capture())
    return caught.value


def test_a_failure_names_the_place_of_its_last_line() -> None:
    """By file name and function, so that it is the same on every node."""
    try:
        Loading(ValueError("no")).load_state_dict({})
    except ValueError as error:
        found = failure(error, 5, "train")
    assert found["exception"] == "ValueError"
    assert found["where"].startswith("test_failing.py:")
    assert found["where"].endswith(" in load_state_dict")
    assert (found["step"], found["phase"], found["passing"]) == (5, "train", False)


def test_a_part_that_fails_to_load_is_told_by_the_scripts_own_line() -> None:
    """What we wrap keeps its place: two parts that fail in two places are two failures."""
    found = failure(raised_in_restore(ValueError("no")), 5, "restore")
    assert found["where"].endswith(" in load_state_dict")
    assert "thing" in found["message"]
    assert not found["passing"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(5, "I/O error"),
        ConnectionResetError(),
        RuntimeError("can't start new thread"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
        RuntimeError(
            "Caught RuntimeError in DataLoader worker process 0.\n unable to allocate shared memory(shm)"
        ),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that"),
        RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"),
    ],
)
def test_trouble_that_may_pass_may_pass_in_a_restore_too(error: Exception) -> None:
    """Memory that is still taken, or storage that fails, while a part is restored is not deterministic."""
    assert failure(raised_in_restore(error), 5, "restore")["passing"]


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    """What went wrong in a loader process stands below its traceback."""
    text = "Caught RuntimeError in DataLoader worker process 0." + "x" * 5000 + "No space left on device (28)"
    kept = failure(RuntimeError(text), 5, "train")["message"]
    assert len(kept) == MESSAGE_LIMIT
    assert kept.startswith("Caught RuntimeError in DataLoader worker process 0.")
    assert kept.endswith("No space left on device (28)")
    assert failure(RuntimeError("short"), 5, "train")["message"] == "short"
