"""`outlast export`: what it leaves is the generation, loads with torch alone, and a run goes on from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.damage import content, flip, rewrite_index
from tests.e2e.exporting import export, generation, struck
from tests.e2e.harness import OUTLAST, Ended, Run, light

from outlast_jobs.jobfile import job_from_resolved
from outlast_jobs.look import Verdict, look

SITE = str(Path(numpy.__file__).parents[1])

USE = """
import sys
assert "outlast_worker" not in sys.modules
sys.path.insert(0, sys.argv[1])
import torch
from load import load, load_state
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4))
model.load_state_dict(load()["model"])
torch.optim.AdamW(model.parameters()).load_state_dict(load()["optimizer"])
print(sorted(load()), load_state()["counters"]["step"], load_state()["extra"])
"""


PROGRAM = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def without_outlast(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Code in a Python with torch in which outlast cannot be imported: no .pth file is read."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([light()["PYTHONPATH"], SITE])}
    command = [sys.executable, "-S", "-c", f"import sitecustomize\n{code}", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd="/")


@pytest.fixture(scope="session")
def exported(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The newest generation, exported once; nobody changes it."""
    dest = tmp_path_factory.mktemp("exported") / "export"
    return dest, export(trained.directory.path, dest)


def test_an_export_is_the_newest_generation_byte_for_byte(trained: Run, exported: tuple[Path, Ended]) -> None:
    """Every file as it was, in blocks of its own; one line says what was loaded and compared; nothing else is there."""
    dest, done = exported
    assert (done.code, done.err) == (0, "")
    source, made = generation(trained.directory.path), dest / generation(trained.directory.path).name
    assert content(made) == content(source)
    assert {path.stat().st_nlink for path in made.iterdir()} == {1}
    assert not {p.stat().st_ino for p in made.iterdir()} & {p.stat().st_ino for p in source.iterdir()}
    assert sorted(os.listdir(dest)) == ["README.txt", "job.yaml", "load.py", made.name]
    assert os.listdir(dest.parent) == ["export"]
    assert done.out.startswith(f"{dest}: step 14, ")
    assert ", loaded and compared: " in done.out
    assert done.out.endswith(" tensors, equal\n")
    verified = subprocess.run([OUTLAST, "verify", str(dest)], capture_output=True, text=True, check=True)
    assert verified.stdout.startswith(f"verified    {made.name}")


def test_it_loads_where_outlast_is_not_installed(exported: tuple[Path, Ended], tmp_path: Path) -> None:
    """As a program load.py tells what there is; as a module it gives what a model and an optimizer load."""
    dest = Path(shutil.copytree(exported[0], tmp_path / "elsewhere"))
    assert "No module named 'outlast_worker'" in without_outlast("import outlast_worker").stderr
    told = without_outlast(PROGRAM, dest / "load.py")
    assert told.returncode == 0, told.stderr
    first, model, *_, last = told.stdout.splitlines()
    assert first.startswith("step 14, epoch ")
    assert model == "model: 4 tensors, 76 parameters"
    assert last.startswith("verified: ")
    used = without_outlast(USE, dest)
    assert used.returncode == 0, used.stderr
    assert used.stdout.split("]")[1].strip() == "14 {'offset': 1.75}"
    (made,) = dest.glob("step-*")
    flip("meta.pt")(made)
    damaged = without_outlast(PROGRAM, dest / "load.py")
    assert (damaged.returncode, damaged.stdout) == (1, "")
    assert damaged.stderr == "load.py: meta.pt is not the file that index.json says\n"


def test_a_run_goes_on_from_an_export(trained: Run, tmp_path: Path, make_run: MakeRun) -> None:
    """Named in start_from an exported generation is restored, and the run comes to the same last bit."""
    dest, name = tmp_path / "export", generation(trained.directory.path, 2).name
    assert export(trained.directory.path, dest, "--generation", name).code == 0
    job = {"command": ["{python}", "{scripts}/everything.py"], "start_from": str(dest / name)}
    run = make_run(job)
    assert run.start().wait() == 0, run.report()
    assert run.records("attempt_started")[0].data["step"] == 8
    digests = [found.index.state_sha256 for r in (run, trained) if (found := r.verified()[0]).index]
    assert digests[0] is not None
    assert digests[0] == digests[1]


def test_it_says_the_same_to_programs(trained: Run, tmp_path: Path) -> None:
    """With --json one document, of which the digest is that of the run's last state."""
    dest = tmp_path / "export"
    said = json.loads(export(trained.job_file, dest, "--json").out)
    index = trained.verified()[0].index
    assert index is not None
    assert (said["path"], said["step"], said["final"], said["passed_over"]) == (str(dest), 14, True, [])
    assert said["state_sha256"] == index.state_sha256
    assert said["bytes"] == index.total_bytes
    assert said["parts"]["model"] == {"tensors": 4, "values": 76}


def test_a_flipped_bit_costs_the_newest_and_no_more(copied: Path, tmp_path: Path) -> None:
    """The next one is exported, the reason is said, and the run's own folder is left as it was."""
    flip("model.shard-000.pt")(generation(copied))
    before = content(copied / "checkpoints")
    done = export(copied, tmp_path / "export")
    assert done.code == 0
    assert done.out.startswith(f"{tmp_path}/export: step 12, ")
    reason = f"outlast: passed over {generation(copied).name}: corrupt: 'model.shard-000.pt' has "
    assert done.err.startswith(reason)
    assert content(copied / "checkpoints") == before
    assert sorted(path.name for path in (tmp_path / "export").glob("step-*")) == [generation(copied, 1).name]


def test_an_unhealthy_one_is_exported_only_if_it_is_named(copied: Path, tmp_path: Path) -> None:
    """The newest healthy one is taken, and said to be; one that is named is said to be unhealthy."""
    rewrite_index(generation(copied), healthy=False)
    done = export(copied, tmp_path / "export")
    assert (done.code, "step 12" in done.out) == (0, True)
    assert "passed over step-000000014.a0001: not healthy: " in done.err
    named = export(copied, tmp_path / "named", "--generation", generation(copied).name)
    assert (named.code, "step 14" in named.out) == (0, True)
    assert "step-000000014.a0001 is not healthy; it is exported because it was named" in named.err
    assert "NOT HEALTHY" in (tmp_path / "named" / "README.txt").read_text()


def test_a_run_that_goes_on_is_exported_and_notices_nothing(tmp_path: Path, make_run: MakeRun) -> None:
    """While it saves at each step and keeps one, what is exported is whole, and the run goes on to its end."""
    job = {
        "command": ["{python}", "{scripts}/mini.py", "--workers", "0", "--steps", "100000"],
        "save": {"every_steps": 1},
        "keep": {"last": 1},
        "env": light(),
    }
    run = make_run(job)
    supervisor = run.start()
    supervisor.until(run.generations, "a generation")
    steps = []
    for number in range(2):
        dest = tmp_path / f"export-{number}"
        done = run.cli("export", str(run.directory.path), str(dest))
        assert done.code == 0, done.err
        (made,) = dest.glob("step-*")
        assert look(made, run.run_id, full=True).verdict is Verdict.VERIFIED
        steps.append(made.name)
    assert steps[0] < steps[1]
    supervisor.send(15)
    assert supervisor.wait() == 75
    assert {r.data["attempt"] for r in run.records("attempt_started")} == {1}
    assert not run.records("quarantined", "violation", "unprotected")


@pytest.mark.parametrize(
    ("event", "number", "step"),
    [("index.json.sha256", 1, 12), ("index.json.sha256", 2, 12), ("outlast.write", 1, 14)],
)
def test_what_is_pruned_meanwhile_is_whole_or_the_next_one_is_taken(
    copied: Path, tmp_path: Path, event: str, number: int, step: int
) -> None:
    """Before its look or its copy began it is passed over; what is being copied is copied to its end."""
    act = f"shutil.rmtree({str(generation(copied))!r})"
    done = struck(event, number, act, copied, tmp_path / "export")
    assert (done.code, f"step {step}" in done.out) == (0, True), done.err
    assert ("it went away while it was read: the run has pruned it" in done.err) == (step == 12)
    (made,) = (tmp_path / "export").glob("step-*")
    assert look(made, None, full=True).verdict is Verdict.VERIFIED


def test_what_was_sealed_meanwhile_is_found(copied: Path, tmp_path: Path) -> None:
    """A run that keeps one prunes it under our eyes: the newer one, which is there by then, is taken."""
    stash = Path(shutil.move(generation(copied), tmp_path / generation(copied).name))
    shutil.rmtree(generation(copied, 1))
    act = f"shutil.rmtree({str(generation(copied, 2))!r}); os.rename({str(stash)!r}, {str(generation(copied))!r})"
    done = struck("index.json.sha256", 1, act, copied, tmp_path / "export")
    assert (done.code, "step 14" in done.out) == (0, True), done.err


def test_no_secret_leaves_with_it(exported: tuple[Path, Ended]) -> None:
    """Values of env and the commands of hooks are left out, and named; the rest is the job as it ran."""
    dest, _ = exported
    whole = b"".join(path.read_bytes() for path in dest.rglob("*") if path.is_file())
    assert b"hunter2" not in whole
    text = (dest / "job.yaml").read_text()
    assert "SECRET_TOKEN" in text.splitlines()[0]
    assert text.splitlines()[1] == "# left out: the commands of hooks (done)"
    assert job_from_resolved(text).save.every_steps == 4


def test_the_readme_s_own_lines_load_it(trained: Run, exported: tuple[Path, Ended], tmp_path: Path) -> None:
    """It tells run, step and loss, and the three lines that it gives do what it says."""
    dest, _ = exported
    text = (dest / "README.txt").read_text()
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert len(lines) == 3
    assert "step        14, epoch " in text
    assert repr(trained.history()[-1]["loss"]) in text
    shutil.copytree(dest, tmp_path / "moved")
    code = "\n".join(lines).replace("path/of/this/folder", str(tmp_path / "moved"))
    model = "import torch; model = torch.nn.Sequential(*map(eval, sys.argv[1:]))\n"
    layers = ("torch.nn.Linear(4, 8)", "torch.nn.GELU()", "torch.nn.Dropout()", "torch.nn.Linear(8, 4)")
    done = without_outlast("import sys\n" + model + code, *layers)
    assert done.returncode == 0, done.stderr


def test_quiet_says_nothing(trained: Run, tmp_path: Path) -> None:
    """Not even what was passed over; the exit code says all."""
    done = export(trained.directory.path, tmp_path / "export", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
