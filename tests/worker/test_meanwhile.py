"""Saves that do not stop the training: each is the state of its boundary, whatever the script does in the meantime."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.listening import Listener
from tests.waiting import wait_until
from tests.worker.copies import state_of

from outlast_jobs.look import Verdict, look
from outlast_worker import sources, window
from outlast_worker.cost import Cost
from outlast_worker.imaging import Plan, Snapshot, plan
from outlast_worker.meanwhile import Meanwhile
from outlast_worker.restoring import digest_generation
from outlast_worker.saving import Saved, take_state
from outlast_worker.yielding import beside

SCRIPT = Path(__file__).parent / "scripts" / "changing.py"
EVERY = 4
FROZEN = "parameters that are not trained are changed between a boundary and the next update"


def _through(run: Listener, code: int = 0, **env: str) -> str:
    found, output = run.through(OUTLAST_SAVE_EVERY_STEPS=str(EVERY), **env)
    assert found == code, output
    return output


def _check(run: Listener) -> list[int]:
    """The steps of all generations, each of which is whole and the state that its boundary had."""
    states = dict(line.split() for line in (run.folder / "states").read_text().splitlines())
    steps = []
    for path in run.generations():
        assert look(path, run.run_id, full=True).verdict is Verdict.VERIFIED
        step = int(path.name[5:14])
        # the last is of the end of the script, which changed its own values since
        if not path.name.endswith(".final"):
            assert digest_generation(path) == states[str(step)], step
            steps.append(step)
    return steps


@pytest.mark.parametrize("late", ["1", "0"])
def test_a_state_is_saved_while_the_training_goes_on(run: Listener, late: str) -> None:
    """Nothing changes but by the optimizer: each save but the run's first is copied meanwhile, and exact."""
    output = _through(run, LATE=late)
    assert _check(run) == [4, 8, 12, 16, 20, 24]
    line = next(line for line in output.splitlines() if line.startswith("modes"))
    assert line.count("meanwhile:24") == 5  # six parameters, and three tensors of the optimizer for each
    assert "weights" not in output
    # the first one, which the training waits for, by all cores, as the last; the others beside the training
    threads = next(line for line in output.splitlines() if line.startswith("threads")).split()[1:]
    assert threads == ["None", *[str(beside(1))] * 5, "None"]
    phases = run.values("X_OUTLAST_PHASE")
    assert "train" in phases
    assert len(run.values("X_OUTLAST_SEALED")) == 7
    assert all(float(seconds) > 0 for seconds in run.values("X_OUTLAST_SECONDS"))


def test_a_save_tells_what_it_cost_where_that_is_not_all_its_time(run: Listener) -> None:
    """Each but the run's first and its last, for which the training waits to the end: the time for which the next
    save had to wait counts, and that in which the training went on does not."""
    _through(run, LATE="0", TOTAL="12", SLOW="8")
    sealed = {message["X_OUTLAST_SEALED"]: message for message in run.heard if "X_OUTLAST_SEALED" in message}
    costs = {
        int(name[5:14]): float(message["X_OUTLAST_COST"])
        for name, message in sealed.items()
        if "X_OUTLAST_COST" in message
    }
    assert sorted(sealed)[-1] == "step-000000012.a0001.final"
    assert sorted(costs) == [8, 12]
    assert costs[12] > 0
    assert 0.2 < costs[8] < float(sealed["step-000000008.a0001"]["X_OUTLAST_SECONDS"]) - 0.3


@pytest.mark.parametrize("mode", ["clip", "swap", "load", "moments", "hand", "frozen clip"])
def test_weights_that_torch_sees_changing_are_never_saved_changed(run: Listener, mode: str) -> None:
    """A save under which they change is discarded and the next boundary saved; said once; after the second such
    save all are copied at once, and the cadence is kept again to the step."""
    output = _through(run, MODE=mode, SKIPPED="6")
    assert _check(run) == [4, 9, 13, 16, 20, 24]
    assert output.count("weights are changed between a boundary and the next update, first after step 8") == 1
    assert output.count("from now on a save copies the whole state") == 1
    assert FROZEN not in output
    assert not run.values("X_OUTLAST_SAVE_FAILED")


@pytest.mark.parametrize(
    ("mode", "steps"), [("clip", [4, 9, 13, 16]), ("data", [4, 9, 12, 16]), ("", [4, 8, 12, 16])]
)
def test_nothing_gets_a_name_before_the_training_says_that_it_is_right(
    run: Listener, mode: str, steps: list[int]
) -> None:
    """Written whole before the next update, with changes in it: it waits for the word, and is discarded."""
    _through(run, MODE=mode, SKIPPED="6", LATE="2", TOTAL="16")
    assert _check(run) == steps


@pytest.mark.parametrize("mode", ["clip", "data", "numpy"])
def test_rehearsals_find_changes_and_lose_nothing(run: Listener, mode: str) -> None:
    """The first saves are copied at once and compared before the next update: what changes weights where torch
    sees nothing ends the copying meanwhile, loudly; every save is kept, and exact."""
    output = _through(run, MODE=mode, REHEARSALS="3")
    assert _check(run) == [4, 8, 12, 16, 20, 24]
    assert output.count("from now on a save copies the whole state") == 1
    assert ("does not see it" in output) == (mode != "clip")


@pytest.mark.parametrize("mode", ["data", "numpy"])
def test_samples_find_weights_that_change_as_a_whole(run: Listener, mode: str) -> None:
    """Between two rehearsals a change that torch does not see is found by some bytes of each tensor: discarded,
    the next boundary saved, and nothing copied meanwhile any longer."""
    output = _through(run, MODE=mode, SKIPPED="14")
    assert _check(run) == [4, 8, 12, 17, 20, 24]
    assert output.count("from now on a save copies the whole state") == 1
    assert "saves since step 8 may hold such changes" in output


def test_a_frozen_base_is_copied_while_the_training_goes_on(run: Listener) -> None:
    """Parameters that are not trained are the bulk of some models: nothing is known to change them."""
    line = _through(run, MODE="frozen")
    # the 24 of what is trained, two of the base, and two of its average
    assert line.count("meanwhile:28") == 5
    assert _check(run) == [4, 8, 12, 16, 20, 24]


@pytest.mark.parametrize(
    ("mode", "more", "steps"),
    [
        ("frozen seen", {"SKIPPED": "6"}, [4, 9, 12, 16, 20, 24]),
        ("frozen unseen", {"REHEARSALS": "2"}, [4, 8, 12, 16, 20, 24]),
        ("frozen unseen", {"SKIPPED": "14"}, [4, 8, 12, 17, 20, 24]),
    ],
)
def test_a_base_that_changes_is_copied_at_the_boundary_and_the_rest_meanwhile(
    run: Listener, mode: str, more: dict[str, str], steps: list[int]
) -> None:
    """Found as any change is, and no save holds it; said once; what is trained is copied meanwhile as before."""
    output = _through(run, MODE=mode, **more)
    assert _check(run) == steps
    assert output.count(FROZEN) == 1
    assert "copies the whole state" not in output
    line = next(line for line in output.splitlines() if line.startswith("modes"))
    assert line.split()[-1] == "meanwhile:24"
    assert ("saves since step 8 may hold such changes" in output) == (more.get("SKIPPED") == "14")


def test_a_rehearsal_is_repeated_now_and_then(run: Listener) -> None:
    """One save in so many is compared again: what begins late to change weights unseen is found."""
    output = _through(run, MODE="data", SKIPPED="40", TOTAL="60", CHECKED="10", SAMPLES="0")
    line = next(line for line in output.splitlines() if line.startswith("modes"))
    assert line.count("meanwhile:24") == 9
    assert "rehearsed:24" in line
    assert "saves since step 8 may hold such changes" in output
    assert _check(run) == list(range(4, 61, 4))


def test_other_memory_behind_a_weight_is_no_change_of_what_was_noted(run: Listener) -> None:
    """What a parameter pointed to at the boundary is saved, whatever it points to by the time of the copy."""
    _through(run, MODE="pointer")
    assert _check(run) == [4, 8, 12, 16, 20, 24]


def test_updates_that_are_skipped_hold_nothing_up(run: Listener) -> None:
    """An optimizer that never steps (a scaler found infinities, say): the next boundary ends the copy."""
    _through(run, MODE="skip")
    assert _check(run) == [4, 8, 12, 16, 20, 24]


def test_a_stop_waits_for_what_is_in_flight_and_saves_its_own_boundary(run: Listener) -> None:
    """TERM two steps after a save began: both are sealed, in order, and the run goes on bit for bit."""
    _through(run, 75, MODE="killed")
    assert run.values("X_OUTLAST_EXIT") == ["saved"]
    assert run.values("X_OUTLAST_SEALED")[-2:] == ["step-000000012.a0001", "step-000000014.a0001"]
    assert "meanwhile:24" in _through(run)  # what was restored is copied meanwhile too
    assert _check(run)[-1] == 24


def test_a_failure_of_the_script_leaves_what_was_in_flight(run: Listener) -> None:
    """An exception in the step after a boundary that is being saved: that save is sealed, and the failure told."""
    _through(run, 1, MODE="raise")
    assert json.loads(run.values("X_OUTLAST_FAILURE")[0])["step"] == 12
    assert _check(run) == [4, 8, 12]


def test_of_two_optimizers_in_two_threads_neither_goes_before_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that steps while the other helps with the copy waits for it: what both own is saved unchanged."""
    weights = [torch.nn.Parameter(torch.zeros(1000)) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
    for weight in weights:
        weight.grad = torch.ones(1000)
    tree = state_of(**{f"t{number}": {"w": weight.data} for number, weight in enumerate(weights)})
    saves = Meanwhile(lambda text: None)
    saves.watch(optimizers)
    saves.buffers.prepare(plan(take_state(tree)).size)
    saves.buffers.settled()
    go, carry = threading.Event(), window.Copying._carry
    found = list[bytes]()

    def held(self: window.Copying) -> None:
        if self._left:
            go.wait(60)
        carry(self)

    def write(planned: Plan, snapshot: Snapshot, meta: Any, confirmed: Any, progress: Any) -> Saved:
        confirmed()
        found.extend(bytes(span) for span in _spans(planned, snapshot))
        return Saved(Path(), 0, 0.0, None)

    nothing: Any = lambda *_: None  # noqa: E731
    cost = Cost(1, time.monotonic())
    monkeypatch.setattr(sources, "REHEARSALS", 0)
    said: Any = {"announce": nothing, "goes_on": nothing, "report": nothing, "landed": nothing, "cost": cost}
    monkeypatch.setattr(window.Copying, "_carry", held)
    assert saves.begin(1, tree, nothing, write, **said)
    flight = saves.flight
    assert flight is not None
    first, second = (threading.Thread(target=optimizer.step) for optimizer in optimizers)
    first.start()
    wait_until(lambda: not flight.open, 60, "that the first helps with the copy")
    second.start()
    second.join(0.3)
    assert torch.equal(weights[1], torch.zeros(1000))
    go.set()
    first.join()
    second.join()
    assert flight.wait().error is None
    assert found == [bytes(4000)] * 2
    assert torch.equal(weights[1], -torch.ones(1000))


def _spans(planned: Plan, snapshot: Snapshot) -> Iterator[memoryview]:
    """The bytes of each tensor where it was copied to."""
    for layout, start in zip(planned.layouts, planned.starts, strict=False):
        for gap in layout.gaps:
            yield snapshot.buffer.view[start + gap.start : start + gap.start + gap.nbytes]


@pytest.mark.parametrize(("mode", "code"), [("interrupted", 1), ("interrupted and caught", 0)])
def test_an_interrupted_copy_holds_nothing_up(run: Listener, mode: str, code: int) -> None:
    """What a signal's handler raises in the middle of it discards that save: the script ends by it, or goes on and the
    next boundary is saved instead."""
    output = _through(run, code, MODE=mode)
    assert _check(run) == ([4] if code else [4, 9, 12, 16, 20, 24])
    assert ("KeyboardInterrupt" in output) == bool(code)
