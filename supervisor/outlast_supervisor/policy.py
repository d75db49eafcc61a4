"""What the job file asks for, as far as the state table needs it; replaced whole at a reload."""

from __future__ import annotations

from msgspec import Struct

from outlast_jobs import restart
from outlast_jobs.cadence import SavePolicy


class Policy(Struct, frozen=True):
    """Times are seconds."""

    restart: restart.Policy
    save: SavePolicy
    between: tuple[float, float] | None = None  # bounds of an automatic cadence, where the job wants one
    grace: float = 30.0
    warn: float = 120.0
    on_usr1: str = "auto"  # auto, save, stop
    hang_min: float = 600.0
    audit: str = "warn"  # warn, stop
    shielded: bool = True  # signals: outlast; hold the save signal until a trainer attached


class Context(Struct, frozen=True):
    """What a decision may know besides state and event: no clock, file or environment is read in it."""

    policy: Policy
    now: float  # monotonic seconds
    chance: float  # in [0, 1), spreads the delays of many runs
