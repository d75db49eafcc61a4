"""Notifications: only the attempt's own processes are heard, and nothing that they send can harm."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import wait_until

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor import events as ev
from outlast_supervisor.intake import Intake, Trainers
from outlast_supervisor.notify import Message, NotifySocket
from outlast_supervisor.processes import carries, send

RUN_ID = "a" * 32


@pytest.fixture
def intake() -> Iterator[Intake]:
    """An intake that expects attempt 3."""
    selector = selectors.DefaultSelector()
    made = Intake(Trainers(selector), lambda text: None)
    made.expect(RUN_ID, 3)
    yield made
    selector.close()


@pytest.fixture
def trainer() -> Iterator[int]:
    """A process of attempt 3, by its environment."""
    env = {**os.environ, "OUTLAST_RUN_ID": RUN_ID, "OUTLAST_ATTEMPT": "3"}
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env)
    wait_until(lambda: carries(process.pid, b"OUTLAST_ATTEMPT=3"), 60, "exec")
    yield process.pid
    process.kill()
    process.wait()


def test_a_trainer_is_known_by_the_kernel_not_by_its_words(intake: Intake, trainer: int) -> None:
    """READY attaches the process that sent it, whatever pid the message claims."""
    found = intake.events(
        Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "1", "MAINPID": "1", "X_OUTLAST_STEP": "7"})
    )
    identity = ProcessIdentity.of(trainer)
    assert identity is not None
    assert found == [ev.Attached(identity, 0, 7, None)]


def test_strangers_are_not_heard(intake: Intake) -> None:
    """A process without the attempt's marker changes nothing, whatever it sends."""
    assert (
        intake.events(
            Message(os.getpid(), {"READY": "1", "X_OUTLAST_PROTOCOL": "1", "X_OUTLAST_EXIT": "done"})
        )
        == []
    )


@pytest.mark.parametrize(("env", "heard"), [({}, True), ({"OUTLAST_ATTEMPT": "2"}, False)])
def test_a_trainer_whose_environment_is_overwritten_is_heard(
    intake: Intake, env: dict[str, str], heard: bool
) -> None:
    """A descendant without any marker is of this attempt, as one that set its title; one of another is not."""
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **env}) as process:
        wait_until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes(), 60, "exec")
        found = intake.events(Message(process.pid, {"READY": "1", "X_OUTLAST_PROTOCOL": "1"}))
        process.kill()
    assert bool(found) is heard


def test_another_attempts_process_is_not_heard(intake: Intake, trainer: int) -> None:
    """What an older attempt left behind cannot speak for the new one."""
    intake.expect(RUN_ID, 4)
    assert intake.events(Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "1"})) == []


def test_a_lost_ready_is_no_dead_worker(intake: Intake, trainer: int) -> None:
    """The first step from a trainer whose READY was lost attaches it."""
    found = intake.events(Message(trainer, {"X_OUTLAST_STEP": "8", "X_OUTLAST_PHASE": "train"}))
    assert isinstance(found[0], ev.Attached)
    assert found[0].step is None
    assert found[1] == ev.Reported(8, None, None, "train")


def test_a_last_word_reports_no_step(intake: Intake, trainer: int) -> None:
    """The step of a last word may be the restored one: nothing was trained, and nothing went back."""
    intake.events(Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "1", "X_OUTLAST_STEP": "100"}))
    assert intake.events(Message(trainer, {"X_OUTLAST_EXIT": "done", "X_OUTLAST_STEP": "100"})) == [
        ev.Said("done")
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"X_OUTLAST_STEP": "-1"},
        {"X_OUTLAST_STEP": "9" * 400},
        {"X_OUTLAST_STEP": "1e9"},
        {"X_OUTLAST_SEALED": "../../etc", "X_OUTLAST_STEP": "x"},
        {"X_OUTLAST_BAD": "{" * 2000},
        {"X_OUTLAST_BAD": "[]"},
        {"X_OUTLAST_FAILURE": '{"step": "many", "passing": 3}'},
        {"X_OUTLAST_DRIFT": "not json"},
        {"X_OUTLAST_SECONDS": "nan", "X_OUTLAST_SEALED": "g", "X_OUTLAST_STEP": "1"},
        {"": "", "unknown": "x"},
    ],
)
def test_no_message_raises(intake: Intake, trainer: int, fields: dict[str, str]) -> None:
    """Whatever a trainer sends is read or passed over."""
    intake.events(Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "1"}))
    assert all(isinstance(event, ev.Event) for event in intake.events(Message(trainer, fields)))


def test_a_seal_tells_what_the_save_cost_where_that_is_less_than_its_time(
    intake: Intake, trainer: int
) -> None:
    """Without the field all of the save's time was lost to the training; with it that much."""
    intake.events(Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "1"}))
    fields = {
        "X_OUTLAST_STEP": "8",
        "X_OUTLAST_SEALED": "g",
        "X_OUTLAST_SECONDS": "2.5",
        "X_OUTLAST_BYTES": "9",
    }
    assert intake.events(Message(trainer, fields)) == [ev.Sealed("g", 8, 9, 2.5, None)]
    cheap = {**fields, "X_OUTLAST_COST": "0.25"}
    assert intake.events(Message(trainer, cheap)) == [ev.Sealed("g", 8, 9, 2.5, 0.25)]


def test_another_protocol_is_refused_by_name(intake: Intake, trainer: int) -> None:
    """A library of another version ends the attempt with both versions named."""
    (refused,) = intake.events(Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "9"}))
    assert isinstance(refused, ev.Refused)
    assert "protocol 9" in refused.reason


def test_the_socket_tells_senders_by_their_credentials() -> None:
    """The pid of a message is the sender's; garbage is counted and passed over, a flood comes in portions."""
    listening = NotifySocket()
    try:
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.sendto(b"\xff\xfe", listening.path)
        sender.sendto(b"READY=1\nX=a=b\n", listening.path)
        messages = listening.receive()
        assert messages == [Message(os.getpid(), {"READY": "1", "X": "a=b"})]
        assert listening.dropped == 1
        sender.sendto(
            b"X_OUTLAST_STEP=1\nX=" + b"x" * 9000, listening.path
        )  # what is cut may say something else
        assert listening.receive() == []
        assert listening.dropped == 2
        assert len(listening.path) <= 107
        assert os.stat(listening.folder).st_mode & 0o777 == 0o700
        sender.setblocking(False)
        queued = 0
        with contextlib.suppress(BlockingIOError):
            while queued < 100_000:
                sender.sendto(b"X_OUTLAST_STEP=1", listening.path)
                queued += 1
        assert 5 < queued < 100_000
        assert len(listening.receive(at_most=5)) == 5
        sender.close()
    finally:
        listening.close()
    assert not listening.folder.exists()


def test_a_trainers_end_is_told_by_its_pidfd(trainer: int) -> None:
    """A pinned trainer that dies makes its descriptor readable, and its pid is never signalled again."""
    selector = selectors.DefaultSelector()
    trainers = Trainers(selector)
    identity = ProcessIdentity.of(trainer)
    assert identity is not None
    assert trainers.attach(identity)
    assert not trainers.attach(identity)
    os.kill(trainer, signal.SIGKILL)
    (ready,) = selector.select(timeout=60)
    assert ready[0].data == ("trainer", trainer)
    assert trainers.gone(trainer) == identity
    assert trainers.by_pid == {}
    selector.close()


def test_a_crowd_of_trainers_leaves_descriptors_for_other_things() -> None:
    """However many attach, few descriptors are taken; the ends of all of them are seen."""
    selector = selectors.DefaultSelector()
    trainers = Trainers(selector)
    before = len(os.listdir("/proc/self/fd"))
    crowd = [subprocess.Popen(["sleep", "1000"]) for _ in range(80)]
    for process in crowd:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        assert trainers.attach(identity)
    assert len(os.listdir("/proc/self/fd")) - before <= 64
    for process in crowd:
        process.kill()
        process.wait()
    gone = {key.data[1] for key, _ in selector.select(timeout=60)} | set(trainers.unpinned_gone())
    assert gone == {process.pid for process in crowd}
    trainers.clear()
    selector.close()


def test_the_words_of_the_worker_count_when_it_is_dead(intake: Intake, trainer: int) -> None:
    """What the first process sent before it died is heard after, and it was a trainer."""
    identity = ProcessIdentity.of(trainer)
    assert identity is not None
    intake.know(identity)
    os.kill(trainer, signal.SIGKILL)
    wait_until(lambda: ProcessIdentity.of(trainer) is None, 60, "its end")
    found = intake.events(
        Message(
            trainer,
            {"READY": "1", "X_OUTLAST_PROTOCOL": "1", "X_OUTLAST_STEP": "0", "X_OUTLAST_EXIT": "done"},
        )
    )
    assert found == [ev.Attached(identity, 0, 0, None), ev.TrainerGone(identity), ev.Said("done")]
    assert intake.events(Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "1"})) == []


def test_a_pid_that_another_process_has_now_speaks_for_that_one(intake: Intake, trainer: int) -> None:
    """A process is known by its start time too: the next owner of its pid is looked at anew."""
    identity = ProcessIdentity.of(trainer)
    assert identity is not None
    intake.know(ProcessIdentity(trainer, identity.start - 1, identity.boot))
    assert intake.events(Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "1"})) == [
        ev.Attached(identity, 0, 0, None)
    ]


def test_trainers_are_known_without_pidfds(
    intake: Intake, trainer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a kernel that has no pidfds a trainer attaches all the same, and its end is seen when looked for."""

    def lacking(pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such system call")

    monkeypatch.setattr("outlast_supervisor.linux.pidfd_open", lacking)
    identity = ProcessIdentity.of(trainer)
    assert identity is not None
    trainers = intake._trainers
    assert intake.events(Message(trainer, {"READY": "1", "X_OUTLAST_PROTOCOL": "1"})) == [
        ev.Attached(identity, 0, 0, None)
    ]
    assert trainers.unpinned_gone() == []
    assert send(identity, signal.SIGKILL)
    wait_until(lambda: trainers.unpinned_gone() == [trainer], 60, "its end")
    assert trainers.gone(trainer) == identity
