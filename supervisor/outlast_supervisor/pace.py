"""How often the running worker saves: as the job says, or as its own past says where the job leaves it open. Pure."""

from __future__ import annotations

from outlast_jobs.cadence import SavePolicy
from outlast_jobs.pacing import Interval, automatic

from .policy import Policy
from .states import Ledger, Live


def paced(policy: Policy, ledger: Ledger, live: Live | None) -> SavePolicy:
    """The cadence as of the newest seal: between two seals nothing moves it."""
    if policy.between is None:
        return policy.save
    return SavePolicy(every_seconds=interval(policy.between, ledger, live).seconds, asked=True)


def interval(between: tuple[float, float], ledger: Ledger, live: Live | None) -> Interval:
    """The automatic interval, and why it is that."""
    past = ledger.past
    if live is not None:
        past = past.saved(*live.costs).lived(live.sealed_at - live.started_at)
    return automatic(past, between)
