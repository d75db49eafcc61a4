"""`outlast systemd`: the unit is put in place and taken away again, and systemd has nothing to say against it."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.e2e.harness import OUTLAST
from tests.realparts import needs
from tests.systemd.conftest import MakeService
from tests.systemd.manager import UserManager

pytestmark = needs("systemd", "namespaces")

FOREVER = ["/bin/sh", "-c", "trap 'exit 75' TERM; while :; do sleep 0.05; done"]
ODD = [
    "",
    "two words",
    "'",
    '"',
    "\\",
    "\\n",
    "a\nb",
    "%n",
    "$HOME",
    "${HOME}",
    "$$",
    ";",
    "größe",
    "-x",
    "#",
]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a job file into a folder of this name."""

    def write(folder: str = "job", **job: object) -> Path:
        file = tmp_path / folder / "job.yaml"
        file.parent.mkdir()
        file.write_text(yaml.safe_dump({"name": "job", "command": ["true"], **job}, allow_unicode=True))
        return file

    return write


@pytest.mark.parametrize("system", [(), ("--system",)])
@pytest.mark.parametrize("folder", ["plain", "we ird \"$HOME' %n \\x41 ü;"])
def test_systemd_has_nothing_to_say_against_it(
    manager: UserManager, write: Write, tmp_path: Path, folder: str, system: tuple[str, ...]
) -> None:
    """`systemd-analyze verify` is silent, whatever the job's folder and arguments are called."""
    job = write(folder, signals={"stop": "INT"}, stop={"grace": "1.5s"})
    words = [str(job), *system, "--json", "--", *ODD]
    printed = json.loads(manager.outlast("systemd", *words).out)
    unit = tmp_path / printed["unit"]
    unit.write_text(printed["text"])
    kind = "--system" if system else "--user"
    verified = manager.enter("systemd-analyze", kind, "verify", "--man=no", str(unit))
    assert (verified.code, verified.out + verified.err) == (0, "")


def test_every_word_arrives(make_service: MakeService, tmp_path: Path) -> None:
    """A job with odd names in an odd folder is run with exactly the arguments that were given."""
    service = make_service({"name": "a b@ü%\"'$\\", "command": ["true"]})
    run, out = service.run, tmp_path / "arguments"
    folder = tmp_path / "we ird \"$HOME' %n \\x41 ü;"
    folder.mkdir()
    told = yaml.safe_load(run.job_file.read_text())
    told["command"] = ["/bin/sh", "-c", 'printf "%s\\0" "$@" > "$0"', str(out)]
    told["run_dir"] = str(run.directory.path)
    run.job_file = folder / "job.yaml"
    run.job_file.write_text(yaml.safe_dump(told))
    done = service.install("--now", "--", *ODD)
    assert done.code == 0, done.err
    service.until(ActiveState="inactive", Result="success", ExecMainStatus="0")
    assert out.read_text().split("\0")[:-1] == ODD


def test_install_and_remove(make_service: MakeService) -> None:
    """Both may be said again; a changed job renews the unit; a removal saves and leaves the run as it is."""
    service = make_service({"command": FOREVER})
    manager, run = service.manager, service.run
    place = manager.units / service.unit
    first = service.install("--now")
    assert first.out.splitlines() == [
        f"{service.unit} installed and started",
        f"follow: outlast logs -f {run.directory.path}",
        f"stop:   systemctl --user stop {service.unit}",
    ]
    assert "loginctl enable-linger" in first.err
    main = service.until(ActiveState="active", UnitFileState="enabled")["MainPID"]
    run.until(run.of_attempts, "a worker")
    before = os.stat(place)
    assert service.install("--now").out.splitlines()[0] == f"{service.unit} is installed already and started"
    assert os.stat(place).st_ino == before.st_ino
    assert service.until(ActiveState="active")["MainPID"] == main

    run.write_job({**yaml.safe_load(run.job_file.read_text()), "stop": {"grace": "90s"}})
    assert service.install().out.splitlines()[0] == f"{service.unit} renewed"
    assert service.until(TimeoutStopUSec="2min 2s")["MainPID"] == main

    removed = manager.outlast("systemd", str(run.job_file), "--remove")
    assert removed.out == f"{service.unit} removed; the run stays where it is\n", removed.err
    run.nothing_left()
    assert not place.exists()
    assert run.directory.journal.is_dir()
    wants = manager.units / "default.target.wants" / service.unit
    assert not os.path.lexists(wants)
    again = manager.outlast("systemd", str(run.job_file), "--remove")
    assert (again.code, again.out) == (0, f"{service.unit} is not installed\n")


def test_what_is_not_ours_is_not_touched(manager: UserManager, write: Write) -> None:
    """A unit of somebody else, or of another job with the same name, is neither replaced nor removed."""
    job, other = write(name="taken"), write("other", name="taken")
    place = manager.units / "outlast-taken.service"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("[Service]\nExecStart=true\n")
    for action in ("--install", "--remove"):
        refused = manager.outlast("systemd", str(job), action)
        assert (refused.code, refused.out) == (64, "")
        assert "not written by outlast; choose another name with --name" in refused.err
    assert place.read_text() == "[Service]\nExecStart=true\n"
    place.unlink()
    assert manager.outlast("systemd", str(other), "--install").code == 0
    refused = manager.outlast("systemd", str(job), "--install")
    assert refused.code == 64
    assert f"is the unit of {other}" in refused.err
    assert "systemctl --user disable --now outlast-taken.service; rm " in refused.err
    assert manager.outlast("systemd", str(job), "--install", "--name", "mine").code == 0
    for file, more in ((other, ()), (job, ("--name", "mine.service"))):
        assert manager.outlast("systemd", str(file), "--remove", *more).code == 0


def test_without_a_service_manager(manager: UserManager, write: Write) -> None:
    """Where nobody answers, the message says so and what helps."""
    job = write(name="alone")
    gone = ["env", "XDG_RUNTIME_DIR=/nowhere", "DBUS_SESSION_BUS_ADDRESS=", OUTLAST]
    failed = manager.enter(*gone, "systemd", str(job), "--install")
    assert failed.code == 1
    assert '"systemctl --user daemon-reload" failed' in failed.err
    assert "own login" in failed.err
    assert f'"{manager.units}/outlast-alone.service" is there all the same' in failed.err
    bare = manager.enter("env", "PATH=/nowhere", OUTLAST, "systemd", str(job), "--install")
    assert (bare.code, "there is no systemctl here" in bare.err) == (1, True)
    assert manager.outlast("systemd", str(job), "--remove").code == 0


def test_a_system_unit_does_not_run_as_root_by_accident(manager: UserManager, write: Write) -> None:
    """It runs as the owner of the job file, or as who is named."""
    job = write(name="owned")
    os.chown(job, pwd.getpwnam("nobody").pw_uid, -1)
    printed = manager.outlast("systemd", str(job), "--system").out
    assert "\nUser=nobody\n" in printed
    assert "\nUser=" not in manager.outlast("systemd", str(job), "--system", "--as", "root").out
    assert "\nUser=" not in manager.outlast("systemd", str(job)).out
    unknown = manager.outlast("systemd", str(job), "--system", "--as", "nobody-at-all")
    assert (unknown.code, unknown.err) == (64, 'outlast: there is no user "nobody-at-all" here\n')


def test_a_long_grace_is_warned_of(manager: UserManager, write: Write) -> None:
    """A user's units have two minutes at a shutdown: a job that wants more is told."""
    long = write(name="long", stop={"grace": "10m"})
    assert "at a shutdown a user's units have 120 s in all" in manager.outlast("systemd", str(long)).err
    assert manager.outlast("systemd", str(long), "--system").err == ""
