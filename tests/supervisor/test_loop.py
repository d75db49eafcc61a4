"""The loop: no signal is lost, none counts twice, nothing that was posted waits for something else."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.shortage import no_more_files

from outlast_jobs.cadence import SavePolicy
from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.restart import Policy as RestartPolicy
from outlast_supervisor import events as ev
from outlast_supervisor import linux
from outlast_supervisor.helper import Helper, bounded
from outlast_supervisor.loop import Loop
from outlast_supervisor.policy import Policy
from outlast_supervisor.rules_begin import begin
from outlast_supervisor.schedulers.tools import Outcome, Tools
from outlast_supervisor.states import Finished, Ledger

_TOUCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A loop that listens, in a process whose signals are given back afterwards."""
    before = {number: signal.getsignal(number) for number in _TOUCHED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    made = Loop(Policy(RestartPolicy(), SavePolicy()), lambda text: None)
    yield made
    made.close()
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def until_stopped(loop: Loop, seconds: float = 60.0) -> None:
    """Run it, and fail where nothing stops it."""
    deadline = time.monotonic() + seconds
    loop.dues.append(lambda: deadline)
    idle = loop.on_idle

    def watched(now: float) -> None:
        idle(now)
        loop.stopped = loop.stopped or now >= deadline

    loop.on_idle = watched
    loop.run(*begin(Ledger(), time.monotonic()))
    assert time.monotonic() < deadline, "nothing stopped the loop"


def test_a_flood_of_signals_hides_no_other(loop: Loop) -> None:
    """A TERM that comes after thousands of other signals, all before one look, is heard."""
    heard: list[int] = []

    def on_signal(number: int) -> None:
        heard.append(number)
        loop.stopped = number == signal.SIGTERM

    loop.on_signal = on_signal
    loop.listen({signal.SIGTERM, signal.SIGUSR2})
    for _ in range(3000):
        os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGTERM)
    until_stopped(loop)
    assert heard[-1] == signal.SIGTERM


def test_signals_that_were_blocked_are_heard(loop: Loop) -> None:
    """Whoever started the supervisor with its signals blocked, CHLD above all, does not make it deaf."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _TOUCHED)
    loop.on_signal = lambda number: setattr(loop, "stopped", True)
    loop.listen({signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
    until_stopped(loop)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGCHLD, signal.SIGTERM}


def test_a_signal_after_the_end_kills_nobody(loop: Loop) -> None:
    """What was heeded is ignored once the loop is closed: the exit code is decided by then."""
    loop.listen({signal.SIGTERM, signal.SIGUSR2})
    loop.close()
    loop.close = lambda: None  # type: ignore[method-assign]  # it is
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)] == [signal.SIG_IGN] * 2


def test_what_is_posted_between_two_sleeps_is_decided_before_the_next(loop: Loop) -> None:
    """An event that comes of what is due by the clock does not wait for another event."""
    posted: list[float] = []

    def on_idle(now: float) -> None:
        if isinstance(loop.state, Finished):
            loop.stopped = True
        elif not posted:
            posted.append(now)
            loop.post(ev.Notice("test"))

    loop.on_idle = on_idle
    loop.listen({signal.SIGTERM})
    began = time.monotonic()
    until_stopped(loop)
    assert time.monotonic() - began < 30


_LAST_WORDS = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.connect(sys.argv[1])
sock.send(b"READY=1\\nX_OUTLAST_PROTOCOL=1\\nX_OUTLAST_STEP=0")
sys.stdin.read()
for step in range(1, 9): sock.send(b"X_OUTLAST_STEP=%d" % step)
"""


def test_the_last_words_of_a_trainer_are_heard_before_its_death(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of them wait when its end is told, the step that it reached is known by then."""
    env = {**os.environ, Env.RUN_ID: "a" * 32, Env.ATTEMPT: "1"}
    command = [sys.executable, "-c", _LAST_WORDS, loop.notify.path]
    heard: list[ev.Event] = []

    def dispatch(event: ev.Event) -> None:
        heard.append(event)
        if isinstance(event, ev.Attached):
            trainer.communicate()
        loop.stopped = loop.stopped or isinstance(event, ev.TrainerGone)

    monkeypatch.setattr(loop, "dispatch", dispatch)
    receive = loop.notify.receive
    monkeypatch.setattr(
        loop.notify, "receive", lambda: receive(at_most=3)
    )  # where the kernel's queue is long
    loop.listen({signal.SIGTERM})
    loop.intake.expect("a" * 32, 1)
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as trainer:
        until_stopped(loop)
    assert isinstance(heard[-1], ev.TrainerGone)
    assert [event.step for event in heard if isinstance(event, ev.Reported)] == list(range(1, 9))


def test_what_a_standby_answers_is_heard_before_the_words_of_the_worker_that_it_is(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they come, the loop knows the worker when it speaks."""
    order: list[str] = []
    answer, answers = os.pipe()

    def hear(_: object) -> list[ev.Event]:
        order.append("words")
        loop.stopped = True
        return []

    monkeypatch.setattr(loop.intake, "events", hear)
    loop.listen({signal.SIGTERM})
    loop.attend(answer, lambda: order.append(os.read(answer, 9).decode()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"READY=1", loop.notify.path)
    os.write(answers, b"answer")
    until_stopped(loop)
    os.close(answer)
    os.close(answers)
    assert order == ["answer", "words"]


def test_the_end_of_a_trainer_without_a_descriptor_is_told(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that could not be pinned, as where descriptors ran out, the deaths of children are the sign."""

    def dispatch(event: ev.Event) -> None:
        loop.stopped = loop.stopped or event == ev.TrainerGone(identity)

    monkeypatch.setattr(loop, "dispatch", dispatch)
    loop.listen({signal.SIGTERM})
    with subprocess.Popen(["sleep", "1000"]) as trainer:
        identity = ProcessIdentity.of_child(trainer.pid)
        loop.trainers.by_pid[trainer.pid] = (identity, -1)
        trainer.kill()
        until_stopped(loop)


def test_a_helper_counts_what_is_pending_from_many_threads() -> None:
    """Jobs handed in by several threads at once leave nothing pending when all are done."""
    done = threading.Semaphore(0)
    helper = Helper("test", lambda tag, result, error: done.release())
    threads = [
        threading.Thread(target=lambda: [helper.submit("t", lambda: None) for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(2000):
        assert done.acquire(timeout=60)
    assert helper.pending == 0


def test_what_hangs_is_left_behind() -> None:
    """A write that a dead disk holds delays the end by a bounded time."""
    for_ever = threading.Event()
    assert not bounded(for_ever.wait, 0.01)
    for_ever.set()
    assert bounded(lambda: None, 10)


def test_pidfds_work_where_python_does_not_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds against old headers (conda, uv) lack the calls; the kernel has them."""
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(signal, "pidfd_send_signal")
    fd = linux.pidfd_open(os.getpid())
    try:
        linux.pidfd_send_signal(fd, 0)
    finally:
        os.close(fd)
    with pytest.raises(ProcessLookupError):
        linux.pidfd_open(2**22 + 1)


def test_the_notify_socket_is_made_anew_where_it_was_removed(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its folder is gone, as after a logout, the next worker is given a socket that is listened to."""
    loop.listen({signal.SIGTERM})
    assert loop.reachable() == loop.notify.path
    before = loop.notify.path
    shutil.rmtree(loop.notify.folder)
    path = loop.reachable()
    assert path != before
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"READY=1\nX_OUTLAST_PROTOCOL=1", path)
    assert [message.pid for message in loop.notify.receive()] == [os.getpid()]
    assert loop.selector.get_key(loop.notify).data == ("notify", 0)


def test_a_socket_that_cannot_be_made_anew_now_is_made_later(loop: Loop) -> None:
    """While no file can be opened there is no socket for a worker, and nothing of the loop is lost by that."""
    loop.listen({signal.SIGTERM})
    shutil.rmtree(loop.notify.folder)
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        loop.reachable()
    assert os.path.exists(loop.reachable())
    assert loop.selector.get_key(loop.notify).data == ("notify", 0)


def test_a_tool_that_cannot_be_started_is_an_answer() -> None:
    """While no file can be opened a scheduler's tool gives no answer, and whoever asked is told."""
    heard: list[Outcome] = []
    tools = Tools("mark")
    for but_one in (False, True):
        with no_more_files(but_one=but_one):
            tools.start(["true"], {}, 0.0, 10.0, heard.append)
    assert ["Too many open files" in outcome.err for outcome in heard] == [True, True]
