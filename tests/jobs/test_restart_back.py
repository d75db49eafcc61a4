"""When an older generation is taken, and when a run that does harm to itself is held."""

from __future__ import annotations

from msgspec.structs import replace
from tests.jobs.endings import AT_137, POLICY, RESTORE, TRAINER, after

from outlast_jobs.restart import (
    Action,
    Again,
    Counters,
    Ending,
    Failure,
    GiveUp,
    HoldSick,
    Kind,
    Policy,
    Unusable,
    classify,
    decide,
)


def test_a_bad_generation_is_no_fault_of_the_worker() -> None:
    """It is set aside and the next start comes at once, uncounted, whatever code the worker had."""
    for code in (1, 65, 0):
        counters, action = after(Ending(code=code, bad="model.shard-000.pt: digest differs"))
        assert isinstance(action, Again)
        assert (action.delay, action.resume) == (0.0, "newest")
        assert "digest differs" in action.reason
        assert counters == Counters()


def test_a_refusal_stops_for_a_person() -> None:
    """Identity or restore not honoured, or 65 of a trainer, is never tried again."""
    assert isinstance(after(Ending(code=65, refused="restore not honoured"))[1], Unusable)
    assert isinstance(after(replace(TRAINER, code=65))[1], Unusable)
    assert isinstance(after(Ending(code=65, phase="restore"))[1], Unusable)
    assert isinstance(after(Ending(code=65))[1], Again)


def test_a_failure_in_restore_tries_an_older_generation_once() -> None:
    """The older one dying the same way acquits the newest and ends the run."""
    _, first = after(RESTORE)
    assert isinstance(first, Again)
    assert first.resume == "older"
    _, second = after(RESTORE, RESTORE)
    assert isinstance(second, GiveUp)
    assert "twice while restoring" in second.reason
    assert "go back to the code that saved them, or begin anew with --fresh" in second.reason


def test_stepping_back_is_for_one_start() -> None:
    """After the older generation's attempt the newest is used again, unless it fails in restore again."""
    crash = replace(TRAINER, code=1, failure=AT_137, sealed=True)
    counters, action = after(RESTORE, crash)
    assert isinstance(action, Again)
    assert action.resume == "newest"
    assert counters.stepped_back is None
    assert isinstance(after(RESTORE, crash, RESTORE)[1], Again)


def test_a_failure_at_import_never_takes_an_older_generation() -> None:
    """Only phase restore steps back; a typo at import is the script's fault."""
    typo = Ending(code=1, phase="import", failure=Failure("NameError", "x", "train.py:1", None, "import"))
    counters = Counters()
    for _ in range(100):
        counters, action = decide(counters, classify(typo, POLICY), POLICY, 0.5)
        if isinstance(action, GiveUp):
            break
        assert isinstance(action, Again)
        assert action.resume == "newest"
    assert isinstance(action, GiveUp)
    assert "NameError" in action.reason


def test_a_passing_failure_in_restore_is_not_taken_for_an_acquittal() -> None:
    """Storage that is down fails both generations; that is tried on."""
    down = replace(RESTORE, failure=Failure("OSError", "stale handle", "x.py:1", None, "restore", True))
    assert isinstance(after(down, down)[1], Again)


def test_a_run_that_diverges_goes_back_once_per_step_and_is_then_held() -> None:
    """First at step 450: the newest healthy one; at 450 again: held; at another step: once more."""
    sick = replace(TRAINER, code=75, sick_step=450, sealed=True)
    _, first = after(sick)
    assert isinstance(first, Again)
    assert first.resume == "healthy"
    assert isinstance(after(sick, sick)[1], HoldSick)
    assert isinstance(after(sick, replace(sick, sick_step=460))[1], Again)
    assert isinstance(after(sick, replace(sick, sick_step=460), sick)[1], HoldSick)


def test_sick_continue_takes_no_notice_of_it() -> None:
    """Under that policy a diverging run ends as any other does."""
    policy = Policy(sick="continue")
    sick = replace(TRAINER, code=75, sick_step=450, sealed=True)
    assert classify(sick, policy).kind is Kind.SAVED
    assert isinstance(after(sick, sick, policy=policy)[1], Again)


def test_a_sick_run_is_not_done() -> None:
    """Training to the end on NaN is not done, unless the policy says to go on."""
    sick = replace(TRAINER, code=0, words=frozenset({"done"}), sick_step=450)
    assert classify(sick, POLICY).kind is Kind.SICK
    assert classify(sick, Policy(sick="continue")).kind is Kind.DONE


def test_a_run_that_gets_sick_ever_earlier_is_given_up() -> None:
    """Unhealthy generations are no progress: diverging at other steps, none further than before, ends."""
    counters = Counters()
    policy = Policy(without_progress=3, waiting=0.0)
    taken: Action
    for number, step in enumerate((450, 449, 448, 447), start=1):
        ending = Ending(code=75, attached=True, sealed=True, sick_step=step, trained=100)
        counters, taken = decide(counters, classify(ending, policy), policy, 0.5)
        assert isinstance(taken, Again) == (number < 4), taken
    assert isinstance(taken, GiveUp)


def test_a_first_start_that_fails_blames_no_generation() -> None:
    """Without a generation the same failure twice gives up, and neither an older one nor --fresh is spoken of."""
    bare = replace(RESTORE, given=False)
    _, action = after(bare, bare)
    assert isinstance(action, GiveUp)
    assert "twice before the first step" in action.reason
    assert "older" not in action.reason
    assert "--fresh" not in action.reason
