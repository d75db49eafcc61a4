"""What stands in a job's env stays out of everything that outlast writes, but for the one file that is its owner's."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Run
from tests.waiting import wait_until

from outlast_jobs.requests import write_request

SECRET = "hunter2-9f8e7d6c"
SCRIPT = """
import os, sys, time
assert os.environ["API_TOKEN"], "the worker has it"
open("ran", "a").write("x")
while not os.path.exists("told"): time.sleep(0.01)
raise ValueError("no luck")
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run whose worker fails, with a secret in its env and hooks for all that happens."""
    job = {
        "command": [sys.executable, "-S", "train.py"],
        "signals": "native",
        "env": {"API_TOKEN": SECRET},
        "restart": {"without_progress": 3, "waiting": "0s", "backoff": "500ms..500ms"},
        "hooks": {"given_up": "env >given-up-env"},
    }
    made = Run(tmp_path / "job", job, script=SCRIPT)
    yield made
    made.close()


def test_a_secret_in_env_is_in_no_file_of_the_run_but_its_owner_s_copy_of_the_job(run: Run) -> None:
    """Journal, status, logs, requests, hooks and all output are free of it; job.yaml has it, and has mode 0600."""
    supervisor = run.start()
    wait_until(lambda: (run.folder / "ran").exists(), 60, "the first attempt")
    # the file as a person mends it in a hurry: wrong, with the secret in the wrong line
    text = run.job_file.read_text()
    run.job_file.write_text(text.replace(f"API_TOKEN: {SECRET}", f"API_TOKEN: [{SECRET}]"))
    write_request(run.directory, "reload", {}, "ann@here")
    supervisor.until(lambda: run.records("answered"), "the refusal of the changed file")
    run.job_file.write_text(text.replace(SECRET, "918273645546372819"))  # a number: no text
    write_request(run.directory, "reload", {}, "ann@here")
    supervisor.until(lambda: len(run.records("answered")) > 1, "the second refusal")
    (run.folder / "told").touch()
    assert supervisor.wait() == 70
    shown = run.cli("status", "--json", str(run.directory.path))
    seen = {
        str(path.relative_to(run.folder)): path for path in run.directory.path.rglob("*") if path.is_file()
    }
    holding = [name for name, path in seen.items() if _has_secret(path.read_bytes())]
    assert [name for name in holding if "given-up-env" not in name] == ["run/job.yaml"]
    assert stat.S_IMODE((run.directory.job_yaml).stat().st_mode) == 0o600
    assert "given-up-env" not in str(holding), "a hook has the environment of outlast, not the job's"
    for text in (supervisor.output, shown.out, shown.err, run.log()):
        assert not _has_secret(text.encode())


def _has_secret(data: bytes) -> bool:
    return SECRET.encode() in data or b"918273645546372819" in data


def test_a_job_without_env_is_written_down_for_all_who_may_read(run: Run) -> None:
    """Files honour the umask: only a job that may hold secrets is kept from the group."""
    run.write_job({"command": ["sh", "-c", "exit 0"], "signals": "native"})
    assert run.start().wait() == 0
    assert stat.S_IMODE((run.directory.job_yaml).stat().st_mode) & 0o600 == 0o600
    assert run.directory.job_yaml.stat().st_mode & 0o777 == run.directory.run_json.stat().st_mode & 0o777
