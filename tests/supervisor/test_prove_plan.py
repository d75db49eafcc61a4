"""Where a proof cuts, what it leaves out, and what its flows tell the worker: pure."""

from __future__ import annotations

from typing import Any

import pytest

from outlast_supervisor.prove import plan
from outlast_supervisor.prove.plan import Frame


def lines(epochs: dict[int, int], updates: dict[int, int] | None = None) -> dict[int, dict[str, Any]]:
    """Steps with their epochs, a batch each."""
    return {
        step: {"epoch": epoch, "batch": 1, "proof": {"updates": (updates or {}).get(step, 1)}}
        for step, epoch in epochs.items()
    }


def test_cuts_lie_inside_the_first_and_the_second_epoch() -> None:
    """With two epochs in reach there is a cut inside each, at no boundary that ends one."""
    cuts, notes = plan.choose_cuts(lines({step: (step - 1) // 5 for step in range(1, 13)}))
    assert [cut.step for cut in cuts] == [3, 8]
    assert notes == []


def test_what_cannot_be_cut_is_said() -> None:
    """A run that does not reach the second epoch, or counts none, is cut half-way, and that is said."""
    cuts, notes = plan.choose_cuts(lines(dict.fromkeys(range(1, 11), 0)))
    assert [cut.step for cut in cuts] == [5]
    assert "step 10 does not reach into it" in notes[0]
    cuts, notes = plan.choose_cuts({step: {"step": step} for step in range(1, 9)})
    assert [(cut.step, cut.why) for cut in cuts] == [(4, "half-way")]
    assert notes == ["the job counts no epochs: it is cut half-way"]
    assert plan.choose_cuts({1: {}}) == ([], [])


def test_a_boundary_without_an_update_is_cut_first() -> None:
    """Where some boundaries lie inside an accumulation window, the cut is made at one of them."""
    found, _ = plan.choose_cuts(
        lines(dict.fromkeys(range(1, 11), 0), {step: step % 2 for step in range(1, 11)})
    )
    assert found[0].step % 2 == 0
    found, _ = plan.choose_cuts(lines(dict.fromkeys(range(1, 11), 0), dict.fromkeys(range(1, 11), 0)))
    assert found[0].step == 5


@pytest.mark.parametrize(
    ("way", "cut", "every"),
    [("stop", "SIGTERM@5", None), ("kill", "SIGKILL@8", 5), ("save", "SIGUSR1@5,SIGKILL@8", None)],
)
def test_each_way_cuts_by_its_own_signals(way: Any, cut: str, every: int | None) -> None:
    """Stop asks to save and leave; kill comes between saves; save asks for one, and then kills."""
    flow = plan.cut_flow(way, 5, Frame(0, 20))
    first, second = flow.legs
    assert (first.cut, first.every_steps, first.attempt) == (cut, every, 1)
    assert (second.cut, second.resume, second.attempt, second.run) == ("", first.name, 2, first.run)


def test_a_kill_never_comes_after_the_last_step() -> None:
    """However late the cut, the kill comes within the run."""
    for last in range(3, 12):
        for cut in range(1, last):
            words = plan.cut_flow("save", cut, Frame(0, last)).legs[0].cut
            assert cut < int(words.rpartition("@")[2]) <= last


def test_a_run_that_starts_from_another_is_counted_from_there() -> None:
    """The cadence of a kill is counted from the generation that the job starts from."""
    assert plan.cut_flow("kill", 105, Frame(100, 140)).legs[0].every_steps == 5


def test_everything_in_a_record_can_be_left_out() -> None:
    """Parts, random streams, and the script's own values where it has any."""
    record = {"parts": {"model": "1", "extra": "2"}, "places": {"torch": "3", "cuda:0": "4"}, "extra": True}
    assert plan.parts_of(record) == ["model", "rng/torch", "rng/cuda:0", "extra"]
    assert plan.parts_of({**record, "extra": False}) == ["model", "rng/torch", "rng/cuda:0"]
    assert plan.parts_of({}) == []


def test_controls_have_a_run_of_their_own() -> None:
    """A control resumes the generation of the cut run in another run directory, whose name is a plain one."""
    frame = Frame(0, 20)
    donor = plan.cut_flow("stop", 5, frame)
    flow = plan.control("rng/cuda:0", donor, frame)
    (leg,) = flow.legs
    assert (leg.resume, leg.leave_out, leg.attempt) == ("stop@5/cut", "rng/cuda:0", 1)
    assert leg.run == "without-rng-cuda-0"


@pytest.mark.parametrize("word", ["controls", "control", "torch", "rng/torch", "without rng/torch"])
def test_flows_are_chosen_by_kind_way_name_or_part(word: str) -> None:
    """Without a word all flows are wanted; with some, those that bear one of them."""
    frame = Frame(0, 20)
    stop, kill = plan.cut_flow("stop", 5, frame), plan.cut_flow("kill", 5, frame)
    torch = plan.control("rng/torch", stop, frame)
    assert all(plan.wanted(flow, ()) for flow in (stop, kill, torch))
    assert [plan.wanted(flow, ("kill",)) for flow in (stop, kill, torch)] == [False, True, False]
    assert plan.wanted(torch, (word,))
    assert not plan.wanted(kill, (word,))
