"""The text of a unit: every word arrives as it was, and the exit codes mean what they say."""

from __future__ import annotations

import pytest

from outlast_jobs.contract import ExitCode
from outlast_jobs.jobfile import Job, Signals, Stop
from outlast_supervisor.schedulers.systemd import (
    MARK,
    Unit,
    check_name,
    job_line,
    job_of,
    stop_seconds,
    unit_name,
    unit_text,
)

COMMAND = ("/venv/bin/python", "-m", "outlast_supervisor.cli", "run", "/home/me/job.yaml")


def job(**more: object) -> Job:
    fields = {
        "name": "rings",
        "command": ("true",),
        "workdir": "/w",
        "run_dir": "/r",
        "source": "/j/job.yaml",
    }
    return Job(**{**fields, **more})  # type: ignore[arg-type]


def values(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def value(text: str, key: str) -> str:
    (found,) = values(text, key)
    return found


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("rings", "outlast-rings.service"),
        ("my-job_2.x", "outlast-my-job_2.x.service"),
        ("a b", r"outlast-a\x20b.service"),
        ("at@home", r"outlast-at\x40home.service"),
        ("50%", r"outlast-50\x25.service"),
        ("back\\slash", r"outlast-back\x5cslash.service"),
        ("ü", r"outlast-\xc3\xbc.service"),
    ],
)
def test_a_jobs_name_becomes_a_units_name(name: str, unit: str) -> None:
    """What a unit's name can hold stays readable; the rest is escaped byte by byte."""
    assert unit_name(name) == unit


def test_long_names_are_cut_and_stay_apart() -> None:
    """A name that systemd would refuse for its length is cut, and two of them do not become the same unit."""
    first, second = unit_name("ü" * 99), unit_name("ü" * 98 + "u")
    assert first != second
    assert max(len(first), len(second)) <= 255


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("plain-1_2.x/y=z:,@+", "plain-1_2.x/y=z:,@+"),
        ("", '""'),
        ("two words", '"two words"'),
        ('"', r'"\""'),
        ("it's", '"it\'s"'),
        ("a\\b", r'"a\\b"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ("${X}", '"$${X}"'),
        (";", '";"'),
        ("a\nb\tc", r'"a\x0ab\x09c"'),
        ("\x7f", r'"\x7f"'),
        ("größe", '"größe"'),
    ],
)
def test_words_are_quoted(word: str, written: str) -> None:
    """No word of the command is changed by systemd's own meaning of quotes, dollars, per cents and blanks."""
    text = unit_text(Unit(job(), (*COMMAND, "--", word)))
    assert value(text, "ExecStart") == f"{' '.join(COMMAND)} -- {written}"


def test_a_dollar_in_the_programs_path() -> None:
    """Variables are not expanded in a program's path, so with a dollar in it they are turned off for all."""
    text = unit_text(Unit(job(), ("/a$b/python", "$c")))
    assert value(text, "ExecStart") == ':"/a$b/python" "$c"'


def test_what_no_unit_can_hold_is_refused() -> None:
    """A path that is not UTF-8 is refused with its name, not dropped by systemd with a warning in its log."""
    with pytest.raises(ValueError, match=r"valid UTF-8; rename"):
        unit_text(Unit(job(), (*COMMAND[:-1], "/home/\udcff/job.yaml")))


def test_environment() -> None:
    """A dollar means nothing there, and a per cent does."""
    text = unit_text(Unit(job(), COMMAND, environment={"PATH": "/a b:/c$d:/e%f", "LANG": "C.UTF-8"}))
    assert values(text, "Environment") == ['"PATH=/a b:/c$d:/e%%f"', "LANG=C.UTF-8"]


def test_every_exit_code_is_decided() -> None:
    """Done stays done, what needs a person waits for one, and everything else is started again."""
    text = unit_text(Unit(job(), COMMAND))
    prevented = {int(code) for code in value(text, "RestartPreventExitStatus").split()}
    forced = set(value(text, "RestartForceExitStatus").split())
    assert value(text, "Restart") == "on-failure"
    assert prevented == {ExitCode.USAGE, ExitCode.UNUSABLE, ExitCode.HELD, ExitCode.CANNOT_WRITE}
    # these end a supervisor that has no handlers yet, and systemd takes them for success
    assert forced == {str(int(ExitCode.SAVED)), "SIGTERM", "SIGINT", "SIGHUP"}
    # a stop ends with 75, and is no failure
    assert value(text, "SuccessExitStatus") == str(int(ExitCode.SAVED))
    rest = set(ExitCode) - prevented - {ExitCode.SAVED, ExitCode.DONE}
    assert rest == {ExitCode.BUSY}, "tried again until the other supervisor is gone"


def test_a_stop_may_take_what_the_job_allows() -> None:
    """The job's grace, SIGKILL and the last acts fit into the time that systemd gives a stop."""
    text = unit_text(Unit(job(stop=Stop(grace=100.5)), COMMAND))
    assert int(value(text, "TimeoutStopSec")) == stop_seconds(100.5)
    assert stop_seconds(100.5) >= 100.5 + 2 + 10 + 10


def test_the_jobs_own_signals() -> None:
    """A job with another stop signal is stopped by that one; where SIGHUP has a meaning, it reloads nothing."""
    text = unit_text(Unit(job(signals=Signals(stop="SIGINT", save="SIGHUP")), COMMAND))
    assert value(text, "KillSignal") == value(text, "WatchdogSignal") == "SIGINT"
    assert "kill -s INT" in value(text, "ExecStop")
    assert not values(text, "ExecReload")
    assert values(unit_text(Unit(job(), COMMAND)), "ExecReload")


def test_a_system_unit() -> None:
    """It runs as somebody, after the files and the network are there, at boot."""
    text = unit_text(Unit(job(), COMMAND, system=True, user="me"))
    assert value(text, "User") == "me"
    assert value(text, "WantedBy") == "multi-user.target"
    assert value(text, "RequiresMountsFor") == "/j/job.yaml /w /r /venv/bin/python"
    own = unit_text(Unit(job(), COMMAND))
    assert value(own, "WantedBy") == "default.target"
    assert not values(own, "User") + values(own, "RequiresMountsFor")


def test_a_name_does_not_end_a_line() -> None:
    """Whatever the job is called, the description is one line without specifiers."""
    text = unit_text(Unit(job(name="50%\\"), COMMAND))
    assert value(text, "Description") == "training 50%%\\ (outlast)"


def test_a_unit_knows_its_job() -> None:
    """It is seen of a unit whether it is ours, and for which job."""
    odd = job(source='/j/ü "x"/job.yaml')
    text = unit_text(Unit(odd, COMMAND))
    assert text.startswith(MARK)
    assert job_of(text) == job_line(odd) != job_line(job())
    assert job_of("[Service]\nExecStart=true\n") is None


@pytest.mark.parametrize("name", ["a/b", "a b", "", "ü", "x" * 201, "a@b"])
def test_names_that_systemd_would_refuse(name: str) -> None:
    """A unit's name that a person gives is checked before anything is written."""
    with pytest.raises(ValueError, match="no name of a unit"):
        check_name(name)


def test_a_name_with_and_without_its_suffix() -> None:
    """Both ways to write a unit's name mean the same."""
    assert check_name("x") == check_name("x.service") == "x.service"
