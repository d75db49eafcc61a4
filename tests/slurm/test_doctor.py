"""`outlast doctor` inside real Slurm jobs: it says beforehand which warning will not come, and what is not requeued."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.doctor.patients import give_past, job
from tests.e2e.harness import OUTLAST
from tests.realparts import needs
from tests.slurm.site import PATIENCE, Site
from tests.waiting import wait_until

pytestmark = needs("slurm", "namespaces")

TRAP = "trap '' USR1\n"
WARNED = "--signal=B:USR1@120"
APPEND = "--open-mode=append"


@dataclass
class Form:
    """A batch script, and what the doctor has to say in it: parts of "check level: text" lines."""

    options: tuple[str, ...]
    body: str  # {doctor} looks; {run} is the line that would start the run
    said: tuple[str, ...]
    code: int
    past: tuple[float, float] | None = None  # seconds that a step and a save have taken


FORMS = {
    "generated": Form((), "", ("warning ok: Slurm job", "requeue ok: by scontrol or sbatch", "log ok"), 0),
    "executed": Form(
        (WARNED, APPEND),
        TRAP + "exec {doctor}",
        ("warning ok", "lead warning: Slurm's warning", "requeue ok"),
        0,
    ),
    "in time": Form((WARNED, APPEND), TRAP + "exec {doctor}", ("lead ok: ", "grace ok"), 0, (2.0, 10.0)),
    "too late": Form(
        (WARNED, APPEND), TRAP + "exec {doctor}", ("lead failure: ", "is 120 s: too short"), 1, (90.0, 40.0)
    ),
    "line before": Form((WARNED, APPEND), TRAP + "{doctor}\nexec {run}", ("warning ok",), 0),
    "shell in between": Form(
        (WARNED, APPEND),
        "{doctor}\n{run}",
        ("warning failure: Slurm job", "the shell of the batch script"),
        1,
    ),
    "steps alone": Form(
        ("--signal=USR1@120", APPEND), TRAP + "exec {doctor}", ("warning failure: Slurm job", "srun alone"), 1
    ),
    "no warning": Form((APPEND,), "exec {doctor}", ("warning warning: Slurm job", "asks for no warning"), 0),
    "no trap": Form(
        (WARNED, APPEND), "exec {doctor}", ("warning warning: a warning in the first moments",), 0
    ),
    "looks like a cancel": Form(
        ("--signal=B:TERM@120", APPEND), "exec {doctor}", ("warning failure: ", "taken for a cancel"), 1
    ),
    "comes when no cancel is likely": Form(
        ("--signal=B:TERM@30", APPEND), "exec {doctor}", ("may mean a cancel",), 0
    ),
    "a step": Form((WARNED, APPEND), "srun -n1 {doctor}", ("a step of srun",), 0),
    "emptied log": Form(
        (WARNED, "--open-mode=truncate"),
        TRAP + "exec {doctor}",
        ("log warning: each start of the job empties",),
        0,
    ),
    "not requeued": Form(
        (WARNED, APPEND, "--no-requeue"), TRAP + "exec {doctor}", ("requeue warning: Slurm does not let",), 0
    ),
    "no tools": Form(
        (WARNED, APPEND),
        TRAP + "PATH={bare}; export PATH; exec {doctor}",
        ("warning undecided", "scontrol is not in PATH", "requeue failure: scontrol and sbatch not in PATH"),
        1,
    ),
}


def test_what_the_doctor_says_in_each_form_of_a_job(site: Site) -> None:
    """The script that outlast writes is sound; every other form is told with what it costs and what mends it."""
    cluster = site.cluster()
    folder = site.folder / "doctor"
    folder.mkdir(parents=True)
    bare = folder / "bin"
    bare.mkdir()
    for tool in ("sh", "cat", "env"):
        (bare / tool).symlink_to(shutil.which(tool) or tool)
    submitted: dict[str, Path] = {}
    for name, form in FORMS.items():
        place = folder / name
        place.mkdir()
        file = job(place)
        if form.past:
            give_past(place / "run", *form.past)
        words = f"{shlex.quote(OUTLAST)} {{}} {shlex.quote(str(file))}"
        looks = f"{words.format('doctor')} --json"
        if form.body:
            options = "".join(f"#SBATCH {option}\n" for option in form.options)
            body = form.body.format(doctor=looks, run=words.format("run"), bare=bare)
            text = f"#!/bin/sh\n{options}{body}\n"
        else:
            text = generated(cluster.slurm(OUTLAST, "slurm", str(file)))
        script = place / "batch.sh"
        script.write_text(text)
        log = place / "log.txt"
        cluster.slurm("sbatch", "--parsable", "-N1", "-n1", f"--output={log}".replace("%", "%%"), str(script))
        submitted[name] = log
    for name, log in submitted.items():
        check(name, log)


def generated(script: str) -> str:
    """The script that outlast writes, but that it looks where it would run."""
    assert " run " in script
    return script.replace(" run ", " doctor ").rstrip() + " --json\n"


def check(name: str, log: Path) -> None:
    """Wait for a job's answer, and hold it against what has to be said."""

    def answer() -> dict[str, object] | None:
        try:
            text = log.read_text()
            return dict(json.JSONDecoder().raw_decode(text[text.index("{") :])[0])
        except (OSError, ValueError):
            return None

    try:
        found = wait_until(answer, PATIENCE, f"what the doctor says: {name}")
    except TimeoutError as late:
        raise AssertionError(f"{late}\n{log.read_text() if log.exists() else 'no output'}") from None
    assert found is not None
    checks = found["checks"]
    assert isinstance(checks, list)
    said = "\n".join(f"{x['check']} {x['level']}: {x['text']}" for x in checks)
    form = FORMS[name]
    missing = [part for part in form.said if part not in said]
    assert not missing, f"{name}: {missing}\n{said}"
    assert found["answer"] == form.code, f"{name}\n{said}"
