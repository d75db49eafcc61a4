"""The batch script for Slurm, as text, and the command that prints or submits it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from outlast_jobs.jobfile import Job, Slurm, load_job
from outlast_supervisor.schedulers.slurm_script import ScriptError, slurm_script
from outlast_supervisor.schedulers.start import start_command

OUTLAST = str(Path(sys.executable).with_name("outlast"))


def a_job(folder: Path, slurm: str = "{}") -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(f"name: lm\ncommand: [train]\nslurm: {slurm}\n")
    return load_job(folder / "job.yaml")


def outlast(
    *words: str, folder: Path, path: str = "/usr/bin:/bin", **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [OUTLAST, "slurm", *words],
        cwd=folder,
        env={**os.environ, "PATH": path, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def without_interpreter(script: str) -> str:
    """The same Python has several names."""
    return re.sub(r"^exec \S+", "exec python", script, flags=re.MULTILINE)


def a_program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_script_says_all_that_the_job_file_asks_for(tmp_path: Path) -> None:
    """Time, warning, requeue and options of the job file each become a line; the last line becomes outlast."""
    options = "{partition: gpu, gres: 'gpu:1', exclusive: true, overcommit: false, nice: 5}"
    job = a_job(tmp_path, f"{{time: '04:00:00', warn: 90.5s, options: {options}}}")
    assert slurm_script(job).text.splitlines() == [
        "#!/bin/sh",
        "#SBATCH --job-name=lm",
        "#SBATCH --time=04:00:00",
        "#SBATCH --signal=B:USR1@91",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        f"#SBATCH --output={tmp_path}/runs/lm.slurm-%j.log",
        "#SBATCH --partition=gpu",
        "#SBATCH --gres=gpu:1",
        "#SBATCH --exclusive",
        "#SBATCH --nice=5",
        "trap '' USR1",
        "exec " + shlex.join(start_command(job)),
    ]


def test_a_job_without_a_slurm_section_has_a_script(tmp_path: Path) -> None:
    """Nothing needs to be said about Slurm: the warning comes 120 s before the end."""
    (tmp_path / "job.yaml").write_text("name: lm\ncommand: [train]\n")
    text = slurm_script(load_job(tmp_path / "job.yaml")).text
    assert "--signal=B:USR1@120\n" in text
    assert "--time" not in text


def test_never_means_never(tmp_path: Path) -> None:
    """`requeue: never` keeps Slurm itself from queueing the job again."""
    text = slurm_script(a_job(tmp_path, "{requeue: never}")).text
    assert "#SBATCH --no-requeue\n" in text
    assert "#SBATCH --requeue\n" not in text


def test_the_command_line_wins(tmp_path: Path) -> None:
    """An option given on the command line takes the place of the job file's, whatever its kind."""
    job = a_job(tmp_path, "{options: {partition: gpu, exclusive: true}}")
    text = slurm_script(job, options=["--partition=cpu", "exclusive=user", "output=there/%j", "hold"]).text
    assert text.count("--partition=") == text.count("--exclusive") == text.count("--output=") == 1
    for line in ("--partition=cpu", "--exclusive=user", "--output=there/%j", "--hold"):
        assert f"#SBATCH {line}\n" in text


def test_a_task_of_an_array_has_a_run_of_its_own(tmp_path: Path) -> None:
    """The shell puts the task's number into the run directory and into the worker's words, and nowhere else."""
    job = a_job(tmp_path / "with {task} in it", "{}")
    script = slurm_script(
        job, run_dir=str(tmp_path / "a b"), array="1-5%2", extra=["--seed={task}", "{task}", "x"]
    )
    assert script.output == f"{tmp_path}/a b.slurm-%A_%a.log"
    assert "#SBATCH --array=1-5%2\n" in script.text
    words = script.text.splitlines()[-1].removeprefix("exec ")
    printed = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {words}"],
        env={"SLURM_ARRAY_TASK_ID": "7"},
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert printed[printed.index("run") :] == [
        "run",
        f"{tmp_path}/with {{task}} in it/job.yaml",
        "--run-dir",
        f"{tmp_path}/a b-7",
        "--",
        "--seed=7",
        "7",
        "x",
    ]


@pytest.mark.parametrize("name", ["a b", "it's", 'q"q', "$HOME `id`", "50%j", "ümlaut", "#x", "a;b"])
def test_any_path_is_one_word(tmp_path: Path, name: str) -> None:
    """Whatever is in a path, the shell and Slurm read it as it is."""
    job = a_job(tmp_path / name)
    text = slurm_script(job).text
    words = text.splitlines()[-1].removeprefix("exec ")
    printed = subprocess.run(["sh", "-c", f"printf '%s\\n' {words}"], capture_output=True, text=True).stdout
    assert printed.splitlines()[-1] == f"{tmp_path}/{name}/job.yaml"
    output = next(line for line in text.splitlines() if "--output" in line)
    assert output.count("%%") == name.count("%")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["partition=a\n#SBATCH --wrap=id"], "line end"),
        (["partition=a\rb"], "control"),
        (["x\ny"], '"x?y" is no name'),
        (["-p=gpu"], "write it long"),
        (["Partition=gpu"], "write it long"),
        ([""], "write it long"),
        (["signal=USR2@5"], "slurm.warn"),
        (["open-mode=truncate"], "appended"),
        (["no-requeue"], "slurm.requeue"),
        (["array=1-3"], "--array"),
        (["wrap=id"], "command line"),
    ],
)
def test_an_option_that_would_do_harm_is_refused(tmp_path: Path, options: list[str], told: str) -> None:
    """An option that could bring in another line, or takes away what outlast needs, is refused by name."""
    job = a_job(tmp_path)
    with pytest.raises(ScriptError, match=told.replace("?", "\\?")):
        slurm_script(job, options=options)


def test_the_job_files_options_are_held_to_the_same(tmp_path: Path) -> None:
    """The job file can't bring in another line either, neither by a name nor by a value."""
    job = a_job(tmp_path)
    for bad in ({"a\nb": "c"}, {"comment": "a\nb"}, {"signal": "USR1"}):
        with pytest.raises(ScriptError, match=r"slurm\.options"):
            slurm_script(Job(name="j", command=("x",), source=job.source, slurm=Slurm(options=bad)))


@pytest.mark.parametrize("array", ["", "a", "1-", "1;2", "1\n2", "1-5%0x", "1 2"])
def test_an_array_is_numbers(tmp_path: Path, array: str) -> None:
    """What is no set of task numbers is refused."""
    with pytest.raises(ScriptError, match="task numbers"):
        slurm_script(a_job(tmp_path), array=array)


@pytest.mark.parametrize("name", ["a\nb", "a\\b"])
def test_a_path_that_slurm_cannot_be_told_is_refused(tmp_path: Path, name: str) -> None:
    """A run directory whose name can't stand in Slurm's output option is refused with the cure."""
    with pytest.raises(ScriptError, match="--run-dir"):
        slurm_script(a_job(tmp_path), run_dir=str(tmp_path / name))


def test_a_warning_too_early_is_refused(tmp_path: Path) -> None:
    """Slurm's --signal has a largest value."""
    with pytest.raises(ScriptError, match="65535"):
        slurm_script(a_job(tmp_path, "{warn: 19h}"))


def test_it_prints_the_script_and_nothing_else(tmp_path: Path) -> None:
    """Standard output is the script, byte for byte; a missing folder is told beside it."""
    job = a_job(tmp_path / "ü")
    done = outlast(str(tmp_path / "ü" / "job.yaml"), folder=tmp_path, LC_ALL="C")
    assert (done.returncode, without_interpreter(done.stdout)) == (
        0,
        without_interpreter(slurm_script(job).text),
    )
    assert f'make "{tmp_path}/ü/runs" first' in done.stderr
    assert outlast("ü/job.yaml", "--quiet", folder=tmp_path).stderr == ""
    told = json.loads(outlast("ü/job.yaml", "--json", folder=tmp_path).stdout)
    assert told["script"] == done.stdout


def test_submit_hands_the_script_to_sbatch(tmp_path: Path) -> None:
    """--submit gives sbatch the printed script, prints the job's id alone, and says how to follow and stop it."""
    job = a_job(tmp_path)
    a_program(tmp_path / "bin", "sbatch", f"cat > {tmp_path}/got; echo '17;cluster'")
    done = outlast("job.yaml", "--submit", folder=tmp_path, path=f"{tmp_path}/bin:/bin")
    assert (done.returncode, done.stdout) == (0, "17\n")
    assert without_interpreter((tmp_path / "got").read_text()) == without_interpreter(slurm_script(job).text)
    assert f"outlast logs -f {tmp_path}/runs/lm\n" in done.stderr
    assert "scancel 17" in done.stderr
    assert (tmp_path / "runs").is_dir()


def test_a_job_of_the_same_name_is_told_of(tmp_path: Path) -> None:
    """Submitted twice by a slip, the second one says which job of its name is there; it is submitted all the same."""
    a_job(tmp_path)
    a_program(tmp_path / "bin", "sbatch", "cat >/dev/null; echo 18")
    a_program(
        tmp_path / "bin", "squeue", 'case "$*" in *--name=lm*) echo 17 RUNNING; echo 12_3 PENDING;; esac'
    )
    done = outlast("job.yaml", "--submit", folder=tmp_path, path=f"{tmp_path}/bin:/bin")
    assert (done.returncode, done.stdout) == (0, "18\n")
    assert 'there are jobs of the name "lm" already: 17 (RUNNING), 12_3 (PENDING)' in done.stderr
    assert "scancel 18" in done.stderr


def test_a_job_inherits_nothing_of_the_one_that_submits_it(tmp_path: Path) -> None:
    """What Slurm told the job in which --submit is called stays there; what a person told sbatch does not."""
    a_job(tmp_path)
    a_program(tmp_path / "bin", "sbatch", f"cat >/dev/null; env >{tmp_path}/env; echo 18")
    told = {"SLURM_RESTART_COUNT": "3", "SLURM_STEP_ID": "0", "SBATCH_DEPENDENCY": "singleton"}
    outlast("job.yaml", "--submit", folder=tmp_path, path=f"{tmp_path}/bin:/bin", **told)
    env = (tmp_path / "env").read_text()
    assert "SLURM_RESTART_COUNT" not in env
    assert "SLURM_STEP_ID" not in env
    assert "SBATCH_DEPENDENCY=singleton" in env


def test_without_sbatch_it_says_how_to_print(tmp_path: Path) -> None:
    """Where there is no sbatch the message says what to do without, and the exit code is 1."""
    a_job(tmp_path)
    (tmp_path / "empty").mkdir()
    done = outlast("job.yaml", "--submit", folder=tmp_path, path=str(tmp_path / "empty"))
    assert (done.returncode, done.stdout) == (1, "")
    assert 'no "sbatch"' in done.stderr
    assert "leave --submit out" in done.stderr


def test_a_refusal_is_told_in_sbatchs_words(tmp_path: Path) -> None:
    """What sbatch says when it refuses is passed on, and nothing is on standard output."""
    a_job(tmp_path)
    a_program(tmp_path / "bin", "sbatch", "echo 'invalid partition' >&2; exit 1")
    done = outlast("job.yaml", "--submit", "--json", folder=tmp_path, path=f"{tmp_path}/bin:/bin")
    assert (done.returncode, done.stdout) == (1, "")
    assert "sbatch refused: invalid partition" in done.stderr


def test_what_is_wrong_is_a_message(tmp_path: Path) -> None:
    """A wrong option is one line on standard error and exit code 64."""
    a_job(tmp_path)
    done = outlast("job.yaml", "--option", "signal=x", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (64, "", 1)
    assert done.stderr.startswith('outlast: --option: "signal"')
