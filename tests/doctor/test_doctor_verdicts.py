"""What the doctor makes of facts: tables of verdicts, and of texts that schedulers give."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from outlast_jobs import pacing
from outlast_jobs.filesystem import Filesystem
from outlast_jobs.jobfile import Job, Keep, Save, Stop
from outlast_jobs.units import format_duration
from outlast_supervisor.doctor import disk, in_slurm, in_systemd, interpreter, lead, machine, state
from outlast_supervisor.doctor.line import Line, answer, failure, ok, undecided, warning
from outlast_supervisor.doctor.past import Past, p95

MIB = 1 << 20
LEARNT = Past(step=2.0, save=8.0, size=100 * MIB, files=3, there=1)
JOB = Job(name="j", command=("python", "train.py"), workdir="/w", stop=Stop(grace=30.0))


def levels(lines: Any) -> list[str]:
    return [line.level for line in lines]


def test_the_answer() -> None:
    """One failure is a failure; without one, what could not be decided leaves all undecided; warnings are no harm."""
    good, bad = [ok("a", ""), warning("b", "")], [failure("c", "", "")]
    unknown: list[Line] = [undecided("d", "")]
    assert [int(answer(x)) for x in ([], good, good + unknown, good + unknown + bad)] == [0, 0, 2, 1]


@pytest.mark.parametrize(
    ("seconds", "level"),
    [(9.9, "failure"), (10.0, "warning"), (19.9, "warning"), (20.0, "ok"), (600.0, "ok")],
)
def test_a_lead_is_held_against_what_a_step_and_a_save_take(seconds: float, level: str) -> None:
    """Shorter than both together is a failure, shorter than twice that a warning."""
    assert lead.enough("lead", "x", seconds, LEARNT, "cure").level == level
    assert lead.enough("lead", "x", seconds, Past(), "cure").level == "warning"


def test_clouds_that_are_listened_to_have_their_own_lead() -> None:
    """A cloud's notice is held against the same need as the grace."""
    job = SimpleNamespace(stop=JOB.stop, notices=("aws", "gce"))
    slow = Past(step=20.0, save=20.0)
    assert levels(lead.grace(job, slow)) == ["failure", "ok", "failure"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free", "there", "levels_"),
    [
        (99, 1, "failure"),
        (100, 1, "warning"),
        (299, 1, "warning"),
        (300, 1, "ok"),
        (100, 4, "ok"),
        (100, 9, "ok"),
    ],
)
def test_space_for_those_that_are_kept_and_one_more(free: int, there: int, levels_: str) -> None:
    """What is on disk already needs no room again; less than one generation is a failure."""
    past = Past(size=100 * MIB, files=3, there=there)
    tried = disk.Tried("/r")
    [line] = disk.space(disk.Room(free * MIB, None), tried, Keep(last=3), past, None)
    assert line.level == levels_


def test_inodes_quota_and_limits_are_room_too() -> None:
    """Few inodes, a full quota and a limit on a file's size fail a save as a full disk does."""
    room, keep = disk.Room(9000 * MIB, 10), Keep(last=3)
    assert levels(disk.space(room, disk.Tried("/r"), keep, LEARNT, None)) == ["ok", "failure"]
    assert levels(disk.space(disk.Room(9000 * MIB, 20), None, keep, LEARNT, None)) == ["ok", "warning"]
    full = disk.Tried("/r", room=MIB, no_room=errno.EDQUOT)
    [quota] = disk.space(disk.Room(9000 * MIB, None), full, keep, LEARNT, None)
    assert (quota.level, "quota" in quota.cure) == ("failure", True)
    assert levels(disk.space(disk.Room(9000 * MIB, None), None, keep, LEARNT, MIB))[0] == "failure"
    assert levels(disk.space(disk.Room(0, None), None, keep, Past(), None)) == ["failure"]


@pytest.mark.parametrize(
    ("kind", "doubt", "level"),
    [("ext4", "", "ok"), ("nfs4", "", "warning"), ("ext4", "flock is granted to everybody", "warning")],
)
def test_locks_are_trusted_where_they_can_be(kind: str, doubt: str, level: str) -> None:
    """A network file system, or a lock that excludes nobody, is told with what stands in for it."""
    known = Filesystem(kind, Path("/"), kind == "nfs4", kind == "ext4")
    [line] = disk.lock(known, disk.Tried("/r", lock=doubt))
    assert line.level == level
    assert ("lease" in line.text) == (level == "warning")


def test_a_file_system_that_does_not_answer_is_undecided() -> None:
    """Nothing is said of it but that."""
    [line] = disk.place(None, "/r", 20.0)
    assert line.level == "undecided"


def test_clocks() -> None:
    """A year that cannot be, and a file system with another time."""
    assert levels(machine.verdict(machine.Machine(wall=1e8))) == ["failure"]
    assert levels(machine.verdict(machine.Machine(wall=1.8e9))) == ["ok"]
    drifts = {0.5: [], -9.0: ["warning"], 400.0: ["failure"]}
    assert {d: levels(disk.clock_of(disk.Tried("/r", drift=d))) for d in drifts} == drifts


def test_limits_and_memory() -> None:
    """Few open files, and less memory than torch takes."""
    found = machine.Machine(wall=1.8e9, files=512, memory=10 * MIB)
    assert levels(machine.verdict(found)) == ["ok", "warning", "warning"]
    assert levels(machine.verdict(machine.Machine(wall=1.8e9, files=64))) == ["ok", "failure"]


SCRIPTS = {
    "#SBATCH --signal=B:USR1@120\n": ("B", "USR1", 120),
    "#SBATCH -J x --signal=B:SIGUSR1@90 --requeue\n": ("B", "USR1", 90),
    "#SBATCH --signal B:10@5\n": ("B", "10", 5),
    "#SBATCH --signal=USR1@120\n": ("", "USR1", 120),
    "#SBATCH --signal=RB:USR2\n": ("RB", "USR2", 60),
    '#SBATCH --signal="B:TERM@30"\n': ("B", "TERM", 30),
    "#SBATCH --requeue\n": None,
    "##SBATCH --signal=B:USR1@120\n": None,
    "": None,
}


@pytest.mark.parametrize("text", SCRIPTS)
def test_what_a_batch_script_asks_for(text: str) -> None:
    """The directive in the forms that sbatch takes, and no comment of it."""
    found = in_slurm.asked_in(f"#!/bin/sh\n{text}echo --signal=B:USR1@1\n")
    wanted = SCRIPTS[text]
    assert (found and (found.to, found.name, found.seconds)) == wanted


def test_whether_outlast_takes_the_shells_place() -> None:
    """Only an exec does; a script that does not run outlast says nothing."""
    lines = {
        "exec outlast run j.yaml": True,
        "exec /p/python -m outlast_supervisor.cli run '/a b/j.yaml' --quiet": True,
        "outlast run j.yaml": False,
        "srun outlast run j.yaml": False,
        "outlast run j.yaml &\nwait": False,
        "outlast doctor j.yaml\nexec outlast run j.yaml": True,
        "# exec outlast run j.yaml\npython train.py": None,
        "echo 'unbalanced\noutlast run x": False,
    }
    assert {text: in_slurm.is_executed(f"#!/bin/sh\n{text}\n") for text in lines} == lines


def test_time_spans_of_systemd() -> None:
    """As `systemctl show` writes them."""
    spans = {"1min 30s": 90.0, "45s": 45.0, "500ms": 0.5, "1h 5min": 3900.0, "infinity": None, "": None}
    assert {text: in_systemd.span(text) for text in spans} == spans


@pytest.mark.parametrize(
    ("changed", "level", "check"),
    [
        ({}, None, ""),
        ({"TimeoutStopUSec": "10s"}, "failure", "warning"),
        ({"TimeoutStopUSec": "31s"}, "warning", "warning"),
        ({"KillMode": "process"}, "failure", "warning"),
        ({"KillMode": "control-group"}, "warning", "warning"),
        ({"KillMode": "control-group", "ExecStop": "{ path=/bin/kill }"}, None, ""),
        ({"NotifyAccess": "none"}, "failure", "notify"),
        ({"Restart": "no"}, "failure", "requeue"),
        ({"Restart": "on-success"}, "failure", "requeue"),
        ({"RestartPreventExitStatus": "70 75"}, "failure", "requeue"),
        ({"RestartPreventExitStatus": ""}, "warning", "requeue"),
        ({"SuccessExitStatus": "75"}, "failure", "requeue"),
        ({"SuccessExitStatus": "75", "RestartForceExitStatus": "75 SIGTERM"}, None, ""),
        ({"Restart": "no", "RestartForceExitStatus": "75"}, None, ""),
    ],
)
def test_units(changed: dict[str, str], level: str | None, check: str) -> None:
    """A unit as it should be has no fault; each of these has exactly one."""
    sound = {
        "Type": "notify",
        "NotifyAccess": "main",
        "TimeoutStopUSec": "1min",
        "KillMode": "mixed",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "64 70",
    }
    lines = list(in_systemd.verdict(in_systemd.Unit("x.service", sound | changed), JOB))
    assert [(line.level, line.check) for line in lines if line.level != "ok"] == (
        [(level, check)] if level else []
    )


@pytest.mark.parametrize(
    ("command", "first_line", "words"),
    [
        (("python", "train.py"), "\x7fELF", ("python",)),
        (
            ("/v/bin/python3.12", "-u", "-X", "dev", "a/train.py", "-c"),
            "",
            ("/v/bin/python3.12", "-u", "-X", "dev"),
        ),
        (("python", "-m", "pkg"), "", ("python",)),
        (("torchrun", "train.py"), "#!/v/bin/python3 -s\n", ("/v/bin/python3", "-s")),
        (("train.py",), "#!/usr/bin/env -S python3 -u\n", ("python3", "-u")),
        (("bash", "-c", "python x"), "\x7fELF", None),
        (("x.sh",), "#!/bin/sh\n", None),
    ],
)
def test_whose_python_a_command_runs(command: tuple[str, ...], first_line: str, words: Any) -> None:
    """The interpreter with its own options, also behind a script; none where the command hides it."""
    job = Job(name="j", command=command, workdir="/w")
    found = interpreter.words_of(job, first_line)
    assert (found[0] if found else None) == words


def test_an_automatic_cadence_is_told_as_it_would_be_now() -> None:
    """What a kill costs follows from the run's past, and saves that are dear but worth it bring no warning."""
    job = msgspec.structs.replace(JOB, save=Save(every="auto"))
    rough = pacing.Past(up=400_000.0, lost=40.0, costs=(2000.0,))
    lines = list(state.cost(SimpleNamespace(status=None), job, Past(save=2000.0, paced=rough)))  # type: ignore[arg-type]
    assert levels(lines) == ["ok"]
    wanted = pacing.automatic(rough, job.save.between).seconds
    assert job.save.between[0] < wanted < job.save.between[1]
    assert format_duration(round(wanted, 1)) in lines[0].text
    fixed = msgspec.structs.replace(JOB, save=Save(every_seconds=wanted))
    assert "warning" in levels(state.cost(SimpleNamespace(status=None), fixed, Past(paced=rough)))  # type: ignore[arg-type]


def test_the_95th_percentile() -> None:
    """Of nothing nothing; one outlier in twenty does not count, two do."""
    assert (p95([]), p95([3.0]), p95([1.0] * 20 + [9.0]), p95([1.0] * 18 + [9.0] * 2)) == (
        None,
        3.0,
        1.0,
        9.0,
    )
