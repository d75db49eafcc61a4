"""Properties of replay: whatever the journal holds and wherever it ends, it means one consistent history."""

from __future__ import annotations

import random
from typing import Any

import pytest

from outlast_jobs import events
from outlast_jobs.history import History, read_history, replay
from outlast_jobs.journal import JournalWriter, Record
from outlast_jobs.pacing import VANISHED
from outlast_jobs.rundir import RunDirectory

GEN_1 = "step-000000050.a0001"
GEN_2 = "step-000000100.a0002"
STATS = {"index.json": [11, 22, 33]}


class Story:
    """Records as a run would write them: a second between two, a new life at every supervisor's start."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.life = 0
        self.seq = 0

    def __call__(self, event: str, /, **data: Any) -> Story:
        if event == events.SUPERVISOR_STARTED:
            self.life, self.seq = self.life + 1, 0
        self.seq += 1
        wall = 1000.0 + len(self.records)
        host = f"host-{self.life}"
        self.records.append(Record(self.seq, wall, wall, "boot", max(self.life, 1), host, event, data))
        return self

    def history(self, *, running: bool = False) -> History:
        return replay(self.records, running=running)


def _lifetime(story: Story, attempt: int, generation: str) -> Story:
    step = int(generation[5:14])
    story(events.SUPERVISOR_STARTED, identity="7:8:boot", version="0.1.0", job_digest="j", command_digest="c")
    story(events.ATTEMPT_STARTED, attempt=attempt, resume=None, cause="first start", host="h")
    story(events.ATTEMPT_ATTACHED, attempt=attempt, pid=7, rank=0, restored=None)
    story(events.SEALED, generation=generation, step=step, bytes=100, seconds=0.5)
    story(events.VERIFIED, generation=generation, stats=STATS, healthy=True)
    story(
        events.ATTEMPT_ENDED,
        attempt=attempt,
        outcome="saved",
        code=75,
        signal=None,
        reason="saved on a notice",
        step=step,
        counters={"preempted": attempt},
        signature=None,
        next="newest",
    )
    return story(events.SUPERVISOR_STOPPED, code=75, reason="stopped on a notice")


def test_nothing_recorded_is_a_new_run() -> None:
    """An empty journal is a run that nothing has happened to."""
    assert replay([]) == History()
    assert replay([]).highest_attempt == 0
    assert replay([]).vanished is None


def test_a_life_that_ended_well_is_told_in_full() -> None:
    """Attempt, counters, digests, generation and clean stop are all there after a replay."""
    history = _lifetime(Story(), 1, GEN_1).history()
    (attempt,) = history.attempts
    assert (attempt.number, attempt.outcome, attempt.code, attempt.step) == (1, "saved", 75, 50)
    assert (attempt.started, attempt.attached, attempt.ended) == (1001.0, 1002.0, 1005.0)
    assert (attempt.host, attempt.cause) == ("h", "first start")
    assert history.counters == {"preempted": 1}
    assert history.next_resume == "newest"
    assert (history.job_digest, history.command_digest, history.code_digest) == ("j", "c", None)
    assert history.sealed[GEN_1].bytes == 100
    assert history.remembered == {GEN_1: STATS}
    assert history.verified[GEN_1].healthy
    assert history.life is not None
    assert (history.life.number, history.life.code, history.life.stopped) == (1, 75, 1006.0)
    assert history.vanished is None
    assert history.damage == ()


def test_replay_is_consistent_wherever_a_kill_ends_it() -> None:
    """Cut after any record, an attempt that started has ended or vanished, and nothing later is known."""
    story = _lifetime(_lifetime(Story(), 1, GEN_1), 2, GEN_2)
    for cut in range(len(story.records) + 1):
        history = replay(story.records[:cut])
        seen = [record.event for record in story.records[:cut]]
        assert len(history.attempts) == seen.count(events.ATTEMPT_STARTED) == history.highest_attempt
        ended = [attempt for attempt in history.attempts if attempt.outcome != VANISHED]
        assert len(ended) == seen.count(events.ATTEMPT_ENDED)
        assert all(attempt.outcome is not None for attempt in history.attempts)
        assert len(history.verified) == seen.count(events.VERIFIED)
        stopped = bool(seen) and seen[-1] == events.SUPERVISOR_STOPPED
        assert (history.life is not None and history.life.stopped is not None) == stopped
        started = len(ended) < len(history.attempts)
        assert (history.vanished is not None) == started
        if history.vanished is not None:
            assert history.vanished.reason == "previous attempt vanished"
            assert history.counters == ({"preempted": 1} if ended else None)


def test_what_the_newest_saves_took_is_remembered() -> None:
    """Of whichever attempt they were, and also of generations that are gone; of many the newest."""
    story = Story()
    for attempt in range(1, 31):
        story(events.ATTEMPT_STARTED, attempt=attempt)
        story(events.SEALED, generation=GEN_1, step=attempt, bytes=1, seconds=float(attempt))
    story(events.DROPPED, generation=GEN_1, reason="old")
    assert story.history().saves == tuple(map(float, range(11, 31)))


def test_what_a_life_told_before_its_clock_was_set_is_moved() -> None:
    """A machine that boots in 1970 and is told the time later had no attempt of half a century."""
    story = Story()
    for attempt in (1, 2):
        story(events.SUPERVISOR_STARTED)
        story(events.ATTEMPT_STARTED, attempt=attempt)
        story(events.ATTEMPT_ATTACHED, attempt=attempt)
    before = story.history().attempts
    story(events.CLOCK_JUMPED, seconds=1e9)
    first, second = story.history().attempts
    assert first == before[0], "another life's clock"
    assert (second.started, second.attached, second.ended) == (
        before[1].started + 1e9,
        before[1].started + 1 + 1e9,
        None,
    )


def test_an_attempt_that_runs_has_not_vanished() -> None:
    """To a view of a living run the open attempt is running; one before a later life has vanished."""
    story = Story()
    for attempt in (1, 2):
        story(events.SUPERVISOR_STARTED)
        story(events.ATTEMPT_STARTED, attempt=attempt)
        story(events.SEALED, generation=GEN_1, step=attempt * 10, bytes=1, seconds=1)
    history = story.history(running=True)
    assert [attempt.outcome for attempt in history.attempts] == [VANISHED, None]
    assert [attempt.step for attempt in history.attempts] == [10, 20]
    assert history.vanished is None
    assert story.history().vanished == story.history().attempts[1]


def test_the_next_attempt_of_the_same_life_ends_the_one_before() -> None:
    """An attempt whose end was not recorded has vanished as soon as another one starts."""
    story = Story()(events.SUPERVISOR_STARTED)
    story(events.ATTEMPT_STARTED, attempt=1)(events.ATTEMPT_STARTED, attempt=2)
    assert [attempt.outcome for attempt in story.history(running=True).attempts] == [VANISHED, None]


def test_a_new_supervisor_can_say_how_the_vanished_one_ended() -> None:
    """An end that is recorded in a later life counts for the attempt it names."""
    story = Story()(events.SUPERVISOR_STARTED)(events.ATTEMPT_STARTED, attempt=1)(events.SUPERVISOR_STARTED)
    story(events.ATTEMPT_ENDED, attempt=1, outcome="crashed", counters={"crashed": 1})
    history = story.history()
    assert history.attempts[0].outcome == "crashed"
    assert history.counters == {"crashed": 1}
    assert history.vanished is None


def test_what_vanished_twice_unsealed_may_have_lacked_memory() -> None:
    """A control group can be killed as a whole, its supervisor too: the next attempt is to take less."""
    story = _lifetime(Story(), 1, GEN_1)
    assert story.history().counted == {"preempted": 1}
    story(events.SUPERVISOR_STARTED, identity="7:8:boot", version="0.1.0", job_digest="j", command_digest="c")
    story(events.ATTEMPT_STARTED, attempt=2, resume=GEN_1, cause="start", host="h")
    assert story.history().counted == {"preempted": 1}
    story(events.SUPERVISOR_STARTED, identity="7:8:boot", version="0.1.0", job_digest="j", command_digest="c")
    story(events.ATTEMPT_STARTED, attempt=3, resume=GEN_1, cause="start", host="h")
    assert story.history().counted == {"preempted": 1, "tight": True}
    assert story.history(running=True).counted == {"preempted": 1}
    story(events.SEALED, generation=GEN_2, step=100, bytes=100, seconds=0.5)
    assert story.history().counted == {"preempted": 1}
    assert Story().history().counted == {}


def test_held_stays_until_it_is_released() -> None:
    """Stopped by hand or given up, a run is held over any number of lives; a release begins counting anew."""
    story = _lifetime(Story(), 1, GEN_1)
    story(events.HELD, by="me@host", reason="stopped by hand", code_digest="k")
    story(events.SUPERVISOR_STARTED, job_digest="j2")
    held = story.history().held
    assert held is not None
    assert (held.by, held.reason, held.job_digest, held.code_digest) == (
        "me@host",
        "stopped by hand",
        "j",
        "k",
    )
    story(events.RELEASED, by="me@host", why="--release")
    history = story.history()
    assert history.held is None
    assert history.counters is None
    story(events.RELEASED, by="me", why="again", counters={"preempted": 9})
    assert story.history().counters == {"preempted": 9}


def test_giving_up_holds_the_run_by_itself() -> None:
    """A kill right after gave_up, before anything says held, leaves the run held, with the reason."""
    story = _lifetime(Story(), 1, GEN_1)
    story(
        events.GAVE_UP, reason="deterministic", signature={"e": 1}, counters={"crashed": 2}, tail=["a", "b"]
    )
    history = story.history()
    assert history.held is not None
    assert (history.held.by, history.held.reason) == ("outlast", "deterministic")
    assert history.counters == {"crashed": 2}


def test_done_is_remembered_until_another_attempt_starts() -> None:
    """Done holds the command it was for; a changed command's attempt makes the run unfinished again."""
    story = _lifetime(Story(), 1, GEN_1)(events.DONE, attempt=1, command_digest="c")(
        events.SUPERVISOR_STARTED
    )
    done = story.history().done
    assert done is not None
    assert (done.attempt, done.command_digest) == (1, "c")
    assert story(events.ATTEMPT_STARTED, attempt=2).history().done is None


def test_a_generation_that_is_gone_is_not_remembered() -> None:
    """Dropped or set aside, a generation is neither sealed nor verified; why it was set aside stays known."""
    story = _lifetime(_lifetime(Story(), 1, GEN_1), 2, GEN_2)
    story(events.DROPPED, generation=GEN_1, reason="keep last 3")
    story(events.QUARANTINED, generation=GEN_2, to=f"{GEN_2}.corrupt-1", verdict="corrupt", reason="sha256")
    history = story.history()
    assert history.sealed == history.verified == {}
    assert history.quarantined == {GEN_2: "sha256"}


def test_smaller_facts_are_carried() -> None:
    """Pins, audit, the job and answers are as of the end."""
    story = Story()(events.SUPERVISOR_STARTED)(events.PINNED, generation=GEN_1)(
        events.PINNED, generation=GEN_2
    )
    story(events.UNPINNED, generation=GEN_2)
    story(events.AUDIT, text="all equal", compared=3)
    story(events.JOB_CHANGED, job_digest="new")
    for n in range(100):
        story(events.ANSWERED, id=f"r{n}", ok=n % 2 == 0, text=f"t{n}")
    history = story.history()
    assert history.pins == {GEN_1}
    assert history.last_audit == {"text": "all equal", "compared": 3}
    assert history.job_digest == "new"
    assert len(history.answers) == 64
    assert history.answers["r99"].text == "t99"


def test_no_record_can_break_a_replay() -> None:
    """Every event with missing, wrong or odd data is taken or left, and never an error."""
    names = [value for key, value in vars(events).items() if key.isupper()]
    keys = [
        "attempt",
        "generation",
        "step",
        "stats",
        "counters",
        "by",
        "reason",
        "id",
        "tail",
        "signal",
        "code",
    ]
    odd: list[Any] = [None, -1, 0, 3, 1.5, True, "x", [], [1], {}, {"a": 1}, {"a": [1, 2, 3]}, 10**30]
    rng = random.Random(5)
    story = Story()
    for name in names:
        story(name)
    for _ in range(3000):
        story(rng.choice(names), **{key: rng.choice(odd) for key in rng.sample(keys, rng.randrange(8))})
    history = story.history()
    assert all(attempt.number >= 1 for attempt in history.attempts)
    assert all(len(stat) == 3 for stats in history.remembered.values() for stat in stats.values())


@pytest.mark.parametrize("cut", [0, 3])
def test_the_journal_on_disk_is_replayed_with_its_damage(tmp_path: Any, cut: int) -> None:
    """What is read from disk means the same, and says which lines could not be read."""
    run = RunDirectory(tmp_path)
    run.journal.mkdir()
    writer = JournalWriter.open(run, "h")
    lines = [
        writer.append(events.SUPERVISOR_STARTED, job_digest="j"),
        writer.append(events.ATTEMPT_STARTED, attempt=4, cause="c"),
        writer.append(events.VERIFIED, generation=GEN_1, stats=STATS, healthy=False),
    ]
    writer.write(lines)
    writer.path.write_bytes(writer.path.read_bytes()[: -cut or None] if cut else writer.path.read_bytes())
    history = read_history(run)
    assert history.highest_attempt == 4
    assert history.remembered == ({} if cut else {GEN_1: STATS})
    assert history.damage == ()
    writer.path.write_bytes(b"damage\n" + lines[1])
    history = read_history(run, running=True)
    assert history.attempts[0].outcome is None
    assert len(history.damage) == 2
