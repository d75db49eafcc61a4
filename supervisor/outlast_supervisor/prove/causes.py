"""The likely cause of a divergence, in words: rules over what both tracks recorded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .divergence import Divergence
from .tracks import Track

_LEADING = 16  # steps ahead or behind within which a shifted cursor is looked for
_NUMERIC = ("loss", "gradient", "parameter")


@dataclass(frozen=True)
class Case:
    """A divergence with all that is known around it."""

    found: Divergence
    expected: Track  # the run that nothing disturbed
    got: Track  # the resumed one
    cut: Track | None = None  # the run up to the cut
    # words from the restored state: to where it is expected, and to where it is
    draws: Sequence[int | None] = ()


def cause(case: Case) -> str:
    """What went wrong, most likely, and what to do about it."""
    found = case.found
    if found.at_restore:
        return _at_restore(case)
    changed = environment_changes(case)
    if changed and found.thing in _NUMERIC:
        return (
            f"the resumed process computes otherwise: {'; '.join(changed)}; "
            "results are the same to the last bit only where these are the same"
        )
    rule = {
        "ids": _samples,
        "batch": _samples,
        "rng": _stream,
        "updates": _updates,
        "lr": _rate,
        "gradient": _gradient,
        "unregistered": _unregistered,
        "parameter": _parameter,
        "loss": _loss,
    }.get(found.thing)
    text = rule(case) if rule is not None else ""
    return text or _fallback(case)


def environment_changes(case: Case) -> list[str]:
    """How the process that resumed differs from the undisturbed one, apart from the hash seed."""
    old, new = case.expected.fingerprint, case.got.fingerprint
    return [change for key in old if key != "hash_seed" for change in _changes(key, old[key], new.get(key))]


def _changes(key: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [change for name in old for change in _changes(name, old[name], new.get(name))]
    return [f"{key.replace('_', ' ')} {old} → {new}"] if old != new else []


def _at_restore(case: Case) -> str:
    found = case.found
    if found.thing == "unregistered":
        return _unregistered(case)
    if found.thing == "lr":
        return _rate(case)
    if found.thing == "rng":
        return (
            f"the {found.name} stream was not where it was saved when training began: something drew from it "
            "or seeded it after the restore, or it could not be restored"
        )
    return (
        f"the part {found.name!r} was not as it was saved when training began: its load_state_dict does not "
        "bring back all that its state_dict holds, or the script changed it after the restore"
    )


def _unregistered(case: Case) -> str:
    name, _, kind = case.found.name.partition(" (")
    kind = kind.rstrip(")")
    taken = case.got.record(case.found.step).get("kinds", {})
    word = name.rpartition(".")[2]
    if (usual := _kind_of(case)) in ("optimizer", "scheduler") and usual not in taken:
        word = usual
    cure = f"pass it to the Checkpointer as {word}=…"
    if usual == "tensors":
        cure = f"keep it in ckpt.extra[{word!r}], which takes tensors"
    if case.got.files:
        cure = "pass it in parts={…} wherever the script saves and loads"
    return f"the script uses {name!r} ({kind}), which was never registered and so began anew after the cut; {cure}"


def _kind_of(case: Case) -> str:
    record = case.got.record(case.found.step)
    return str(record.get("stray_kinds", {}).get(case.found.name, ""))


# --- samples ---


def _samples(case: Case) -> str:
    old, new = (_drawn(track, case.found.step) for track in (case.expected, case.got))
    if isinstance(old, list) and isinstance(new, list) and 0 < len(old) < len(new) and new[: len(old)] == old:
        return (
            f"step {case.found.step} drew the samples of the uninterrupted run, and more: a batch is drawn "
            "before the ckpt.step() of the one before it, counts as trained on, and is passed over after a restart; "
            "draw it after, and leave fetching ahead to the loader"
        )
    shift = _shift(case)
    if shift is not None and shift > 0:
        batches = f"{shift} {'batch' if shift == 1 else 'batches'}"
        return (
            f"step {case.found.step} got the samples that the uninterrupted run used in step "
            f"{case.found.step + shift}: the cursor is {batches} ahead, so it counts what was fetched and not "
            "what was trained on; count at the boundary, or use outlast_worker.batches"
        )
    if shift is not None:
        return (
            f"step {case.found.step} got the samples that the uninterrupted run used in step "
            f"{case.found.step + shift}: the cursor was not restored, and the data began anew or too early; "
            "register the loader as data=…"
        )
    again = _seen_again(case)
    drew = [name.removeprefix("the random stream ") for name in case.found.also if "random stream" in name]
    told = f" (and the {drew[0]} stream stands elsewhere)" if drew else ""
    if again:
        return (
            f"{again} of the samples after the cut had been trained on in this epoch before it{told}: another "
            "order was drawn in the middle of the epoch; keep the permutation, or its seed, in the data's state"
        )
    return (
        f"other samples came after the cut, and not those of a neighbouring step{told}: the order is drawn "
        "anew in each process; keep the permutation or its seed in the state, or use outlast_worker.batches"
    )


def _shift(case: Case) -> int | None:
    """By how many steps the samples are ahead (+) or behind (-), if it is that."""
    first = case.found.step
    for distance in itertools.chain(range(1, _LEADING + 1), range(-1, -first, -1)):
        pairs = [
            (_drawn(case.expected, step + distance), _drawn(case.got, step))
            for step in range(first, min(first + 3, case.got.last + 1))
        ]
        known = [(old, new) for old, new in pairs if old is not None and new is not None]
        if known and all(old == new for old, new in known):
            return distance
    return None


def _drawn(track: Track, step: int) -> Any:
    line = track.steps.get(step)
    if line is None:
        return None
    found = line.get("ids")
    return found if found is not None else line.get("proof", {}).get("batch")


def _seen_again(case: Case) -> int:
    """How many samples of the first step after the cut were trained on before it, in the same epoch."""
    line = case.got.steps.get(case.found.step, {})
    ids, epoch = line.get("ids"), line.get("epoch")
    if not isinstance(ids, list):
        return 0
    before: set[Any] = set()
    for step, old in case.expected.steps.items():
        if step <= case.got.restored_step and old.get("epoch") == epoch and isinstance(old.get("ids"), list):
            before.update(map(str, old["ids"]))
    rest = [
        item
        for later in case.got.steps.values()
        if later.get("epoch") == epoch
        for item in (later.get("ids") or [])
    ]
    return sum(str(item) in before for item in rest)


# --- random streams ---


def _stream(case: Case) -> str:
    name = case.found.name
    wanted, is_at = (case.draws[0], case.draws[1]) if len(case.draws) == 2 else (None, None)
    if wanted is not None and is_at is not None:
        return _moved(name, is_at - wanted)
    same = _stood_there(case)
    if same is not None:
        return (
            f"the {name} stream stands where the uninterrupted run had it after step {same}: it was seeded "
            "again after the restore, by a call such as manual_seed in a hook or in the first step of each "
            "process; seed before the Checkpointer is made"
        )
    if is_at is None and case.draws:
        return (
            f"the {name} stream is not on its way from the restored state: it was seeded anew after the "
            "restore; seed before the Checkpointer is made"
        )
    return f"the {name} stream was drawn from otherwise than in the uninterrupted run"


def _moved(name: str, words: int) -> str:
    count = abs(words)
    unit = "word" if count == 1 else "words"
    draws = f"{count} {unit} of 32 bits"
    if name == "torch" and count % 2 == 0:
        draws += f", which are {_number(count // 2, 'draw')} of 64 bits"
    if words > 0:
        more = f"the {name} stream is ahead by {draws}: something draws from it in each new process"
        if name == "torch" and count in (2, 4):
            return (
                f"{more}, as the iterator of a DataLoader does when it is made; make it before the restore, "
                "or use outlast_worker.batches, which draws from no process-wide stream"
            )
        return (
            f"{more} after the restore; draw before the Checkpointer is entered, or from a private generator"
        )
    return (
        f"the {name} stream is behind by {draws}: something that the uninterrupted run draws in this step is "
        "not drawn after a restore"
    )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _stood_there(case: Case) -> int | None:
    place = case.got.record(case.found.step).get("places", {}).get(case.found.name)
    for step in range(1, case.got.restored_step + 1):
        if case.expected.record(step).get("places", {}).get(case.found.name) == place:
            return step
    return None


# --- updates, rates, gradients, parameters ---


def _updates(case: Case) -> str:
    step, old, new = case.found.step, case.found.old, case.found.new
    return _in_a_window(case) or (
        f"step {step} made {_number(new, 'update')}, and {old} in the uninterrupted run: when the state was saved "
        "an update was still to come, or what counts the batches of an accumulation window began anew after the "
        "cut; call ckpt.step() only after optimizer.step(), and begin each window there"
    )


def _in_a_window(case: Case) -> str:
    """Whether the cut lies where no update had been made since the boundary before."""
    step = case.got.restored_step
    if case.expected.record(step).get("updates") != 0:
        return ""
    return (
        f"no optimizer stepped between the boundaries of steps {step - 1} and {step}: the cut lies in the "
        "middle of an accumulation window, and the gradient gathered so far was lost; call ckpt.step() "
        "only after optimizer.step()"
    )


def _rate(case: Case) -> str:
    step = case.found.step
    scheduler = _stray_of(case, "scheduler")
    if scheduler and _was_set_back(case):
        return (
            f"the scheduler {scheduler!r} was made after the optimizer was restored and set its rate back; "
            "make it before the Checkpointer, and pass it as scheduler=…"
        )
    if case.found.new == _rates(case.expected, step - 1):
        return (
            f"step {step} had the rate of step {step - 1}: the boundary lies between the optimizer's step and "
            "the scheduler's, so that the scheduler's was lost in the cut; call ckpt.step() after both"
        )
    if case.found.new == _rates(case.expected, 1):
        return (
            f"step {step} had the rate of step 1: it was set back after the restore, as a scheduler does that "
            "is made later, or the scheduler is not registered; make it before, and pass it as scheduler=…"
        )
    if scheduler:
        return (
            f"the script uses the scheduler {scheduler!r}, which was never registered and so counts from "
            "nothing after the cut; pass it to the Checkpointer as scheduler=…"
        )
    if case.found.at_restore:
        return "the rate was set between the restore and the first step of the resumed process"
    return "the rate was changed after the restore, or what computes it has a state that is not registered"


def _was_set_back(case: Case) -> bool:
    """Whether the rate was wrong before the first update after the restore."""
    return case.found.at_restore or case.found.step == case.got.restored_step + 1


def _rates(track: Track, step: int) -> Any:
    return track.steps.get(step, {}).get("proof", {}).get("rates")


def _stray_of(case: Case, kind: str) -> str:
    kinds = case.got.record(case.found.step).get("stray_kinds", {})
    return next((name.partition(" (")[0] for name, found in kinds.items() if found == kind), "")


def _gradient(case: Case) -> str:
    return _in_a_window(case) or (
        "the same samples, rates and random draws gave another gradient: something between them has a state "
        "that is not registered, or a gradient was kept over the boundary"
    )


def _parameter(case: Case) -> str:
    if (name := _stray_of(case, "optimizer")) != "":
        return (
            f"the optimizer {name!r} was never registered, so that its state began anew after the cut; "
            "pass it to the Checkpointer as optimizer=…"
        )
    return "the same gradient made another update: the optimizer's state or options were changed after the restore"


def _loss(case: Case) -> str:
    strays = case.got.record(case.found.step).get("strays", {})
    hint = f"; never registered: {', '.join(strays)}" if strays else ""
    return (
        "the same samples and random draws gave another loss: the model or what the loss is made of has a "
        f"state that is not registered, or an operation is not deterministic{hint}"
    )


def _fallback(case: Case) -> str:
    found = case.found
    if found.thing == "step":
        return f"the resumed run did not train step {found.step}"
    if found.thing == "part":
        return f"the part {found.name!r} went on otherwise: its state_dict does not hold all of its state"
    if found.thing == "counters":
        return "epoch and batch are counted otherwise after a restore"
    return "what differs first has no known cause"


def not_repeatable(case: Case, probed: bool | None) -> str:
    """Why a job differs from itself though nothing cut it. ``probed``: whether one hash seed made it agree."""
    found = case.found
    if probed:
        return (
            "with one PYTHONHASHSEED two runs agree, and without they do not: an order hangs on the hash seed, "
            'as that of a set of strings does; sort it, or set env: {PYTHONHASHSEED: "0"} in the job file'
        )
    if found.thing == "rng" and found.at_restore:
        return f"the {found.name} stream is never seeded: each process begins elsewhere in it"
    if changed := environment_changes(case):
        return f"two processes of this job compute otherwise: {'; '.join(changed)}"
    if found.at_restore:
        return (
            f"{found.what} is made otherwise in each process: something before the first step is not seeded"
        )
    hints: Mapping[str, str] = {
        "ids": "the order of the samples is not seeded, or hangs on time, threads or the file system",
        "batch": "what is done to the samples is not seeded, or hangs on time or threads",
        "rng": f"the number of draws from the {found.name} stream hangs on something outside the run",
    }
    return hints.get(
        found.thing,
        "the same inputs gave another result: an operation is not deterministic "
        "(torch.use_deterministic_algorithms names them), or a private generator is not seeded",
    )
