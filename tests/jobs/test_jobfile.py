"""What a job file means: defaults, paths, units, the shipped jobs, and the resolved job on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.jobs.jobfiles import WHOLE, loaded, written

from outlast_jobs.jobfile import (
    Daemon,
    Job,
    JobFileError,
    Keep,
    Restart,
    Save,
    Signals,
    Stop,
    job_from_command,
    job_from_resolved,
    job_to_yaml,
    load_job,
    resolve_job,
    shipped_jobs,
)
from outlast_jobs.jobfile_fields import Spec, keys_of
from outlast_jobs.jobfile_yaml import plain_value
from outlast_jobs.schema import json_schema


def test_every_key_of_the_job_file_is_read(tmp_path: Path) -> None:
    """A file that uses every key gives a job that says what the file says, with units resolved."""
    job = load_job(written(tmp_path, WHOLE))
    assert job.name == "bytelm"
    assert job.command == ("python", "train.py", "--steps", "2000")
    assert job.env == {"OMP_NUM_THREADS": "1"}
    assert job.signals == Signals(mode="outlast", save="SIGUSR1", stop="SIGTERM", stacks="SIGUSR2")
    assert job.save == Save(every_steps=200, every_seconds=600.0)
    assert job.keep == Keep(last=3, every_steps=1000, max_bytes=20 * 2**30)
    assert job.restart == Restart(without_progress=5, backoff=(1.0, 60.0), never_on=(2,), free_on=(137,))
    assert job.stop == Stop(grace=30.0, on_usr1="auto", time_limit=604800.0)
    assert job.hang.min == 600.0
    assert job.logs.max_bytes == 2**30
    assert job.hooks.given_up == "mail -s '$OUTLAST_RUN gave up' me"
    assert job.slurm is not None
    assert job.notices == ("aws", "gce")
    assert job.slurm.options == {"partition": "gpu", "gres": "gpu:1"}
    assert job.daemon == Daemon(priority=5, slots=2)


def test_a_job_needs_no_more_than_a_name_and_a_command(tmp_path: Path) -> None:
    """Every other key has a default, and the defaults are the documented ones."""
    job = loaded(tmp_path, "")
    assert job.signals.mode == "native"
    assert job.save == Save(every_seconds=600.0)
    assert not job.save.auto
    assert job.keep == Keep(last=3, every_steps=None, max_bytes=None)
    assert job.restart == Restart(without_progress=5, waiting=600.0, backoff=(1.0, 60.0))
    assert job.stop == Stop(grace=30.0, on_usr1="auto", time_limit=None, warn=120.0)
    assert (job.hang.min, job.identity, job.audit, job.sick) == (600.0, "warn", "warn", "stop")
    assert (job.start_from, job.logs.max_bytes, job.hooks.done, job.slurm) == (None, None, None, None)
    assert job.daemon == Daemon(priority=0, slots=1)


def test_a_section_with_everything_commented_out_is_the_default(tmp_path: Path) -> None:
    """A key without a value is as good as no key."""
    assert loaded(tmp_path, "save:\n  # every_steps: 5\nkeep: {last: }\n").save == Save(every_seconds=600.0)


def test_naming_one_cadence_leaves_the_other_off(tmp_path: Path) -> None:
    """The default of ten minutes holds only where the file says nothing about saving."""
    assert loaded(tmp_path, "save: {every_steps: 50}").save == Save(every_steps=50, every_seconds=None)


def test_auto_has_bounds(tmp_path: Path) -> None:
    """``every: auto`` is bounded by half a minute and two hours, or as the file says."""
    save = loaded(tmp_path, "save: {every: auto}").save
    assert (save.auto, save.between, save.every_seconds) == (True, (30.0, 7200.0), None)
    assert loaded(tmp_path, "save: {every: auto, between: 10s..5m}").save.between == (10.0, 300.0)


@pytest.mark.parametrize("name", ["USR2", "usr2", "SIGUSR2", "sigusr2"])
def test_signals_go_by_their_names(tmp_path: Path, name: str) -> None:
    """A signal is named with or without SIG, in either case."""
    signals = loaded(tmp_path, f"signals: {{mode: outlast, save: {name}, stop: HUP, stacks: QUIT}}").signals
    assert signals == Signals(mode="outlast", save="SIGUSR2", stop="SIGHUP", stacks="SIGQUIT")


def test_plain_words_mean_what_they_say(tmp_path: Path) -> None:
    """Neither ``on``, nor ``no``, nor a time of day, nor a leading zero turns into something else."""
    env = loaded(tmp_path, "env: {A: on, B: no, C: 04:00:00, D: 0x10, E: 2026-01-01, F: 1_000}").env
    assert list(env.values()) == ["on", "no", "04:00:00", "0x10", "2026-01-01", "1_000"]
    assert loaded(tmp_path, "stop: {time_limit: 04:00:00}").stop.time_limit == 14400.0


def test_aliases_stand_for_what_they_name(tmp_path: Path) -> None:
    """An anchor can be used again further down."""
    job = loaded(tmp_path, "stop: {grace: &g 20s, warn: *g}\nhang: {min: *g}")
    assert (job.stop.grace, job.stop.warn, job.hang.min) == (20.0, 20.0, 20.0)


def test_paths_start_at_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths belong to the file's folder, wherever outlast is called from."""
    (tmp_path / "code").mkdir()
    file = written(tmp_path, "name: x\ncommand: [a]\nworkdir: code\nrun_dir: ../r\nstart_from: g\n")
    monkeypatch.chdir("/")
    for path in (file, Path(os.path.relpath(file))):
        job = load_job(path)
        assert job.workdir == str(tmp_path / "code")
        assert job.run_dir == str(tmp_path.parent / "r")
        assert job.start_from == str(tmp_path / "g")
        assert job.source == str(file)


def test_the_run_directory_is_named_after_the_job(tmp_path: Path) -> None:
    """Without ``run_dir`` a run lives in runs/NAME beside the file."""
    assert loaded(tmp_path, "").run_dir == str(tmp_path / "runs/x")


def test_paths_on_the_command_line_start_where_the_person_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--run-dir`` is relative to the current directory."""
    file = written(tmp_path, "name: x\ncommand: [a]\nrun_dir: elsewhere\n")
    monkeypatch.chdir("/tmp")
    assert load_job(file, run_dir="here").run_dir == "/tmp/here"


def test_the_home_directory_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tilde is the home directory, as in a shell."""
    monkeypatch.setenv("HOME", "/home/someone")
    assert loaded(tmp_path, "run_dir: ~/runs/x").run_dir == "/home/someone/runs/x"


@pytest.mark.parametrize("path", ["~", "~/runs/x"])
def test_without_a_home_directory_a_tilde_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A user that no list has, in an environment without HOME: no folder called "~" is made in its place."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    for key in ("run_dir", "workdir", "start_from"):
        with pytest.raises(JobFileError, match=rf"job\.yaml:\d: {key}: HOME is not set"):
            loaded(tmp_path, f'{key}: "{path}"')
    with pytest.raises(JobFileError, match="command line: --run-dir: HOME is not set"):
        job_from_command(["python", "x.py"], run_dir=path, cwd=tmp_path)
    assert loaded(tmp_path, "run_dir: ~nobody-here/x").run_dir == str(tmp_path / "~nobody-here/x")


def test_extra_arguments_are_appended(tmp_path: Path) -> None:
    """What stands after ``--`` on the command line goes to the end of the command, untouched."""
    job = load_job(written(tmp_path, "name: x\ncommand: ['{python}', train.py]\n"), extra=["--a", "{python}"])
    assert job.command == (sys.executable, "train.py", "--a", "{python}")


def test_a_job_file_may_be_a_symbolic_link(tmp_path: Path) -> None:
    """Configuration maps are mounted as links; the paths belong to where the link lies."""
    written(tmp_path, "name: x\ncommand: [a]\n")
    (tmp_path / "mounted").mkdir()
    link = tmp_path / "mounted/job.yaml"
    link.symlink_to(tmp_path / "job.yaml")
    assert load_job(link).run_dir == str(tmp_path / "mounted/runs/x")


def test_shipped_jobs_run_where_the_person_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped job is found by name, brings its own folder, and keeps its run in the current directory."""
    monkeypatch.chdir(tmp_path)
    assert set(shipped_jobs()) == {"bytelm", "proof24", "toy"}
    for name, file in shipped_jobs().items():
        assert resolve_job(name) == file
        job = load_job(file)
        assert job.name == name
        assert job.workdir == str(file.parent)
        assert job.run_dir == str(tmp_path / "runs" / name)
        assert job.command[0] == sys.executable
        assert job.signals.mode == "outlast"
        assert job.env == {"OMP_NUM_THREADS": "1"}


def test_a_file_is_found_before_a_shipped_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the current directory wins: a file, or a folder with a job.yaml in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    assert resolve_job("toy") == shipped_jobs()["toy"]
    written(tmp_path / "toy", "name: mine\ncommand: [a]\n")
    assert resolve_job("toy") == Path("toy/job.yaml")
    assert resolve_job("toy/job.yaml") == Path("toy/job.yaml")


def test_an_unknown_job_names_the_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is neither a file nor a shipped job brings the list and the nearest."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobFileError) as caught:
        resolve_job("bytelmm")
    assert str(caught.value) == (
        "bytelmm: there is no such job file, and the jobs that ship with outlast are "
        '"bytelm", "proof24" or "toy"; did you mean "bytelm"?'
    )
    for name in ("", "\0", "a" * 5000):
        with pytest.raises(JobFileError, match="there is no such job file"):
            resolve_job(name)


def test_what_is_no_job_file_is_told_by_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a job.yaml, and a program, are not read as yaml: they are told, with the cure."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "my train.py").write_text("import torch")
    (tmp_path / "job").write_text("name: x\ncommand: [a]\n")
    assert resolve_job("job") == Path("job")
    with pytest.raises(JobFileError, match=r"empty: is a folder without a job.yaml in it; name the job file"):
        resolve_job("empty")
    with pytest.raises(JobFileError, match=r"to run it: outlast run -- python 'my train.py'"):
        resolve_job("my train.py")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "train.py", "--x", "other.py"], "train"),
        (["torchrun", "--nproc-per-node", "2", "src/fit.py"], "fit"),
        (["python", "-m", "pkg.train"], "pkg.train"),
        (["/opt/bin/trainer", "--fast"], "trainer"),
        (["bash", "-c", "python x | cat"], "bash"),
        (["./a b.sh"], "a-b"),
        (["..."], "job"),
    ],
)
def test_a_bare_command_is_named_after_its_script(tmp_path: Path, argv: list[str], name: str) -> None:
    """The run of a bare command gets a name that is fit for a folder, and native signals."""
    job = job_from_command(argv, cwd=tmp_path)
    assert job == Job(
        name=name, command=tuple(argv), workdir=str(tmp_path), run_dir=str(tmp_path / "runs" / name)
    )
    assert job.signals.mode == "native"


def test_a_bare_command_must_be_one(tmp_path: Path) -> None:
    """No command, or one whose bytes are no text, is refused before anything is made."""
    with pytest.raises(JobFileError, match=r"^command line: expected a command after --, got none$"):
        job_from_command([], cwd=tmp_path)
    with pytest.raises(JobFileError, match=r"^command line: word 2 can't be kept: it is not valid utf-8$"):
        job_from_command(["a", "\udc80"], cwd=tmp_path)


def test_the_resolved_job_reads_back_as_the_same_job(tmp_path: Path) -> None:
    """What is written into the run directory is the job, whichever file or command it came from."""
    for text in (WHOLE, "name: a\ncommand: [b]\nsave: {every: auto}\n", "name: 'on'\ncommand: ['1e5', '']\n"):
        job = load_job(written(tmp_path, text))
        resolved = job_to_yaml(job)
        assert job_from_resolved(resolved) == job
        assert yaml.safe_load(resolved)["schema"] == "outlast.job/1"
        assert yaml.safe_load(resolved)["command"] == list(job.command)  # readers of YAML 1.1 agree
    bare = job_from_command(["python", "$x.py"], run_dir="a$HOME", cwd=tmp_path)
    assert job_from_resolved(job_to_yaml(bare)) == bare


_Texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


_Spans = st.floats(min_value=1e-3, max_value=1e8)


@settings(deadline=None)
@given(
    words=st.lists(_Texts, min_size=1, max_size=4),
    env=st.dictionaries(
        _Texts.filter(lambda t: t != "" and "=" not in t and not t.startswith(("OUT", "NOT"))), _Texts
    ),
    spans=st.tuples(_Spans, _Spans),
    grace=_Spans,
)
def test_any_job_survives_the_run_directory(
    words: list[str], env: dict[str, str], spans: tuple[float, float], grace: float
) -> None:
    """Whatever texts and numbers a job holds, writing and reading changes no character and no bit."""
    low, high = sorted(spans)
    job = Job(
        name="x",
        command=("a", *words),
        workdir="/w",
        run_dir="/r",
        env=env,
        save=Save(every="auto", between=(low, high)),
        stop=Stop(grace=grace),
    )
    assert job_from_resolved(job_to_yaml(job)) == job


def test_a_resolved_job_of_another_version_is_named(tmp_path: Path) -> None:
    """The schema says who can read a resolved job."""
    text = job_to_yaml(job_from_command(["a"], cwd=tmp_path))
    with pytest.raises(
        JobFileError, match=r'schema: this version reads "outlast.job/1", got "outlast.job/9"'
    ):
        job_from_resolved(text.replace("outlast.job/1", "outlast.job/9"))
    with pytest.raises(JobFileError, match=r'schema: missing; expected "outlast.job/1"'):
        job_from_resolved("name: x\ncommand: [a]\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-7", -7), ("1.5", 1.5), ("1e3", 1000.0), ("true", True), ("~", None), ("", None)]
    + [(text, text) for text in ("yes", "off", "1:30", "0o7", "0x1", "1_0", ".inf", "=", "TrUe")],
)
def test_unquoted_scalars_follow_the_core_rules(text: str, value: object) -> None:
    """Only numbers, true, false and null are anything but text."""
    assert plain_value(text) == value
    assert type(plain_value(text)) is type(value)


def _keys(schema: dict[str, object], at: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for part in (schema, *schema.get("anyOf", [])):  # type: ignore[misc]
        for name, inner in part.get("properties", {}).items():
            found[at + name] = inner
            found |= _keys(inner, f"{at}{name}.")
    return found


def test_the_schema_names_and_describes_every_key() -> None:
    """Editors are told of exactly the keys that the loader takes, each with its meaning."""
    schema = json_schema()
    json.dumps(schema)
    keys = _keys(schema)
    expected = {"schema"}
    for key in keys_of(Job).values():
        expected.add(key.name)
        if key.spec.section is not None:
            expected |= {f"{key.name}.{inner}" for inner in keys_of(key.spec.section)}
    assert set(keys) == expected
    for name, inner in keys.items():
        assert isinstance(inner, dict), name
        assert inner["description"], name
    assert schema["required"] == ["name", "command"]


def test_every_key_says_what_it_expects() -> None:
    """No error message is left without the words for what was expected."""

    def told(spec: Spec) -> None:
        assert spec.expected
        if spec.element is not None:
            told(spec.element)
        if spec.section is not None:
            for key in keys_of(spec.section).values():
                told(key.spec)

    for key in keys_of(Job).values():
        told(key.spec)


def test_the_job_file_module_stays_light() -> None:
    """Importing it brings neither yaml nor anything of training or terminals."""
    heavy = "{'yaml', 'torch', 'numpy', 'psutil', 'rich', 'watchdog', 'click', 'difflib'}"
    code = f"import sys, outlast_jobs.jobfile; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
