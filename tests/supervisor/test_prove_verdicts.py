"""What a proof concludes from two tracks: first divergence, cause, verdicts of flows, controls and all. Pure."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from outlast_supervisor.prove.causes import Case, cause, not_repeatable
from outlast_supervisor.prove.divergence import Divergence, first_divergence
from outlast_supervisor.prove.tracks import Track, idle_streams, track_of
from outlast_supervisor.prove.verdicts import (
    ControlVerdict,
    FlowVerdict,
    control_verdict,
    flow_word,
    not_needed,
    rows_of,
    whole,
)

CUT, LAST = 4, 10


def line(step: int) -> dict[str, Any]:
    """A step of a run in which everything changes with each step, but for python's stream."""
    proof = {
        "parts": {"model": f"m{step}", "optimizer": f"o{step}", "data": f"d{step}", "pen": "p"},
        "kinds": {"model": "stateful", "pen": "torch.Generator"},
        "tensors": {"model.a": f"a{step}", "model.b": f"b{step}"},
        "gradients": {"model.a": f"ga{step}", "model.b": f"gb{step}"},
        "places": {"python": "mt:x:1:", "torch": f"mt:t:{step}:"},
        "rates": [step / 10],
        "lr": [(step + 1) / 10],
        "strays": {"ema (Average)": f"e{step}"},
        "stray_kinds": {"ema (Average)": "module"},
        "updates": 1,
        "batch": f"x{step}",
    }
    ids = [step * 2, step * 2 + 1]
    return {"step": step, "loss": 1 / step, "lr": proof["lr"], "epoch": 0, "ids": ids, "proof": proof}


def lines(first: int, last: int = LAST) -> list[dict[str, Any]]:
    return [line(step) for step in range(first, last + 1)]


def started(step: int, fingerprint: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Header and start of an attempt that restored this step."""
    head = {
        "schema": "outlast.metrics/1",
        "restored_step": step,
        "restored": f"step-{step}" if step else None,
    }
    proof = (
        line(step)["proof"]
        if step
        else {**line(1)["proof"], "places": {"python": "mt:x:1:", "torch": "mt:t:0:"}}
    )
    return [
        head,
        {"start": step, "proof": copy.deepcopy(proof), "fingerprint": fingerprint or {"threads": 1}},
    ]


REFERENCE = track_of([*started(0), *lines(1)])
SAVED = REFERENCE.record(CUT)
IDLE = idle_streams(REFERENCE)


def resumed(*changes: tuple[int, str, Any], threads: int = 1) -> Track:
    """A resumed run with these values in the lines of these steps; 4 is the start itself."""
    made = [*started(CUT, {"threads": threads}), *lines(CUT + 1)]
    for step, path, value in changes:
        target: Any = next(m for m in made if m.get("step") == step or (m.get("start") == step == CUT))
        *way, last = path.split("/")
        for key in way:
            target = target[key]
        target[last] = value
    return track_of(made)


def found(track: Track, **more: Any) -> Divergence | None:
    return first_divergence(REFERENCE, track, saved=SAVED, idle=IDLE, **more)


def told(track: Track, draws: tuple[int | None, ...] = ()) -> tuple[Divergence, str]:
    first = found(track)
    assert first is not None
    return first, cause(Case(first, REFERENCE, track, None, draws))


def test_equal_tracks_have_no_divergence() -> None:
    """A resumed run that is the run has no divergence and is exact in every row."""
    track = resumed()
    assert found(track) is None
    rows = rows_of(REFERENCE, track, IDLE, None, 0.0)
    assert {row.name: row.verdict for row in rows} == {
        "learning rates": "exact",
        "losses": "exact",
        "sample ids": "exact",
        "model": "exact",
        "optimizer": "exact",
        "data": "exact",
        "pen": "exact",
        "rng/python": "never drawn from",
        "rng/torch": "exact",
        "ema (Average)": "exact",
    }
    assert flow_word(rows, None) == "exact"


def test_the_first_thing_is_that_which_comes_first_in_a_step() -> None:
    """Of all that differs in a step, samples come before streams, updates, rates, loss, gradients and parameters."""
    order = [
        ("ids", "ids", [0]),
        ("batch", "proof/batch", "?"),
        ("rng", "proof/places/torch", "mt:t:99:"),
        ("updates", "proof/updates", 0),
        ("lr", "proof/rates", [9.0]),
        ("loss", "loss", 9.0),
        ("gradient", "proof/gradients/model.a", "?"),
        ("parameter", "proof/tensors/model.a", "?"),
        ("unregistered", "proof/strays/ema (Average)", "?"),
        ("part", "proof/parts/data", "?"),
    ]
    for place, (thing, _, _) in enumerate(order):
        first = found(resumed(*((7, path, value) for _, path, value in order[place:])))
        assert first is not None
        assert (first.step, first.thing) == (7, thing)
        assert len(first.also) == len(order) - place - 1


def test_what_the_restore_left_wrong_comes_before_any_step() -> None:
    """State that differs before the first step is told as such; the data show themselves in the first batch."""
    first, why = told(resumed((CUT, "proof/parts/optimizer", "fresh"), (5, "loss", 9.0)))
    assert (first.at_restore, first.step, first.name) == (True, CUT, "optimizer")
    assert "load_state_dict" in why
    assert found(resumed((CUT, "proof/parts/data", "fetched ahead"))) is None


def test_a_stream_that_nobody_draws_from_does_not_count() -> None:
    """Two processes that never seed a stream and never draw from it are the same run; a moved one is not."""
    assert {"python"} == IDLE
    assert found(resumed(*((step, "proof/places/python", "mt:y:1:") for step in range(5, 11)))) is None
    first, _ = told(resumed((CUT, "proof/places/python", "mt:y:1:")))
    assert (first.at_restore, first.thing, first.name) == (True, "rng", "python")


def test_a_missing_step_is_a_divergence() -> None:
    """A run that ends early is not the run."""
    track = track_of([*started(CUT), *lines(5, 8)])
    first = found(track)
    assert first is not None
    assert (first.step, first.thing) == (9, "step")


@pytest.mark.parametrize(
    ("draws", "words"),
    [
        ((10, 12), "ahead by 2 words of 32 bits, which are 1 draw of 64 bits: something draws from it"),
        ((10, 11), "ahead by 1 word of 32 bits"),
        ((10, 6), "behind by 4 words"),
        ((10, None), "seeded anew"),
    ],
)
def test_a_stream_is_told_by_its_draws(draws: tuple[int | None, ...], words: str) -> None:
    """A stream that is ahead, behind, or off its way is told by how much."""
    _, why = told(resumed((5, "proof/places/torch", "mt:t:77:")), draws)
    assert words in why


def test_a_stream_that_was_seeded_again_is_recognised() -> None:
    """A stream that stands where the run had it in its first step was seeded again."""
    _, why = told(resumed((5, "proof/places/torch", "mt:t:1:")), (10, None))
    assert "had it after step 1" in why


@pytest.mark.parametrize(
    ("shift", "words"), [(1, "1 batch ahead"), (3, "3 batches ahead"), (-4, "was not restored")]
)
def test_a_shifted_cursor_is_told_by_how_far(shift: int, words: str) -> None:
    """Samples of a later or an earlier step are a cursor that counts otherwise."""
    ids = [(step, "ids", line(step + shift)["ids"]) for step in range(5, 8)]
    _, why = told(resumed(*ids))
    assert words in why


def test_a_batch_that_is_drawn_ahead_is_told() -> None:
    """Where the first step after the cut draws its own samples and those of the next, the script fetches ahead."""
    _, why = told(resumed((5, "ids", line(5)["ids"] + line(6)["ids"]), (6, "ids", line(7)["ids"])))
    assert "is passed over after a restart" in why


def test_another_order_is_told_by_samples_that_come_again() -> None:
    """Samples that were trained on before the cut and come again show another permutation."""
    _, why = told(resumed((5, "ids", [3, 40]), (6, "ids", [4, 41])))
    assert "2 of the samples after the cut had been trained on" in why
    _, why = told(resumed((5, "ids", [50, 51]), (6, "ids", [52, 53])))
    assert "drawn anew in each process" in why


def test_a_rate_is_told_by_the_step_that_it_belongs_to() -> None:
    """The rate of the step before is a scheduler's step lost; that of step 1 is one set back."""
    assert "between the optimizer's step" in told(resumed((5, "proof/rates", [0.4])))[1]
    assert "it was set back after the restore" in told(resumed((5, "proof/rates", [0.1])))[1]
    late = ("proof/stray_kinds", {"plan (LambdaLR)": "scheduler"})
    assert "'plan' was made after" in told(resumed((CUT, "proof/lr", [0.1]), (CUT, *late)))[1]
    assert "never registered" in told(resumed((6, "proof/rates", [0.9]), (6, *late)))[1]


def test_another_number_of_updates_is_no_other_rate() -> None:
    """Where a step made another number of updates, that is told, and not the rates that go with them."""
    first, why = told(resumed((5, "proof/updates", 0), (5, "proof/rates", [])))
    assert (str(first), first.also) == (
        "step 5: the number of updates is 0 and not 1",
        ("the learning rate",),
    )
    assert why.startswith("step 5 made 0 updates, and 1 in the uninterrupted run: when the state was saved")


def test_another_environment_is_the_cause_of_other_numbers_only() -> None:
    """Other threads explain another loss, and not other samples."""
    assert "threads 1 → 2" in told(resumed((6, "loss", 0.5), threads=2))[1]
    assert "threads" not in told(resumed((6, "ids", [4, 5]), threads=2))[1]


def test_what_came_after_the_restore_may_be_the_cause() -> None:
    """Something unregistered that a process makes later, and that differs, is named before the loss."""
    first, why = told(
        resumed(
            (5, "loss", 9.0),
            (CUT, "proof/strays", {}),
            (5, "proof/strays/ema (Average)", "?"),
        )
    )
    assert (first.thing, first.name) == ("unregistered", "ema (Average)")
    assert "as ema=" in why


@pytest.mark.parametrize(
    ("kind", "taken", "cure"),
    [
        ("optimizer", {}, "as optimizer="),
        ("optimizer", {"optimizer": "optimizer"}, "as second="),
        ("scheduler", {}, "as scheduler="),
        ("scheduler", {"scheduler": "stateful"}, "as second="),
        ("tensors", {}, "keep it in ckpt.extra['second']"),
        ("numpy.Generator", {}, "as second="),
    ],
)
def test_the_cure_for_what_was_not_registered_is_one_that_is_taken(
    kind: str, taken: dict[str, str], cure: str
) -> None:
    """A keyword that is free, and for tensors in a dict, which are no part, the place that takes them."""
    name = "trainer.second (Thing)"
    reference = [*started(0), *lines(1)]
    got = [*started(CUT), *lines(CUT + 1)]
    for where, digest in ((reference, "x"), (got, "y")):
        where[-1]["proof"] |= {"strays": {name: digest}, "stray_kinds": {name: kind}, "kinds": taken}
    expected, made = track_of(reference), track_of(got)
    divergence = first_divergence(expected, made, saved=SAVED, idle=IDLE)
    assert divergence is not None
    assert cure in cause(Case(divergence, expected, made, None, ()))


def test_tolerance_is_for_numbers_alone() -> None:
    """Losses, rates and measured parts may differ by the tolerance; samples and streams never."""
    near = resumed(
        (6, "loss", 1 / 6 + 1e-9), (10, "proof/parts/model", "?"), (6, "proof/gradients/model.a", "?")
    )
    assert found(near, tolerance=1e-6) is None
    rows = rows_of(REFERENCE, near, IDLE, {"model": {"largest": 1e-7, "where": "a"}}, 1e-6)
    assert {row.verdict for row in rows if row.name in ("losses", "model")} == {"within tolerance"}
    assert flow_word(rows, None) == "within tolerance"
    rows = rows_of(REFERENCE, near, IDLE, {"model": {"largest": 1e-3, "where": "a"}}, 1e-6)
    assert flow_word(rows, None) == "diverged"
    rows = rows_of(REFERENCE, near, IDLE, None, 1e-6)  # not measured: no pass
    assert flow_word(rows, None) == "diverged"
    assert found(resumed((6, "ids", [1, 2])), tolerance=1.0) is not None
    assert found(resumed((6, "proof/places/torch", "mt:z:1:")), tolerance=1.0) is not None


def test_losses_that_are_no_numbers_are_never_waved_through() -> None:
    """NaN against a number is a divergence under any tolerance; against NaN it is equal."""
    assert found(resumed((6, "loss", "nan")), tolerance=1e9) is not None
    reference = track_of([*started(0), *lines(1, 5), {**line(6), "loss": "nan"}])
    again = track_of([*started(CUT), line(5), {**line(6), "loss": "nan"}])
    assert first_divergence(reference, again, idle=IDLE) is None


def test_a_control_is_detected_not_needed_or_not_noticed() -> None:
    """Noticed is detected; a generator at rest, or a part as a fresh start makes it, is not needed; else a failure."""
    other = resumed((CUT, "proof/parts/model", "fresh"), (5, "loss", 9.0))
    verdict = control_verdict("model", REFERENCE, other, SAVED, IDLE)
    assert (verdict.verdict, verdict.first is not None) == ("detected", True)
    assert "the training differs from step 5" in verdict.why
    assert control_verdict("model", REFERENCE, resumed(), SAVED, IDLE).verdict == "not needed"
    lost = resumed((CUT, "proof/parts", {}))
    assert control_verdict("model", REFERENCE, lost, SAVED, IDLE).verdict == "not noticed"
    for part in ("pen", "rng/python"):
        settled = not_needed(part, REFERENCE, CUT, IDLE)
        assert settled is not None
        assert settled.why == "this job never draws from it after the cut"
    for part in ("model", "rng/torch", "data"):
        assert not_needed(part, REFERENCE, CUT, IDLE) is None


EXACT = FlowVerdict("stop@4", "exact")
SEEN, IDLING = ControlVerdict("model", "detected", ""), ControlVerdict("pen", "not needed", "")


@pytest.mark.parametrize(
    ("flows", "controls", "undecided", "word", "code"),
    [
        ([EXACT], [SEEN, IDLING], "", "held", 0),
        ([EXACT, FlowVerdict("kill@4", "diverged", cause="x")], [SEEN], "", "did not hold", 1),
        ([FlowVerdict("kill@4", "failed", cause="x")], [SEEN], "", "did not hold", 1),
        ([EXACT], [SEEN, ControlVerdict("ema", "not noticed", "")], "", "did not hold", 1),
        ([EXACT], [IDLING], "", "proves nothing", 2),
        ([EXACT, FlowVerdict("kill@4", "undecided")], [SEEN], "", "undecided", 2),
        ([EXACT], [SEEN, ControlVerdict("ema", "undecided", "")], "", "undecided", 2),
        ([], [], "the reference failed", "undecided", 2),
        ([], [], "", "proves nothing", 2),
    ],
)
def test_the_whole_is_the_worst_of_its_parts(
    flows: list[FlowVerdict], controls: list[ControlVerdict], undecided: str, word: str, code: int
) -> None:
    """What failed outweighs what is open; what is open outweighs what held; nothing detected proves nothing."""
    came = whole(flows, controls, undecided=undecided, partial=False)
    assert (came.word, int(came.answer)) == (word, code)


def test_the_jobs_own_protocol_can_only_make_it_worse() -> None:
    """A protocol that fails fails the proof; one that holds does not mend it."""
    held = whole([EXACT], [SEEN], undecided="", partial=False)
    failed = whole([FlowVerdict("a", "diverged")], [SEEN], undecided="", partial=False)
    assert held.joined({"exit_code": 0, "text": "held"}).word == "held"
    assert held.joined({"exit_code": 1, "text": "no"}).word == "did not hold"
    assert held.joined({"exit_code": 2, "text": "no"}).word == "undecided"
    assert failed.joined({"exit_code": 0, "text": "held"}).word == "did not hold"


def test_a_job_that_differs_from_itself_is_told_why() -> None:
    """Streams that are never seeded, the hash seed, other threads: each is named."""
    rng = Divergence(0, True, "rng", "numpy", "a", "b")
    assert "numpy stream is never seeded" in not_repeatable(Case(rng, REFERENCE, REFERENCE), False)
    ids = Divergence(1, False, "ids", "", [1], [2])
    assert "hash seed" in not_repeatable(Case(ids, REFERENCE, REFERENCE), True)
    assert "order of the samples is not seeded" in not_repeatable(Case(ids, REFERENCE, REFERENCE), False)
    loss = Divergence(1, False, "loss", "", 1.0, 2.0)
    assert "threads 1 → 2" in not_repeatable(Case(loss, REFERENCE, resumed(threads=2)), None)
