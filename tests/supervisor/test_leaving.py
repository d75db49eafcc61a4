"""Of what kind the notice was that ends a supervisor: by it the scheduler decides whether the job comes back."""

from __future__ import annotations

from msgspec.structs import replace
from tests.supervisor.tables import context, policy, running
from tests.supervisor.test_table import SAMPLES

from outlast_supervisor import events as ev
from outlast_supervisor.policy import Context
from outlast_supervisor.states import Choosing, Clearing, Ending, Launching, Ledger, State, Stopping, Waiting
from outlast_supervisor.table import decide


def test_the_kind_of_a_notice_is_kept() -> None:
    """Signal, warning, deadline and a second interrupt are told apart, in whatever state they come."""
    near = Ledger(deadline=11.0)
    stops = Context(replace(policy(), on_usr1="stop"), 10.0, 0.5)
    waits = replace(SAMPLES[Waiting][0], ledger=near, until_at=99.0)
    cases: list[tuple[State, ev.Event, Context, str]] = [
        (running(), ev.Notice("SIGTERM"), context(10.0), "signal"),
        (running(), ev.Warned("SIGUSR1"), stops, "warning"),
        (running(ledger=near), ev.Warned("SIGUSR1"), context(10.0), "warning"),
        (running(ledger=near), ev.Tick(), context(10.9), "deadline"),
        (waits, ev.Tick(), context(11.0), "deadline"),
        (running(), ev.StopNow("a second SIGINT"), context(10.0), "now"),
    ]
    for kind in (Clearing, Choosing, Launching, Ending, Waiting):
        cases.append((SAMPLES[kind][0], ev.Notice("SIGTERM"), context(10.0), "signal"))
    for state, event, ctx, expected in cases:
        after, _ = decide(state, event, ctx)
        assert after.ledger.leaving, (type(state), event)
        assert after.ledger.leaving_of == expected, (type(state), event)


def test_the_first_notice_says_why() -> None:
    """A TERM that follows a deadline, as Slurm's does, does not turn it into a cancel."""
    first = Ledger(leaving="the deadline", leaving_of="deadline")
    for kind in (Stopping, Ending):
        after, _ = decide(replace(SAMPLES[kind][0], ledger=first), ev.Notice("SIGTERM"), context(10.0))
        assert (after.ledger.leaving, after.ledger.leaving_of) == ("the deadline", "deadline"), kind


def test_an_end_that_has_passed_shortens_no_grace() -> None:
    """Slurm ends a job up to half a minute late and kills it later still: until then the worker may save."""
    for deadline in (None, 9.0):
        stopping, _ = decide(running(ledger=Ledger(deadline=deadline)), ev.Notice("SIGTERM"), context(10.0))
        assert isinstance(stopping, Stopping)
        assert stopping.term_at == 10.0 + policy().grace
