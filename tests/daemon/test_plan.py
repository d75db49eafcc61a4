"""What the daemon decides: every promise about starts, places, slots and stops, on drawn folders and by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

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

files = st.sampled_from("abcdefgh")
entries = st.builds(
    Entry,
    file=files,
    command=st.just(("outlast",)),
    run_dir=st.sampled_from([f"/r/{letter}" for letter in "abcdef"]),
    version=st.sampled_from(["v1", "v2"]),
    digest=st.sampled_from(["d1", "d2"]),
    since=st.floats(NOW - 50, NOW),
    priority=st.integers(-2, 2),
    slots=st.integers(0, 4),
    bad=st.sampled_from(["", "", "", "no yaml"]),
    leaving=st.sampled_from([False, False, False, True]),
)
pasts = st.builds(
    Past,
    version=st.sampled_from(["v1", "v2"]),
    code=st.sampled_from([0, 64, 65, 69, 70, 73, 75, 1, -9, None]),
    fails=st.integers(0, 5),
    not_before=st.floats(NOW - 20, NOW + 20),
    text=st.just("before"),
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Snapshot, list[Supervisor], dict[str, Past], Limits, bool]:
    found = draw(st.lists(entries, max_size=8, unique_by=lambda e: e.file))
    limits = Limits(draw(st.none() | st.integers(1, 5)), draw(st.sampled_from([(), SLOTS, SLOTS[:1]])))
    free = list(limits.slots)
    living = []
    for number, run_dir in enumerate(
        draw(st.lists(st.sampled_from([f"/r/{x}" for x in "abcdef"]), unique=True))
    ):
        if limits.max_running is not None and len(living) >= limits.max_running:
            break
        take = draw(st.integers(0, len(free)))
        living.append(
            Supervisor(
                run_dir=run_dir,
                file=draw(files),
                process=ProcessIdentity(100 + number, 1, "b"),
                slots=tuple(free[:take]),
                version=draw(st.sampled_from(["v1", "v2"])),
                digest=draw(st.sampled_from(["d1", "d2"])),
                began=NOW - 1,
                ours=draw(st.booleans()),
                stopping=draw(st.sampled_from(["", "", "told"])),
            )
        )
        free = free[take:]
    broken = draw(st.dictionaries(st.sampled_from("xyz"), st.just("no yaml"), max_size=2))
    past = draw(st.dictionaries(st.sampled_from([f"/r/{x}" for x in "abcdef"]), pasts))
    return Snapshot(tuple(found), broken), living, past, limits, draw(st.booleans())


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_nothing_is_started_that_runs_or_must_not(
    world: tuple[Snapshot, list[Supervisor], dict[str, Past], Limits, bool],
) -> None:
    """A start is the only one of its run, of a whole file, due, not done or held, and never while draining."""
    folder, living, past, limits, draining = world
    made = plan(folder, living, past, limits, draining=draining, now=NOW)
    begun = [action.entry for action in made.actions if isinstance(action, Start)]
    assert len({e.run_dir for e in begun}) == len(begun)
    for e in begun:
        assert e.run_dir not in {s.run_dir for s in living}
        assert not e.bad
        assert not e.leaving
        assert not draining
        before = past.get(e.run_dir)
        if before is not None and before.version == e.version:
            assert final_state(before.code) is None
            assert before.not_before <= NOW


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_no_limit_is_exceeded(
    world: tuple[Snapshot, list[Supervisor], dict[str, Past], Limits, bool],
) -> None:
    """Starts keep to max_running; each gets as many slots as it asked for, and no slot is given twice."""
    folder, living, past, limits, draining = world
    made = plan(folder, living, past, limits, draining=draining, now=NOW)
    begun = [action for action in made.actions if isinstance(action, Start)]
    if begun and limits.max_running is not None:
        assert len(living) + len(begun) <= limits.max_running
    given_out = [slot for s in living for slot in s.slots] + [
        slot for action in begun for slot in action.slots
    ]
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= set(limits.slots)
    for action in begun:
        assert len(action.slots) == (action.entry.slots if limits.slots else 0)


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_who_waits_longest_with_the_highest_priority_is_first(
    world: tuple[Snapshot, list[Supervisor], dict[str, Past], Limits, bool],
) -> None:
    """Nothing that waits is passed by, but for slots by a job that needs none; and nothing waits needlessly."""
    folder, living, past, limits, draining = world
    made = plan(folder, living, past, limits, draining=draining, now=NOW)
    by_file = {e.file: e for e in folder.entries}

    def rank(e: Entry) -> tuple[int, float, str]:
        known = past.get(e.run_dir)
        since = known.not_before if known and known.version == e.version else e.since
        return -e.priority, since, e.file

    begun = [action.entry for action in made.actions if isinstance(action, Start)]
    queued = [by_file[file] for file, stands in made.standing.items() if stands.state is State.QUEUED]
    for waits in queued if not draining else []:
        for passes in begun:
            if rank(passes) > rank(waits):
                assert limits.slots
                assert passes.slots == 0 < waits.slots
    taken = len(living) + len(begun)
    full = limits.max_running is not None and taken >= limits.max_running
    if queued and not draining and not full:
        used = sum(len(s.slots) for s in living) + sum(
            len(a.slots) for a in made.actions if isinstance(a, Start)
        )
        first = min((e for e in queued if e.slots), key=rank)
        assert first.slots > len(limits.slots) - used


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_what_is_wanted_is_left_alone(
    world: tuple[Snapshot, list[Supervisor], dict[str, Past], Limits, bool],
) -> None:
    """Only what was removed, moved or drained is stopped, once; each file has one standing with a reason."""
    folder, living, past, limits, draining = world
    made = plan(folder, living, past, limits, draining=draining, now=NOW)
    stopped = [action.supervisor for action in made.actions if isinstance(action, Stop)]
    reloaded = [action.supervisor for action in made.actions if isinstance(action, Reload)]
    assert not set(stopped) & set(reloaded)
    assert not any(s.stopping for s in (*stopped, *reloaded))
    for s in living:
        wanting = [e for e in folder.entries if e.run_dir == s.run_dir]
        same = any(e.file == s.file and not e.leaving for e in wanting)
        if same and not draining:
            assert s not in stopped
        if draining or (not wanting and s.file not in folder.broken):
            assert s in stopped or s.stopping
    for e in folder.entries:
        if not e.leaving:
            assert made.standing[e.file].reason
    assert all(stands.reason for stands in made.standing.values())


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
