"""The verdict on an attack, from what was seen before and after it. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from outlast_jobs.contract import Answer, ExitCode
from outlast_jobs.generation import GenerationName

from .model import Act, Case, Check, Row, Seen, Target, Word


def judge(case: Case) -> Row:
    """Hold each promise against what was seen; the worst of them is the verdict."""
    checks = tuple(_checks(case))
    broken = [check for check in checks if check.held is False]
    open_ones = [check for check in checks if check.held is None]
    word: Word = "did not hold" if broken else "undecided" if open_ones else "held"
    reason = "; ".join(check.reason for check in broken or open_ones)
    return Row(case.attack.name, word, _what(case), _lost_told(case), reason, checks)


def whole(rows: Sequence[Row], left: int = 0) -> tuple[Answer, str, str]:
    """The answer of a drill, its word, and why."""
    by = {
        word: [row for row in rows if row.verdict == word] for word in ("held", "did not hold", "undecided")
    }
    passed = sum(row.verdict == "not tried" for row in rows)
    rest = f"; {passed} could not be tried" if passed else ""
    rest += f"; {left} did not fit into the time" if left else ""
    bad, open_ones, held = by["did not hold"], by["undecided"], len(by["held"])
    if bad:
        said = f"{len(bad)} of {len(rows) - passed} did not hold: {bad[0].attack}: {bad[0].reason}"
        return Answer.DID_NOT_HOLD, "did not hold", said + rest
    if open_ones:
        said = f"{len(open_ones)} could not be decided: {open_ones[0].attack}: {open_ones[0].reason}"
        return Answer.UNDECIDED, "undecided", said + rest
    if not held:
        return Answer.UNDECIDED, "undecided", "nothing was tried" + rest
    return Answer.HELD, "held", f"{held} of {held} held" + rest


def lost(case: Case) -> int | None:
    """Steps that the attempt which was struck had trained, and the one that goes on has to train again."""
    trained = case.after.steps.get(case.struck_attempt)
    if case.after.attempt <= case.struck_attempt or trained is None:
        return 0
    restored = case.after.restored.get(case.after.attempt)
    return None if restored is None else max(0, trained - restored)


# --- the promises ---


def _checks(case: Case) -> Iterator[Check]:
    yield _no_wait_in_vain(case)
    if case.code is not None:
        yield _exit_code(case)
    yield _alone(case)
    yield _none_left(case)
    if not case.library:
        yield Check("work", None, "no trainer attached: what was lost, and what goes on, can't be seen")
        return
    yield _generations(case)
    yield _newest_is_there(case)
    if not case.stuck:
        yield _heeded(case)
        yield _goes_on(case)
        yield _work(case)
    yield _equal(case)


def _no_wait_in_vain(case: Case) -> Check:
    if case.after.gave_up:
        return Check("goes on", False, f"the run was given up: {case.after.gave_up}")
    return Check("goes on", not case.stuck, case.stuck)


def _exit_code(case: Case) -> Check:
    attack, code = case.attack, case.code
    if attack.act is Act.TERM:
        allowed = [int(ExitCode.SAVED), *([0] if case.finished else [])]
        right = code in allowed
    elif attack.ends_supervisor:
        right, allowed = code == -signal.SIGKILL, [-signal.SIGKILL]
    else:
        right, allowed = code == 0, [0]
    wanted = " or ".join(_ended(code) for code in allowed)
    return Check("exit code", right, "" if right else f"outlast run ended with {_ended(code)}, not {wanted}")


def _alone(case: Case) -> Check:
    twice = case.after.twice
    return Check("one trainer", not twice, f"two trainers at once: {'; '.join(twice)}" if twice else "")


def _none_left(case: Case) -> Check:
    left = case.after.leftovers
    return Check("nothing left", not left, f"left of an earlier attempt: {'; '.join(left)}" if left else "")


def _generations(case: Case) -> Check:
    bad = [f"{name}: {why}" for name, why in case.after.generations.items() if why and name != case.damaged]
    return Check("generations", not bad, f"not whole under its final name: {'; '.join(bad)}" if bad else "")


def _newest_is_there(case: Case) -> Check:
    """The newest that was acknowledged: it may be pruned only once a newer one is there."""
    rotten = {*case.before.aside, case.damaged}  # by this attack or an earlier one, and not by the run
    sound = [name for name in case.before.sealed if name not in rotten]
    if not sound:
        return Check("acknowledged", True)
    name = sound[-1]
    pruned = name in case.after.dropped and len(case.after.sealed) > len(case.before.sealed)
    there = name in case.after.generations or pruned
    return Check("acknowledged", there, "" if there else f"the newest that was acknowledged is gone: {name}")


def _heeded(case: Case) -> Check:
    """What only this attack is to bring about."""
    attack, before, after = case.attack, case.before, case.after
    if attack.target is Target.DISK:
        if after.unprotected == before.unprotected:
            return Check("unprotected", False, "saves failed and the run was not marked unprotected")
        back = after.protected > before.protected
        return Check(
            "unprotected", back, "" if back else "the disk was writable again, and no save succeeded"
        )
    if attack.target is Target.NEWEST:
        aside = case.damaged in after.aside
        return Check("set aside", aside, "" if aside else f"{case.damaged} was damaged and not set aside")
    if attack.act is Act.USR1 and after.attempt == case.struck_attempt and not case.finished:
        saved = len(after.sealed) > len(before.sealed)
        return Check("saved", saved, "" if saved else "it was asked to save, and trained on without a save")
    if attack.act is Act.HANG and not case.finished:
        noticed = after.hung > before.hung
        return Check("hang", noticed, "" if noticed else "the trainer was stopped, and no hang was noticed")
    if (
        attack.act is Act.TERM
        and case.finished
        and after.attempt == case.struck_attempt
        and case.code is None
    ):
        return Check("stopped", False, "it was told to stop, and trained on to its end")
    return Check("as told", True)


def _goes_on(case: Case) -> Check:
    """The next attempt's first step is the one after the step that it restored."""
    after = case.after
    if after.attempt <= case.struck_attempt:
        return Check("next step", True)
    restored, first = after.restored.get(after.attempt), after.first.get(after.attempt)
    if restored is None or first is None:
        held = True if case.finished else None
        return Check("next step", held, "" if held else "no step of the next attempt was seen")
    right = first == restored + 1
    return Check("next step", right, "" if right else f"it went on with step {first} after step {restored}")


def _work(case: Case) -> Check:
    steps, most = lost(case), allowed_loss(case)
    if steps is None:
        return Check("work", None, "which step was restored can't be seen")
    if steps <= most:
        return Check("work", True)
    why = "after a notice, with time to save" if most == 0 else f"at most {most} may be"
    return Check("work", False, f"{_count(steps)} lost; {why}")


def allowed_loss(case: Case) -> int:
    """The most steps that may be lost: none after a notice, else one cadence and what is trained during a save.

    That is a cadence at most as well, since the next save waits for the one in flight.
    Where the newest generation was damaged it is all that came after the newest of the others.
    """
    if case.attack.target is Target.NEWEST:
        others = [
            parsed
            for n in case.before.generations
            if n != case.damaged and (parsed := GenerationName.parse(n))
        ]
        restored = max(others).step if others else 0
        return max(0, case.after.steps.get(case.struck_attempt, 0) - restored)
    return 0 if case.attack.notice else 2 * case.cadence


def _equal(case: Case) -> Check:
    if not case.after.difference:
        return Check("replay", True)
    if not case.repeatable:
        return Check("replay", None, f"the job does not repeat itself: {case.after.difference}")
    return Check("replay", False, f"not as in the uninterrupted run: {case.after.difference}")


# --- for people ---


def _what(case: Case) -> str:
    if case.stuck:
        return case.stuck
    after, attempt = case.after, case.struck_attempt
    said = [case.how] if case.how else []
    if case.code is not None:
        said.append(f"outlast run ended with {_ended(case.code)}")
    if after.attempt > attempt:
        restored = after.restored.get(after.attempt)
        source = "" if restored is None else f" from step {restored}" if restored else " from the beginning"
        said.append(f"attempt {attempt} ended, attempt {after.attempt} went on{source}")
        again = _again(case.before, after)
        if again:
            said.append(f"{again} trained again{', all equal' if not after.difference else ''}")
    elif case.library:
        said.append(f"attempt {attempt} {'went on to its end' if case.finished else 'went on'}")
    return ", ".join(said)


def _again(before: Seen, after: Seen) -> int:
    return max(0, after.compared - before.compared)


def _lost_told(case: Case) -> str:
    if not case.library:
        return "unknown"
    steps = lost(case)
    return "unknown" if steps is None else f"{steps} of {allowed_loss(case)} allowed"


def _ended(code: int | None) -> str:
    if code is None:
        return "nothing"
    return str(code) if code >= 0 else signal.Signals(-code).name


def _count(steps: int) -> str:
    return "1 step is" if steps == 1 else f"{steps} steps are"
