"""What the daemon decides: every promise about starts, places, slots and stops, on drawn folders and by name."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor.daemon.model import (
    Entry,
    Limits,
    Past,
    Plan,
    Reload,
    Snapshot,
    Start,
    State,
    Stop,
    Supervisor,
)
from outlast_supervisor.daemon.outcome import final_state, outcome
from outlast_supervisor.daemon.plan import plan

NOW = 1000.0
FREE = Limits()
SLOTS = ("gpu:0", "gpu:1", "gpu:2")


def entry(file: str, **changes: object) -> Entry:
    made = Entry(file, ("outlast", "run", f"/d/{file}"), f"/d/runs/{file}", "v1", "d1", NOW - 5)
    return replace(made, **changes)  # type: ignore[arg-type]


def supervisor(file: str, **changes: object) -> Supervisor:
    pid = 100 + sum(file.encode())
    process = ProcessIdentity(pid, 1, "boot")
    made = Supervisor(f"/d/runs/{file}", file, process, (), "v1", "d1", NOW - 100, True)
    return replace(made, **changes)  # type: ignore[arg-type]


def planned(
    entries: Sequence[Entry],
    supervisors: Sequence[Supervisor] = (),
    past: Mapping[str, Past] = {},
    limits: Limits = FREE,
    *,
    draining: bool = False,
    broken: Mapping[str, str] = {},
    pending: frozenset[str] = frozenset(),
) -> Plan:
    snapshot = Snapshot(tuple(entries), broken, pending)
    return plan(snapshot, supervisors, past, limits, draining=draining, now=NOW)


def starts(made: Plan) -> list[str]:
    return [action.entry.file for action in made.actions if isinstance(action, Start)]


def stops(made: Plan) -> dict[str, str]:
    return {a.supervisor.file: a.reason for a in made.actions if isinstance(a, Stop)}


# --- drawn folders ---


@dataclass(frozen=True)
class World:
    """One drawn folder with its supervisors, past and limits, and what is planned for it."""

    number: int
    folder: Snapshot
    living: tuple[Supervisor, ...]
    past: Mapping[str, Past]
    limits: Limits
    draining: bool

    @property
    def made(self) -> Plan:
        return plan(self.folder, self.living, self.past, self.limits, draining=self.draining, now=NOW)

    @property
    def begun(self) -> list[Start]:
        return [action for action in self.made.actions if isinstance(action, Start)]

    def rank(self, e: Entry) -> tuple[int, float, str]:
        """The order of those who wait: priority, then how long."""
        known = self.past.get(e.run_dir)
        since = known.not_before if known and known.version == e.version else e.since
        return -e.priority, since, e.file


RUNS = [f"/r/{letter}" for letter in "abcdef"]
CODES = (0, 64, 65, 69, 70, 73, 75, 1, -9, None)


def world(number: int) -> World:
    """The world of this number: always the same."""
    chance = random.Random(number)
    entries = tuple(
        Entry(
            file=file,
            command=("outlast", "run"),
            run_dir=chance.choice(RUNS),
            version=chance.choice(["v1", "v2"]),
            digest=chance.choice(["d1", "d2"]),
            since=NOW - chance.randrange(50),
            priority=chance.randint(-1, 1),
            slots=chance.choice([0, 1, 1, 1, 2, 3, 4]),
            bad=chance.choice(["", "", "", "", "no yaml"]),
            leaving=chance.random() < 0.2,
        )
        for file in chance.sample("abcdefgh", chance.randrange(9))
    )
    limits = Limits(chance.choice([None, 1, 2, 3, 5]), chance.choice([(), SLOTS, SLOTS, SLOTS[:1]]))
    free, living = list(limits.slots), []
    for run_dir in chance.sample(RUNS, min(chance.randrange(4), limits.max_running or 9)):
        take = chance.randint(0, len(free))
        living.append(
            Supervisor(
                run_dir=run_dir,
                file=chance.choice("abcdefgh"),
                process=ProcessIdentity(100 + len(living), 1, "b"),
                slots=tuple(free[:take]),
                version=chance.choice(["v1", "v2"]),
                digest=chance.choice(["d1", "d2"]),
                began=NOW - 1,
                ours=chance.random() < 0.5,
                stopping=chance.choice(["", "", "told"]),
            )
        )
        free = free[take:]
    names = {e.file for e in entries}
    broken = {file: "no yaml" for file in "abcdefgh" if file not in names and chance.random() < 0.2}
    past = {
        run_dir: Past(
            chance.choice(["v1", "v2"]), chance.choice(CODES), 1, NOW + chance.randint(-20, 20), "before"
        )
        for run_dir in RUNS
        if chance.random() < 0.5
    }
    return World(number, Snapshot(entries, broken), tuple(living), past, limits, chance.random() < 0.2)


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    """Thousands of them: what a plan promises has to hold in each."""
    return [world(number) for number in range(4000)]


def test_nothing_is_started_that_runs_or_must_not(worlds: list[World]) -> None:
    """A start is the only one of its run, of a whole file, due, not done or held, and never while draining."""
    for w in worlds:
        begun = [action.entry for action in w.begun]
        assert len({e.run_dir for e in begun}) == len(begun), w
        for e in begun:
            assert e.run_dir not in {s.run_dir for s in w.living}, w
            assert (e.bad, e.leaving, w.draining) == ("", False, False), w
            before = w.past.get(e.run_dir)
            if before is not None and before.version == e.version:
                assert final_state(before.code) is None, w
                assert before.not_before <= NOW, w


def test_no_limit_is_exceeded(worlds: list[World]) -> None:
    """Starts keep to max_running; each gets as many slots as it asked for, and no slot is given twice."""
    for w in worlds:
        if w.begun and w.limits.max_running is not None:
            assert len(w.living) + len(w.begun) <= w.limits.max_running, w
        given_out = [slot for one in (*w.living, *w.begun) for slot in one.slots]
        assert len(set(given_out)) == len(given_out), w
        assert set(given_out) <= set(w.limits.slots), w
        for action in w.begun:
            assert len(action.slots) == (action.entry.slots if w.limits.slots else 0), w


def test_who_waits_longest_with_the_highest_priority_is_first(worlds: list[World]) -> None:
    """Nothing that waits is passed by, but for slots by a job that needs none; and nothing waits needlessly."""
    for w in worlds:
        if w.draining:
            continue
        by_file = {e.file: e for e in w.folder.entries}
        queued = [by_file[file] for file, s in w.made.standing.items() if s.state is State.QUEUED]
        for waits in queued:
            for passes in (action.entry for action in w.begun):
                if w.rank(passes) > w.rank(waits):
                    assert w.limits.slots, w
                    assert passes.slots == 0 < waits.slots, w
        running = len(w.living) + len(w.begun)
        if queued and (w.limits.max_running is None or running < w.limits.max_running):
            used = sum(len(one.slots) for one in (*w.living, *w.begun))
            first = min((e for e in queued if e.slots), key=w.rank)
            assert first.slots > len(w.limits.slots) - used, w


def test_what_is_wanted_is_left_alone(worlds: list[World]) -> None:
    """Only what was removed, moved or drained is stopped, once; each file has one standing with a reason."""
    for w in worlds:
        actions = w.made.actions
        stopped = [action.supervisor for action in actions if isinstance(action, Stop)]
        reloaded = [action.supervisor for action in actions if isinstance(action, Reload)]
        assert not set(stopped) & set(reloaded), w
        assert not any(s.stopping for s in (*stopped, *reloaded)), w
        for s in w.living:
            wanting = [e for e in w.folder.entries if e.run_dir == s.run_dir]
            if any(e.file == s.file and not e.leaving for e in wanting) and not w.draining:
                assert s not in stopped, w
            if w.draining or (not wanting and s.file not in w.folder.broken):
                assert s in stopped or s.stopping, w
        assert all(e.leaving or w.made.standing[e.file].reason for e in w.folder.entries), w
        assert all(stands.reason for stands in w.made.standing.values()), w


# --- by name ---


def test_every_exit_code_has_its_consequence() -> None:
    """0 and 70 stay as they are, 64 and 65 too, until the file changes; all others are tried again, later."""
    stays = {0: State.DONE, 70: State.HELD, 64: State.REFUSED, 65: State.REFUSED}
    for code in (None, *range(-64, 256)):
        known = outcome(code, "v1", None, stopped=False, lived=1.0, now=NOW)
        assert known is not None
        past = {"/d/runs/a": known}
        made = planned([entry("a")], past=past)
        if code in stays:
            assert made.standing["a"].state is stays[code]
            assert made.due is None
        else:
            assert made.standing["a"].state is (State.ELSEWHERE if code == 69 else State.WAITING)
            assert made.due == known.not_before > NOW
            due = known.not_before
            assert starts(plan(Snapshot((entry("a"),)), [], past, FREE, draining=False, now=due)) == ["a"]
        assert starts(made) == []
        assert starts(planned([entry("a", version="v2")], past=past)) == ["a"]


def test_waits_grow_and_begin_anew() -> None:
    """Each end in a row doubles the wait up to a minute; a life of a minute, or a changed file, ends the row."""
    known, waits = None, []
    for _ in range(9):
        known = outcome(75, "v1", known, stopped=False, lived=1.0, now=NOW)
        assert known is not None
        waits.append(known.not_before - NOW)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    for lived, version in ((61.0, "v1"), (1.0, "v2")):
        again = outcome(75, version, known, stopped=False, lived=lived, now=NOW)
        assert again is not None
        assert again.not_before - NOW == 1
    full = outcome(73, "v1", None, stopped=False, lived=1.0, now=NOW)
    assert full is not None
    assert full.not_before - NOW == 60, "a full disk is not made free by trying"


def test_what_we_stopped_has_no_past() -> None:
    """A supervisor that was told to stop starts again at once when it is wanted again; a done one stays done."""
    assert outcome(75, "v1", None, stopped=True, lived=1.0, now=NOW) is None
    assert outcome(-9, "v1", None, stopped=True, lived=1.0, now=NOW) is None
    done = outcome(0, "v1", None, stopped=True, lived=1.0, now=NOW)
    assert done is not None
    assert final_state(done.code) is State.DONE


def test_a_removed_file_stops_its_job() -> None:
    """It is told to save and stop, once, with the reason."""
    assert stops(planned([], [supervisor("a")])) == {"a": "its job file was removed"}
    assert stops(planned([], [supervisor("a", stopping="told")])) == {}


def test_what_cannot_be_read_is_no_reason_to_stop() -> None:
    """A job whose file is broken, unread or missing for a moment goes on as it was."""
    living = [supervisor("a")]
    assert planned([], living, broken={"a": "no yaml"}).actions == ()
    assert planned([], living, pending=frozenset("a")).actions == ()
    assert planned([entry("a", leaving=True)], living).actions == ()
    made = planned([entry("a", bad="no yaml", version="v2")], living)
    assert made.actions == ()
    assert made.standing["a"].state is State.RUNNING
    assert "no yaml" in made.standing["a"].reason


def test_a_changed_file_is_read_again() -> None:
    """The supervisor is told once for each version, and not while it stops."""
    (action,) = planned([entry("a", version="v2")], [supervisor("a")]).actions
    assert isinstance(action, Reload)
    assert planned([entry("a")], [supervisor("a")]).actions == ()
    assert planned([entry("a", version="v2")], [supervisor("a", stopping="told")]).actions == ()


def test_two_files_of_one_run_get_one_supervisor() -> None:
    """The file that has the run keeps it; otherwise the first by name gets it; the other is told why not."""
    both = [entry("a", run_dir="/r"), entry("b", run_dir="/r")]
    made = planned(both)
    assert starts(made) == ["a"]
    assert made.standing["b"].state is State.REFUSED
    assert '"a"' in made.standing["b"].reason
    made = planned(both, [supervisor("b", run_dir="/r")])
    assert made.actions == ()
    assert made.standing["a"].state is State.REFUSED


def test_a_renamed_file_keeps_its_training() -> None:
    """Under its new name, before and after the old one is forgotten; changed besides, it is started anew."""
    living = [supervisor("a", run_dir="/r")]
    old, new = entry("a", run_dir="/r", leaving=True), entry("b", run_dir="/r")
    for found in ([old, new], [new]):
        made = planned(found, living)
        assert made.actions == ()
        assert made.standing["b"].state is State.RUNNING
    made = planned([entry("b", run_dir="/r", digest="d2", version="v2")], living)
    assert list(stops(made)) == ["a"]


def test_another_run_directory_is_another_run() -> None:
    """The old run saves and stops, the new one starts."""
    made = planned([entry("a", run_dir="/new")], [supervisor("a")])
    assert stops(made) == {"a": "its job file names another run directory now"}
    assert starts(made) == ["a"]


def test_a_job_that_asks_for_too_many_slots_is_told_and_passed_by() -> None:
    """What can never run holds up nobody."""
    made = planned([entry("a", slots=4), entry("b")], limits=Limits(None, SLOTS))
    assert starts(made) == ["b"]
    assert made.standing["a"].state is State.REFUSED


def test_a_large_job_is_not_starved_by_small_ones() -> None:
    """Slots that become free are kept for who is first, and a job that needs none runs meanwhile."""
    waiting = [entry("a", slots=3, since=NOW - 9), entry("b", slots=1), entry("c", slots=0)]
    made = planned(waiting, [supervisor("x", slots=("gpu:0",))], limits=Limits(None, SLOTS))
    assert starts(made) == ["c"]
    assert 'behind "a"' in made.standing["b"].reason


def test_a_crash_loop_starves_nobody() -> None:
    """With one place, jobs that end well all get it, whatever a neighbour of the same priority does."""
    limits, now = Limits(max_running=1), NOW
    jobs = {name: entry(name, since=NOW) for name in "abcde"}  # "a" is first by name, and crashes for ever
    past: dict[str, Past] = {}
    tries: list[str] = []
    for _ in range(100):
        made = plan(Snapshot(tuple(jobs.values())), [], past, limits, draining=False, now=now)
        for file in starts(made):
            tries.append(file)
            run_dir, before = jobs[file].run_dir, past.get(jobs[file].run_dir)
            code = 1 if file == "a" else 0
            known = outcome(code, "v1", before, stopped=False, lived=0.1, now=now)
            assert known is not None
            past[run_dir] = known
        now += 0.5
    assert tries[:5] == ["a", "b", "c", "d", "e"]
    assert set(tries[5:]) == {"a"}
