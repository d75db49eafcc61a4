"""Handlers set flags, in the trainer's own process only, and let in what was kept blocked across exec."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from outlast_worker.signals import SignalNames, Signals


@pytest.fixture
def signals() -> Iterator[Signals]:
    found = Signals(SignalNames.from_env({}))
    yield found
    found.uninstall()


def _script(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)], capture_output=True, text=True, timeout=60, check=False
    )


def test_fifty_stops_are_one_flag_and_a_count(signals: Signals) -> None:
    """Repeated signals collapse; how many came is kept for the one line that says so."""
    signals.install()
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.stops == 50
    assert not signals.save_requested


def test_a_soft_limit_on_processor_time_is_a_stop(signals: Signals) -> None:
    """SIGXCPU stops the training as SIGTERM does, unless the script has a handler for it, which stays."""
    signals.install()
    os.kill(os.getpid(), signal.SIGXCPU)
    assert (signals.stops, signals.stopped_by) == (1, signal.SIGXCPU)
    signals.uninstall()
    assert signal.getsignal(signal.SIGXCPU) is signal.SIG_DFL
    own: list[int] = []
    before = signal.signal(signal.SIGXCPU, lambda number, frame: own.append(number))
    try:
        signals.install()
        os.kill(os.getpid(), signal.SIGXCPU)
        assert (signals.stops, own) == (1, [signal.SIGXCPU])
    finally:
        signal.signal(signal.SIGXCPU, before)


def test_a_request_is_answered_once(signals: Signals) -> None:
    """A save answers all requests before it, and none after it."""
    signals.install()
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert signals.save_requested
    assert signals.answer_saves() == 3
    assert not signals.save_requested
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signals.save_requested


def test_a_forked_child_takes_no_signal_for_the_trainers(signals: Signals) -> None:
    """A cluster signals every process: in a forked child the handler does nothing, and the child lives."""
    signals.install()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        os._exit(int(bool(signals.stops or signals.save_requested)))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_signal_blocked_across_exec_arrives_at_the_installation() -> None:
    """What the supervisor kept blocked while torch was imported sets the flag and kills nobody."""
    result = _script(
        """
        import os, signal, subprocess, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
        os.kill(os.getpid(), signal.SIGUSR1)
        os.execv(sys.executable, [sys.executable, "-c", '''
        from outlast_worker.signals import Signals
        signals = Signals()
        signals.install()
        print(signals.save_requested, signals.stops)
        '''.replace("\\n        ", "\\n")])
        """
    )
    assert result.stdout == "True 0\n", result.stderr


def test_any_listed_signal_can_be_configured() -> None:
    """The meaning of a signal comes from the environment."""
    names = SignalNames.from_env(
        {"OUTLAST_SIGNAL_SAVE": "SIGUSR2", "OUTLAST_SIGNAL_STOP": "HUP", "OUTLAST_SIGNAL_STACKS": "sigusr1"}
    )
    assert names == SignalNames(signal.SIGUSR2, signal.SIGHUP, signal.SIGUSR1)
    with pytest.raises(ValueError, match='the signal "SIGNONE" of OUTLAST_SIGNAL_SAVE'):
        SignalNames.from_env({"OUTLAST_SIGNAL_SAVE": "SIGNONE"})


def test_the_stacks_signal_dumps_every_thread_and_goes_on() -> None:
    """All stacks on descriptor 2, even where the script replaced sys.stderr, and the process lives."""
    result = _script(
        """
        import io, os, signal, sys, threading
        from outlast_worker.signals import Signals
        sys.stderr = io.StringIO()
        Signals().install()
        leave = threading.Event()
        def waiting_thread(): leave.wait()
        thread = threading.Thread(target=waiting_thread)
        thread.start()
        os.kill(os.getpid(), signal.SIGUSR2)
        leave.set()
        thread.join()
        print("alive")
        """
    )
    assert result.stdout == "alive\n"
    assert "waiting_thread" in result.stderr
    assert "most recent call first" in result.stderr


def test_handlers_that_were_replaced_are_taken_back(signals: Signals) -> None:
    """What a script or library sets for our signals after us is replaced, named, and replaced only where it differs."""
    before = signal.getsignal(signal.SIGTERM)
    assert signals.retake() == []
    signals.install()
    assert signals.retake() == []
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert sorted(signals.retake()) == ["SIGTERM", "SIGUSR1"]
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (signals.stops, signals.save_requested) == (1, True)
    assert signals.retake() == []
    signals.uninstall()
    assert signal.getsignal(signal.SIGTERM) == before
    assert signals.retake() == []


def test_a_thread_of_the_script_takes_no_handler_back(signals: Signals) -> None:
    """Only the main thread can set one: in another nothing is named as taken back, and nothing raised."""
    signals.install()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(signals.retake()))
    thread.start()
    thread.join()
    assert found == [[]]
    assert signals.retake() == ["SIGTERM"]


def test_uninstalled_a_late_save_signal_is_harmless() -> None:
    """After the training the stop signal has its old action, and a late save signal does not kill."""
    result = _script(
        """
        import os, signal
        from outlast_worker.signals import Signals
        signals = Signals()
        signals.install()
        signals.uninstall()
        os.kill(os.getpid(), signal.SIGUSR1)
        print("alive", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    assert result.stdout == "alive\n"
    assert result.returncode == -signal.SIGTERM


def test_installing_in_a_thread_is_refused_with_the_reason(signals: Signals) -> None:
    """Python delivers signals to the main thread only, and the error says so."""
    errors: list[str] = []

    def install() -> None:
        try:
            signals.install()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert errors
    assert "main thread" in errors[0]


AT_EXIT = """
import atexit, signal
from outlast_worker.signals import Signals
def last():  # registered first, so called last
    print([signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGUSR1, signal.SIGTERM)], flush=True)
atexit.register(last)
Signals().install()
raise RuntimeError("as it happens")
"""


def test_a_signal_in_the_exit_of_a_script_that_failed_does_not_change_how_it_ends() -> None:
    """A save asked for while a failing script ends must not turn its exit code 1 into a death by USR1."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert done.stdout == "[True, True]\n"
    assert done.returncode == 1
