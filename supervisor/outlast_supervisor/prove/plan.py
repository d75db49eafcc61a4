"""Which flows a proof is made of, and where they are cut: pure functions from facts to values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .model import EXTRA, RNG, Flow, Leg, Way

STEPS = 40
"""Steps of a proof, unless it is told how many."""

_NO_EPOCHS = "the job counts no epochs: it is cut half-way"


@dataclass(frozen=True, slots=True)
class Cut:
    """A boundary at which to cut, and why there."""

    step: int
    why: str


@dataclass(frozen=True, slots=True)
class Frame:
    """What all flows have in common: from where to where, and which signal means what."""

    begin: int  # the step of the generation that the job starts from, or 0
    last: int
    save_signal: str = "SIGUSR1"
    stop_signal: str = "SIGTERM"


def reference(frame: Frame) -> Flow:
    """The run that nothing disturbs."""
    return Flow("reference", "reference", (Leg("reference", "reference", stop_at=frame.last),))


def repeat(frame: Frame) -> Flow:
    """The same again: a job that does not repeat itself can't be resumed exactly either."""
    return Flow("repeat", "repeat", (Leg("repeat", "repeat", stop_at=frame.last),))


def cut_flow(way: Way, cut: int, frame: Frame) -> Flow:
    """A run cut after a step in this way, and resumed in a fresh process."""
    name = f"{way}@{cut}"
    begin = Leg(
        f"{name}/cut",
        name,
        stop_at=frame.last,
        cut=_signals(way, cut, frame),
        every_steps=cut - frame.begin if way == "kill" else None,
    )
    resumed = Leg(f"{name}/resumed", name, attempt=2, resume=begin.name, stop_at=frame.last)
    return Flow(name, "cut", (begin, resumed), way, cut)


def control(part: str, donor: Flow, frame: Frame) -> Flow:
    """The resume of a cut run with one part of the state left out."""
    begin, name = donor.legs[0], f"without {part}"
    folder = name.replace(" ", "-").replace("/", "-").replace(":", "-")
    leg = Leg(name, folder, resume=begin.name, stop_at=frame.last, leave_out=part)
    return Flow(name, "control", (leg,), cut=donor.cut, part=part)


def hash_probes(last: int) -> tuple[Flow, Flow]:
    """Two runs with one hash seed: where they agree and others did not, the seed is the cause."""
    names = ("hash seed 0", "hash seed 0 again")
    env = {"PYTHONHASHSEED": "0"}
    one, two = (
        Flow(name, "probe", (Leg(name, name.replace(" ", "-"), stop_at=last, env=env),)) for name in names
    )
    return one, two


def choose_cuts(lines: Mapping[int, Mapping[str, Any]]) -> tuple[list[Cut], list[str]]:
    """Where to cut, from the reference's own steps: inside the first epoch, and once inside the second.

    Also says, in sentences, what could not be had.
    """
    steps = sorted(lines)
    if len(steps) < 2:
        return [], []
    if not _counts(lines):
        return [Cut(_middle(steps[:-1], lines), "half-way")], [_NO_EPOCHS]
    notes: list[str] = []
    epoch = lines[steps[0]].get("epoch", 0)
    inside = _inside(lines, epoch)
    if not inside:
        notes.append("no boundary lies inside the first epoch")
    cuts = [Cut(_middle(inside or steps[:-1], lines), f"inside epoch {epoch + 1}" if inside else "half-way")]
    second = _inside(lines, epoch + 1)
    if second:
        cuts.append(Cut(_middle(second, lines), f"inside epoch {epoch + 2}"))
    else:
        notes.append(f"no cut in the second epoch: step {steps[-1]} does not reach into it")
    return cuts, notes


def parts_of(record: Mapping[str, Any]) -> list[str]:
    """What can be left out, by the record of a boundary: parts, random streams, the script's own values."""
    parts = [name for name in record.get("parts", {}) if name != EXTRA]
    streams = [RNG + name for name in record.get("places", {})]
    return [*parts, *streams, *([EXTRA] if record.get("extra") else [])]


def wanted(flow: Flow, only: Sequence[str]) -> bool:
    """Whether a flow is among those asked for; without any word all are."""
    if not only:
        return True
    words = {flow.name, flow.kind + "s", flow.kind, flow.way or "", flow.part, flow.part.removeprefix(RNG)}
    return any(word in words for word in only)


def _signals(way: Way, cut: int, frame: Frame) -> str:
    later = cut + max(1, min(3, (frame.last - cut) // 2))
    match way:
        case "stop":
            return f"{frame.stop_signal}@{cut}"
        case "kill":
            return f"SIGKILL@{later}"
        case "save":
            return f"{frame.save_signal}@{cut},SIGKILL@{later}"


def _inside(lines: Mapping[int, Mapping[str, Any]], epoch: int) -> list[int]:
    """Boundaries after which this epoch goes on."""
    return [
        step
        for step, later in itertools.pairwise(sorted(lines))
        if lines[step].get("epoch") == lines[later].get("epoch") == epoch
    ]


def _counts(lines: Mapping[int, Mapping[str, Any]]) -> bool:
    return any(line.get("batch") for line in lines.values())


def _middle(steps: Sequence[int], lines: Mapping[int, Mapping[str, Any]]) -> int:
    """The middle one; rather a boundary before which no optimizer stepped, since that is where harm is done."""
    half = [step for step in steps if _updates(lines[step]) == 0]
    among = half if half and len(half) < len(steps) else steps
    return min(among, key=lambda step: abs(step - steps[len(steps) // 2]))


def _updates(line: Mapping[str, Any]) -> int | None:
    found = line.get("proof", {}).get("updates")
    return found if isinstance(found, int) else None
