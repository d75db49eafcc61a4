"""Damaged, foreign and hostile generations: none is trained from, none is lost, and the one before is used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import damage
from tests.e2e.conftest import MakeRun
from tests.e2e.damage import META, SHARD, Damage, content
from tests.e2e.harness import PATIENCE, Run

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_jobs.generation import INDEX, INDEX_DIGEST

TOTAL = 150  # far from done when it is interrupted
THREE_STARTS = 3 * PATIENCE
SEALED = 26  # generations of the run that is interrupted, at least

TRAINED = {
    "command": ["{python}", "{scripts}/mini.py", "--steps", TOTAL, "--workers", 0],
    "save": {"every_steps": 1},
    "keep": {"last": 100},
}
RESUMED = {**TRAINED, "save": {"every_steps": TOTAL}}
# What is handed to a worker is the supervisor's doing alone, and a shell starts sooner than a trainer.
SHOWN = {**TRAINED, "command": ["sh", "-c", 'echo "${OUTLAST_RESUME##*/}" > resumed']}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that was stopped with many generations."""
    run = Run(tmp_path_factory.mktemp("interrupted"), TRAINED)
    try:
        supervisor = run.start()
        run.until(lambda: len(run.generations()) >= SEALED, "generations")
        supervisor.process.terminate()
        assert supervisor.wait() == ExitCode.SAVED, run.report()
        yield run
    finally:
        run.close()


@pytest.fixture
def copied(make_run: MakeRun, interrupted: Run) -> Run:
    """The interrupted run, moved, with every generation remembered as verified."""
    run = make_run(SHOWN)
    shutil.copytree(interrupted.directory.path, run.directory.path)
    damage.remember(run, *run.generations())
    return run


def aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.corrupt-1")


def reasons(run: Run, event: str) -> dict[str, str]:
    return {record.data["generation"]: record.data["reason"] for record in run.records(event)}


def resumed(run: Run) -> list[Any]:
    """The generations that attempts of the newest life were given, in order."""
    records = run.records(journal.ATTEMPT_STARTED)
    return [record.data["resume"] for record in records if record.life == records[-1].life]


BAD: Mapping[str, tuple[Damage, str]] = {
    "flipped bit in meta": (damage.flip(META), "'meta.pt' has sha256"),
    "flipped bit in shard": (damage.flip(SHARD), "'model.shard-000.pt' has sha256"),
    "flipped bit in index": (damage.flip(INDEX), "'index.json' has sha256"),
    "flipped bit in digest": (damage.flip(INDEX_DIGEST), "'index.json.sha256'"),
    "cut": (damage.cut, "bytes, the index says"),
    "zeros in shard": (damage.zeros_in(SHARD), "'model.shard-000.pt' has sha256"),
    "zeros in all": (damage.zeros, "is not one line of sha256sum"),
    "empty shard": (damage.empty_in(SHARD), "'model.shard-000.pt' has 0 bytes"),
    "all empty": (damage.empty, "'index.json.sha256' (0 bytes)"),
    "no meta": (damage.missing(META), "'meta.pt' is missing"),
    "no shard": (damage.missing(SHARD), "'model.shard-000.pt' is missing"),
    "no index": (damage.missing(INDEX), "'index.json' is missing"),
    "no digest": (damage.missing(INDEX_DIGEST), "'index.json.sha256' is missing"),
    "name that leads up": (damage.leads_outside("../../outside.pt"), "unsafe file name '../../outside.pt'"),
    "name that leads up later": (damage.leads_outside("a/../../../outside.pt"), "unsafe file name 'a/../"),
    "name from the root": (damage.leads_outside("{run}/outside.pt"), "unsafe file name '/"),
    "linked file": (damage.linked_file, "symbolic link"),
    "linked folder": (damage.linked_folder, "is not a folder of its own"),
    "pipe for a shard": (damage.piped, "'model.shard-000.pt' is a named pipe"),
    "file for a folder": (damage.no_folder, "is not a folder of its own"),
    "another step's": (damage.other_name, "but the folder is called"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_generation_is_kept_aside_and_the_one_before_is_used(copied: Run, kind: str) -> None:
    """A bad generation, remembered as good, is never handed out: kept aside as it is, its reason recorded."""
    harm, words = BAD[kind]
    victim, before = copied.generations()[:2]
    harm(victim)
    left = content(victim)
    assert copied.start().wait() == 0, copied.report()
    assert (copied.folder / "resumed").read_text() == f"{before.name}\n"
    assert not victim.exists()
    assert content(aside(victim)) == left
    assert words in reasons(copied, journal.QUARANTINED)[victim.name]
    assert list(reasons(copied, journal.QUARANTINED)) == [victim.name]
    assert copied.generations()[0] == before
    assert copied.status()["verified"] == before.name


def test_a_foreign_generation_is_left_alone(copied: Run) -> None:
    """A generation of another run is not used, and stays where it is; the journal says why."""
    victim, before = copied.generations()[:2]
    damage.foreign(victim)
    left = content(victim)
    assert copied.start().wait() == 0, copied.report()
    assert (copied.folder / "resumed").read_text() == f"{before.name}\n"
    assert content(victim) == left
    assert reasons(copied, journal.PASSED_OVER)[victim.name].startswith("it belongs to run")


def test_emptied_files_of_the_run_cost_nothing(copied: Run) -> None:
    """Its own state cut to nothing, one by one and all at once: the run goes on from its newest generation."""
    made = copied.directory
    newest = copied.generations()[0]
    ours = [made.status_json, made.run_json, made.job_yaml, made.lock, made.alive]
    for number in range(4):
        journals = sorted(made.journal.iterdir())
        emptied = [ours[:1], ours[1:2], journals, ours + journals][number]
        for path in emptied:
            os.truncate(path, 0)
        copied.write_job({**SHOWN, "env": {"START": str(number)}})  # the same again would be done already
        assert copied.start().wait() == 0, f"{emptied}\n{copied.report()}"
        assert (copied.folder / "resumed").read_text() == f"{newest.name}\n", emptied
        (copied.folder / "resumed").unlink()


def test_nothing_usable_is_no_start_from_zero(copied: Run) -> None:
    """Where every generation is bad nothing is started, now or later: exit 65, saying what to do."""
    attempts = copied.attempts()
    for path in copied.generations():
        damage.flip(SHARD)(path)
    for looked in ("is corrupt: 'model.shard-000.pt'", "was set aside before"):
        start = copied.start()
        assert start.wait() == ExitCode.UNUSABLE, copied.report()
        assert looked in start.output
        assert "does not start from zero" in start.output
        assert "--fresh" in start.output
        assert copied.status()["verified"] is None
    assert copied.attempts() == attempts
    assert not copied.generations()
    assert len(list(copied.directory.checkpoints.glob("step-*.corrupt-1"))) >= SEALED


def test_only_foreign_ones_are_no_start_from_zero(copied: Run) -> None:
    """Where only another run's generations lie, nothing is started either."""
    newest, *others = copied.generations()
    for path in others:
        shutil.rmtree(path)
    damage.foreign(newest)
    assert copied.start().wait() == ExitCode.UNUSABLE, copied.report()
    assert not (copied.folder / "resumed").exists()
    assert copied.generations() == [newest]


def test_a_trainer_goes_on_from_the_newest_sound_one(copied: Run, make_run: MakeRun) -> None:
    """Behind a row of bad generations, two of which only the trainer can find out, the run ends bit-identical.

    One runs code when it is unpickled, right in every digest. One has rotted on the disk since it was read,
    unseen by inode, ctime and length, as the journal has them.
    """
    whole = make_run(RESUMED)
    undisturbed = whole.start()
    copied.write_job(RESUMED)
    mark = copied.folder / "code ran"
    sound, rotten, hostile, stranger, *bad = reversed(copied.generations()[: len(BAD) + 4])
    for path, (harm, _) in zip(reversed(bad), BAD.values(), strict=True):
        harm(path)
    damage.foreign(stranger)
    damage.runs_code(mark)(hostile)
    damage.flip(SHARD)(rotten)
    damage.remember(copied, rotten)
    left = {path.name: content(path) for path in (rotten, hostile, *bad)}
    first = len(copied.attempts()) + 1

    assert copied.start().wait(THREE_STARTS) == 0, copied.report()

    assert not mark.exists()
    assert resumed(copied) == [hostile.name, rotten.name, sound.name]
    ended = {r.data["attempt"]: r.data for r in copied.records(journal.ATTEMPT_ENDED)}
    for attempt in (first, first + 1):
        assert (ended[attempt]["outcome"], ended[attempt]["code"]) == ("bad_generation", ExitCode.UNUSABLE)
        assert not copied.directory.attempt_metrics(attempt).exists()  # not a step was trained from it
    found = reasons(copied, journal.QUARANTINED)
    assert "the safe loader refuses 'meta.pt'" in found[hostile.name]
    assert "'model.shard-000.pt' has sha256" in found[rotten.name]
    assert set(found) == set(left)
    for name, was in left.items():
        assert content(aside(copied.directory.checkpoints / name)) == was
    assert stranger in copied.generations()
    assert undisturbed.wait() == 0, whole.report()
    assert final_digest(copied) == final_digest(whole)
    assert [line["step"] for line in copied.history()] == list(range(1, TOTAL + 1))


def final_digest(run: Run) -> str:
    index = run.verified()[0].index
    assert index is not None
    assert index.final
    return str(index.state_sha256)


def test_a_trainer_without_a_sound_one_does_not_begin_anew(copied: Run) -> None:
    """Where the trainer finds the last generation rotten the run ends with 65, and no step is trained."""
    copied.write_job(RESUMED)
    newest, *others = copied.generations()
    for path in others:
        shutil.rmtree(path)
    damage.flip(META)(newest)
    damage.remember(copied, newest)
    attempts = copied.attempts()
    start = copied.start()
    assert start.wait() == ExitCode.UNUSABLE, copied.report()
    assert copied.attempts() == [*attempts, attempts[-1] + 1]
    assert not copied.directory.attempt_metrics(attempts[-1] + 1).exists()
    assert "does not start from zero" in start.output
    assert aside(newest).is_dir()
