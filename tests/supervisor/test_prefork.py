"""The process that is forked ahead: what becomes of it is what a fork at that moment would be, or it is not used."""

from __future__ import annotations

import fcntl
import os
import resource
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import gone
from tests.waiting import wait_until

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor import prefork, spawn
from outlast_supervisor.prefork import Answers, Prefork


class Desk:
    """A Prefork, what it said, and the little of a loop that it needs."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.said: list[str] = []
        self.told: list[tuple[str, Any]] = []
        self.prefork = Prefork(self._attend, self._neglect, lambda text, level: self.said.append(text))

    def _attend(self, fd: int, callback: Callable[[], None]) -> None:
        self.selector.register(fd, selectors.EVENT_READ, callback)

    def _neglect(self, fd: int) -> None:
        if fd in self.selector.get_map():
            self.selector.unregister(fd)

    def make(self) -> int:
        """Have one made; its pid, once it waits."""
        self.prefork.tick(time.monotonic(), running=True)
        assert self.prefork._child is not None
        pid = self.prefork._child.pid
        wait_until(
            lambda: os.readlink(f"/proc/{pid}/fd/0") == os.devnull and _state(pid) == "S", 30, "its wait"
        )
        return pid

    def take(self, order: spawn.Order, log_fd: int) -> bool:
        return self.prefork.take(
            order,
            log_fd,
            Answers(
                went=lambda worker: self.told.append(("went", worker)),
                failed=lambda error: self.told.append(("failed", error)),
                refused=lambda why: self.told.append(("refused", why)),
            ),
        )

    def hear(self, seconds: float = 30.0) -> tuple[str, Any]:
        """What became of the order."""

        def look() -> list[tuple[str, Any]]:
            for key, _ in self.selector.select(0.01):
                key.data()
            return self.told

        return wait_until(look, seconds, "an answer")[0]

    def reap(self, pid: int) -> bool:
        """Wait for the end of a child, and tell of it; whether it was the one that waits."""
        _, status = os.waitpid(pid, 0)
        return self.prefork.ended(pid, os.waitstatus_to_exitcode(status))


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.prefork.close()
    for pid in list(made.prefork._dying):
        made.reap(pid)
    made.selector.close()


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    yield fd
    os.close(fd)


def order(tmp_path: Path, alive: int, *command: str, **more: Any) -> spawn.Order:
    words = {
        "command": command,
        "workdir": str(tmp_path),
        "env": {"PATH": os.environ["PATH"], "ODD": "\udc80 \n=", "EMPTY": ""},
        "log": tmp_path / "logs" / "log",
        "header": "",
        "alive_fd": alive,
        "blocked": frozenset({signal.SIGUSR1}),
        "death": signal.SIGTERM,
        **more,
    }
    return spawn.Order(**words)


def open_log(tmp_path: Path) -> int:
    return os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)


FACTS = """
import ctypes, json, os, resource, signal
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))
names = ("SigP", "SigB", "SigI", "SigC", "Shd", "Umask", "Cap", "Threads")
status = [line for line in open("/proc/self/status") if line.startswith(names)]
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
files = sorted(os.readlink(link) for link in links if os.path.lexists(link))
flags = [os.get_inheritable(fd) for fd in (0, 1, 2)]
cmdline, environ = (open(f"/proc/self/{name}", "rb").read().hex() for name in ("cmdline", "environ"))
leads = [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()]
limits = [resource.getrlimit(n) for n in range(16)]
print(json.dumps([death.value, status, files, flags, cmdline, environ, leads, limits, os.getcwd(), os.getppid()]))
"""


def test_what_it_becomes_is_what_a_new_process_would_be(
    desk: Desk, tmp_path: Path, alive: int, request: pytest.FixtureRequest
) -> None:
    """Of all that a program sees of itself nothing shows whether it was forked ahead, nor what came meanwhile."""
    made = order(tmp_path, alive, sys.executable, "-S", "-E", "-c", FACTS)
    log = open_log(tmp_path)
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # as under nohup, or behind `trap '' USR2; exec`
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR2, before))
    waits = desk.make()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        os.kill(waits, number)  # what a cluster sends to all is not for one that is nobody yet
    assert desk.take(made, log)
    what, worker = desk.hear()
    assert (what, worker.pid) == ("went", waits)
    assert not desk.prefork.theirs(waits)
    assert os.waitpid(waits, 0)[1] == 0
    assert os.waitpid(spawn.launch(made, log).pid, 0)[1] == 0
    os.close(log)
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("command", "workdir"),
    [
        ("./not-there", ""),
        ("not-in-path", ""),
        ("./file", ""),
        ("./folder", ""),
        ("./no-program", ""),
        ("in-a-file", ""),
        ("locked", ""),
        ("true", "not-there"),
        ("true", "file"),
        ("true", "folder\0"),
        ("tr\0ue", ""),
    ],
)
def test_a_command_that_cannot_be_executed_fails_as_ever(
    desk: Desk, tmp_path: Path, alive: int, command: str, workdir: str
) -> None:
    """The error and what it is about are those of a new process; an order that nobody can follow goes to one."""
    for name in ("file", "no-program", "locked"):
        (tmp_path / name).write_text("\0no program")
    (tmp_path / "no-program").chmod(0o700)
    (tmp_path / "folder").mkdir()
    path = f"{tmp_path}/file:{tmp_path}:{tmp_path}/not-there"
    made = order(tmp_path, alive, command, workdir=str(tmp_path / workdir), env={"PATH": path})
    log = open_log(tmp_path)
    with pytest.raises((OSError, ValueError)) as expected:
        spawn.launch(made, log)
    pid = desk.make()
    try:
        taken = desk.take(made, log)
    finally:
        os.close(log)
    if isinstance(expected.value, OSError):
        what, error = desk.hear()
        assert what == "failed"
        assert (error.errno, error.strerror, error.filename) == (
            expected.value.errno,
            expected.value.strerror,
            expected.value.filename,
        )
        assert desk.reap(pid)
        assert len(desk.told) == 1
    else:
        assert taken
        for key, _ in desk.selector.select(30):
            key.data()
        assert desk.reap(pid)
        assert [what for what, _ in desk.told] == ["refused"]


def test_it_holds_nothing_of_its_supervisor(desk: Desk, tmp_path: Path) -> None:
    """A lock that the supervisor has is free when that gives it up, while the process that it forked waits."""
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pid = desk.make()
    os.close(lock)
    with open(tmp_path / "lock") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kinds = [stat.S_IFMT(os.stat(f"/proc/{pid}/fd/{fd}").st_mode) for fd in os.listdir(f"/proc/{pid}/fd")]
    assert sorted(kinds) == sorted([stat.S_IFSOCK, *3 * [stat.S_IFCHR]])
    assert os.getsid(pid) == pid


def test_no_signal_but_kill_ends_it(desk: Desk) -> None:
    """Whatever a cluster sends to all, it waits on; no handler of its supervisor's runs in it."""
    pid = desk.make()
    for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
        os.kill(pid, number)
    assert _state(pid) == "S"
    os.kill(pid, signal.SIGKILL)
    assert desk.reap(pid)


def test_one_that_is_killed_is_made_anew(desk: Desk, tmp_path: Path, alive: int) -> None:
    """Its death is told and harms nothing; the next one comes after a moment, and doubled after each death."""
    first = desk.make()
    os.kill(first, signal.SIGKILL)
    assert desk.reap(first)
    assert not desk.take(order(tmp_path, alive, "true"), 0)
    now = time.monotonic()
    desk.prefork.tick(now, running=True)
    assert desk.prefork._child is None
    desk.prefork.tick(now + prefork.FIRST_WAIT, running=False)
    assert desk.prefork._child is None, "there is no worker to have a next one"
    desk.prefork.tick(now + prefork.FIRST_WAIT, running=True)
    second = desk.make()
    assert second != first
    os.kill(second, signal.SIGKILL)
    assert desk.reap(second)
    desk.prefork.tick(time.monotonic() + 1.5 * prefork.FIRST_WAIT, running=True)
    assert desk.prefork._child is None


def test_one_that_died_unseen_is_not_used(desk: Desk, tmp_path: Path, alive: int) -> None:
    """An order that finds nobody is told at once, so that a new process is forked."""
    pid = desk.make()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not desk.take(order(tmp_path, alive, "true"), alive)
    assert desk.reap(pid)
    assert desk.told == []


def test_one_that_somebody_stopped_is_ended_before_another_is_forked(
    desk: Desk, tmp_path: Path, alive: int
) -> None:
    """It is given time, then killed, and only when it is gone another may start; one that is not stopped may go on."""
    pid = desk.make()
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _state(pid) == "T", 30, "its stop")
    assert desk.take(order(tmp_path, alive, "touch", "ran"), alive)
    due = desk.prefork.next_due()
    assert due is not None
    desk.prefork.tick(due - 0.01, running=False)
    assert desk.prefork._child is not None
    desk.prefork.tick(due, running=False)
    assert desk.told == []
    assert desk.reap(pid)
    assert [what for what, _ in desk.told] == ["refused"]
    assert not (tmp_path / "ran").exists()


def test_a_slow_exec_is_not_given_up(desk: Desk, tmp_path: Path, alive: int, monkeypatch: Any) -> None:
    """One that does not answer, and is not stopped, waits for a file system: it is not killed."""
    monkeypatch.setattr(spawn, "FORK_AHEAD", 30.0)
    pid = desk.make()
    assert desk.take(order(tmp_path, alive, "true", start_at=time.monotonic() + 0.5), alive)
    due = desk.prefork.next_due()
    assert due is not None
    desk.prefork.tick(due, running=False)
    assert desk.hear()[0] == "went"
    assert os.waitpid(pid, 0)[1] == 0


def _nice() -> Callable[[], object]:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if os.geteuid() != 0 or before > 18:
        pytest.skip("a nice value cannot be taken back")
    os.setpriority(os.PRIO_PROCESS, 0, before + 1)
    return lambda: os.setpriority(os.PRIO_PROCESS, 0, before)


def _limit() -> Callable[[], object]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]) if before[0] else (4096, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_CORE, before)


def _processors() -> Callable[[], object]:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one processor")
    os.sched_setaffinity(0, {min(before)})
    return lambda: os.sched_setaffinity(0, before)


@pytest.mark.parametrize("change", [_nice, _limit, _processors])
def test_one_that_would_inherit_something_else_is_not_used(
    desk: Desk, tmp_path: Path, alive: int, change: Callable[[], Callable[[], object]]
) -> None:
    """What was changed of the supervisor since the fork counts for the worker: a new process is forked."""
    pid = desk.make()
    undo = change()
    try:
        assert not desk.take(order(tmp_path, alive, "true"), alive)
    finally:
        undo()
    assert desk.reap(pid)
    assert desk.told == []


def test_it_is_not_executed_before_its_time(desk: Desk, tmp_path: Path, alive: int, monkeypatch: Any) -> None:
    """With the order come what is to be done and when."""
    monkeypatch.setattr(spawn, "FORK_AHEAD", 5.0)
    pid = desk.make()
    start_at = time.monotonic() + 0.5
    assert desk.take(order(tmp_path, alive, "true", start_at=start_at), alive)
    assert desk.hear() == ("went", ProcessIdentity.of(pid) or desk.told[0][1])
    assert time.monotonic() >= start_at
    assert os.waitpid(pid, 0)[1] == 0


_WAITS = """
import os, sys, time
from outlast_supervisor import spawn
from outlast_supervisor.prefork import Answers, Prefork
spawn.FORK_AHEAD = 1000.0
one = Prefork(lambda fd, callback: None, lambda fd: None, lambda text, level: None)
one.tick(time.monotonic(), running=True)
if sys.argv[1] == "told":
    null = os.open(os.devnull, os.O_RDWR)
    place = {"PATH": os.environ["PATH"]}, None, "", null, frozenset()
    order = spawn.Order(["touch", "ran"], sys.argv[2], *place, start_at=time.monotonic() + 1000)
    one.take(order, null, Answers(*3 * [print]))
print(one._child.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("when", ["waiting", "told"])
def test_it_dies_with_its_supervisor(tmp_path: Path, when: str) -> None:
    """A supervisor that is killed leaves neither the process nor, where it had its place already, a worker."""
    words = [sys.executable, "-c", _WAITS, when, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if when == "told":
            wait_until(lambda: os.readlink(f"/proc/{pid}/cwd") == str(tmp_path), 30, "its last wait")
        parent.kill()
    wait_until(lambda: gone(pid), 30, "its end")
    assert not (tmp_path / "ran").exists()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


FORKS_BESIDE_AN_IMPORT = """
import os, sys, threading
from outlast_supervisor.prefork import Prefork
importing, forked = threading.Event(), threading.Event()
class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "logging" and threading.current_thread() is not threading.main_thread():
            importing.set()
            forked.wait(1)  # as long as the other thread would fork beside this
sys.meta_path.insert(0, Slow)
assert "logging" not in sys.modules
# by then it has what comes after a fork, and did not have what comes before
os.register_at_fork(before=lambda: (forked.set(), helper.join(20)))
helper = threading.Thread(target=__import__, args=("logging",))
helper.start(), importing.wait(20)
desk = Prefork(lambda fd, call: None, lambda fd: None, print)
desk._fork()
desk.close()
"""


def test_a_fork_beside_a_helper_that_imports_is_quiet() -> None:
    """What a module does before a fork is done for each of which something is done after it."""
    ended = subprocess.run([sys.executable, "-c", FORKS_BESIDE_AN_IMPORT], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
