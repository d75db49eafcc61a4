"""The catalogue of attacks, and which of them a drill makes in which order. Pure."""

from __future__ import annotations

import difflib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence

from .model import Act, Attack, Target

POINTS: Mapping[str, str] = {
    "import": "the worker imports",
    "restore": "the worker restores a generation",
    "batch": "the trainer has attached and draws its first batch",
    "step": "in the middle of a step",
    "eval": "an evaluation begins",
    "save": "a save begins",
    "files": "some files of a save are written and others not",
    "index": "all files are written, the index is not",
    "digest": "the index is written, its digest is not",
    "rename": "all is written and synced, right before the rename",
    "sealed": "right after the rename",
    "prune": "an old generation is about to be put out of sight",
    "pruning": "the files of an old generation are being deleted",
    "disk": "the disk takes no more",
    "damage": "a generation rots while nothing runs",
}
"""Where a run is struck, in the order of a run."""

SAVING = ("save", "files", "index", "digest", "rename", "sealed")
EARLY = ("import", "restore", "batch")
"""Points that only a start comes to: the attempt before is killed to reach them."""
PRUNING = ("prune", "pruning")
"""Points of the supervisor."""

_CLASSES: Mapping[str, Collection[str]] = {"saving": SAVING, "start": EARLY, "pruning": PRUNING}
_SIGNALS = (Act.TERM, Act.USR1, Act.KILL, Act.STOP)


class UnknownAttack(ValueError):
    """No attack and no class of attacks is called so."""


def catalogue() -> list[Attack]:
    """Every attack there is, in the order of a run."""
    return [attack for point in POINTS for attack in _at(point)]


def names() -> list[str]:
    """What `--only` takes beside whole names: points, acts, targets, classes."""
    words = [*_CLASSES, *POINTS, *Act, *Target]
    return list(dict.fromkeys(str(word) for word in words))


def chosen(only: Sequence[str]) -> list[Attack]:
    """The attacks that these names mean, all for none; UnknownAttack for a name that means nothing."""
    every = catalogue()
    if not only:
        return every
    for word in only:
        if not any(_means(word, attack) for attack in every):
            near = difflib.get_close_matches(word, [*names(), *(a.name for a in every)], 1)
            cure = f'did you mean "{near[0]}"?' if near else "`outlast drill --list` prints them"
            raise UnknownAttack(f'there is no attack "{word}"; {cure}')
    return [attack for attack in every if any(_means(word, attack) for word in only)]


def order(attacks: Sequence[Attack], seed: int) -> list[Attack]:
    """The order of a drill: drawn from the seed, each point once before any comes again; hangs last.

    A hang is waited for by the run's own rule, which a run needs to be started with: they share one.
    """
    dealt = random.Random(f"order {seed}")
    piles: dict[str, list[Attack]] = {}
    for attack in attacks:
        piles.setdefault(attack.point, []).append(attack)
    for pile in piles.values():
        dealt.shuffle(pile)
    points = list(piles)
    dealt.shuffle(points)
    rounds = max((len(pile) for pile in piles.values()), default=0)
    mixed = [piles[point][n] for n in range(rounds) for point in points if n < len(piles[point])]
    return sorted(mixed, key=lambda attack: attack.act is Act.HANG)


def _means(word: str, attack: Attack) -> bool:
    return (
        word in (attack.name, attack.point, attack.act, attack.target)
        or attack.point in _CLASSES.get(word, ())
        or attack.name.startswith(f"{word}/")
    )


def _at(point: str) -> Iterator[Attack]:
    if point == "disk":
        yield from (Attack(point, act, Target.DISK) for act in (Act.FULL, Act.READ_ONLY))
    elif point == "damage":
        yield from (Attack(point, act, Target.NEWEST) for act in (Act.FLIP, Act.CUT, Act.INDEX))
    elif point in PRUNING:
        yield from (Attack(point, act, Target.SUPERVISOR) for act in (Act.TERM, Act.KILL, Act.STOP))
        yield Attack(point, Act.KILL, Target.RUN)
    else:
        for target in (Target.TRAINER, Target.GROUP, Target.SUPERVISOR):
            yield from (Attack(point, act, target) for act in _SIGNALS)
        yield Attack(point, Act.KILL, Target.RUN)
        if point in ("step", "eval", "files"):
            yield Attack(point, Act.HANG, Target.TRAINER)
