"""How much of each attack is run: a seeded sample in every run of the tests, the whole with OUTLAST_TORTURE=1."""

from __future__ import annotations

import os
import random
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("OUTLAST_TORTURE", "") not in ("", "0")
SEED = int(os.environ.get("OUTLAST_SEED", "1"))


def scaled(sample: T, whole: T) -> T:
    """The first in an ordinary run of the tests, the second where the whole attack is asked for."""
    return whole if WHOLE else sample


def chance(name: str) -> random.Random:
    """A source of random choices of its own for each attack, the same in each run; OUTLAST_SEED changes it."""
    return random.Random(f"{name}/{SEED}")


def told(what: str, number: int) -> None:
    """Say how much was tried: `pytest -rP` shows it, and the documents quote it."""
    print(f"tried: {number} {what}")
