"""Loader processes: no signal of a cluster reaches them, and none outlives the trainer, however it ends."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import wait_until

from outlast_worker import loaders
from outlast_worker.batches import batches

SCRIPT = Path(__file__).parent / "scripts" / "loader_train.py"
METHODS = ("fork", "spawn", "forkserver")
AT_ONCE = 4.5
"""Seconds for an interpreter's end on busy cores: for a loader that does not end by itself torch waits 5."""


class Trainer:
    """The training script in a session of its own, its output read line by line."""

    def __init__(self, method: str, leaving: str, folder: Path, **env: str) -> None:
        self.errors = folder / "stderr"
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, method, leaving],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | env,
                text=True,
                start_new_session=True,
            )

    def word(self, expected: str) -> list[str]:
        """The rest of the next line, which must begin with the word."""
        line = self.process.stdout.readline().split() if self.process.stdout else []
        if line[:1] != [expected]:
            pytest.fail(f'"{expected}" was due, {line} came; stderr: {self.errors.read_text()}')
        return line[1:]

    def left(self) -> list[int]:
        """Processes of the session that still live."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def end(self) -> None:
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[object]:
    begun: list[Trainer] = []

    def begin(method: str, leaving: str, **env: str) -> Trainer:
        begun.append(Trainer(method, leaving, tmp_path, **env))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


@pytest.mark.parametrize("method", METHODS)
def test_group_signals(method: str, trainer: type[Trainer]) -> None:
    """TERM, INT and USR1 to the whole group, from before it has loaders: the trainer alone takes notice."""
    run = trainer(method, "signals")
    run.word("starting")
    reading = os.dup(run.process.stdout.fileno()) if run.process.stdout else -1
    os.set_blocking(reading, False)
    wait_until(lambda: _shower(run, reading), 60, "the first batch under a shower of signals")
    os.set_blocking(reading, True)
    os.close(reading)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.killpg(run.process.pid, number)
    assert run.word("same") == ["True"]
    left_at = float(run.word("leaving")[0])
    assert run.process.wait(60) == 75
    assert time.monotonic() - left_at < AT_ONCE
    assert run.errors.read_text() == ""
    wait_until(lambda: not run.left(), 60, "the helpers of multiprocessing to end")


def _shower(run: Trainer, reading: int) -> bool:
    """One signal of each kind to the group; whether the trainer has trained by now."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        os.killpg(run.process.pid, number)
    try:
        return b"trained" in os.read(reading, 4096)
    except BlockingIOError:
        return False


@pytest.mark.parametrize("method", METHODS)
def test_trainer_killed(method: str, trainer: type[Trainer]) -> None:
    """A trainer that is killed leaves no loader, no fork server and no resource tracker behind for long."""
    run = trainer(method, "hang")
    run.word("starting")
    assert len(run.word("trained")) == 2
    assert len(run.left()) >= 3
    run.process.kill()
    wait_until(lambda: not run.left(), 60, "everything of the trainer's to end")


def test_what_a_killed_trainer_left_is_removed_by_the_next(trainer: type[Trainer]) -> None:
    """The folder of a killed trainer's sockets is removed by the run's next attempt, and that one's at its end."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:

        def attempt(number: int, leaving: str, run: str = "a" * 32) -> Trainer:
            begun = trainer("fork", leaving, TMPDIR=folder, OUTLAST_RUN_ID=run, OUTLAST_ATTEMPT=str(number))
            begun.word("starting")
            begun.word("trained")
            return begun

        for number in (1, 2):
            killed = attempt(number, "hang")
            [left] = Path(folder).glob("pymp-*")
            assert left.name.startswith(f"pymp-aaaaaaaa-{number}-")
            killed.process.kill()
            wait_until(lambda killed=killed: not killed.left(), 60, "everything of the trainer's to end")
        other = attempt(1, "hang", run="b" * 32)  # another run's is left alone
        assert len(list(Path(folder).glob("pymp-*"))) == 2
        attempt(3, "saved").process.wait(30)
        [left] = Path(folder).glob("pymp-*")
        assert left.name.startswith("pymp-bbbbbbbb-1-")
        other.process.kill()


def test_trainer_killed_while_loaders_start(trainer: type[Trainer]) -> None:
    """Loaders whose trainer is killed while they are being born end as soon as they can look."""
    run = trainer("spawn", "hang")
    run.word("starting")
    wait_until(lambda: len(run.left()) >= 2, 30, "the first helper to start")
    run.process.kill()
    wait_until(lambda: not run.left(), 60, "everything of the trainer's to end")


@pytest.mark.parametrize(("leaving", "code"), [("saved", 75), ("raised", 1)])
def test_leaving(leaving: str, code: int, trainer: type[Trainer]) -> None:
    """However the script is left, its loaders are gone with it, at once, without a word or a file."""
    with tempfile.TemporaryDirectory() as temporary:  # not tmp_path, too long for the name of a socket
        _leaves(trainer("fork", leaving, TMPDIR=temporary), code)
        assert os.listdir(temporary) == []


def _leaves(run: Trainer, code: int) -> None:
    run.word("starting")
    run.word("trained")
    left_at = float(run.word("leaving")[0])
    assert run.process.wait(60) == code
    assert time.monotonic() - left_at < AT_ONCE
    assert run.left() == []
    said = run.errors.read_text()
    assert said.strip().splitlines()[-1:] == (["LookupError: told to"] if code == 1 else [])
    assert "DataLoader" not in said


@pytest.mark.parametrize(
    ("leaving", "said"), [("collected", ["0"]), ("forked", ["2", "True"]), ("thread", ["2"])]
)
def test_ends_with_its_owner(leaving: str, said: list[str], trainer: type[Trainer]) -> None:
    """Loaders end with the last reference to them, not with a forked child or the thread that made them."""
    run = trainer("fork", leaving)
    run.word("starting")
    run.word("trained")
    assert run.word("left" if leaving == "collected" else "alive") == said
    left_at = float(run.word("leaving")[0])
    assert run.process.wait(60) == 0
    assert time.monotonic() - left_at < AT_ONCE
    assert run.errors.read_text() == ""


def test_configured_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signals that the supervisor names are shielded too, whichever they are, but those that can't be."""
    monkeypatch.setenv("OUTLAST_SIGNAL_SAVE", "SIGALRM")
    monkeypatch.setenv("OUTLAST_SIGNAL_STOP", "winch")
    monkeypatch.setenv("OUTLAST_SIGNAL_STACKS", "SIGKILL")
    blocked = loaders.shielded_signals()
    assert {signal.SIGALRM, signal.SIGWINCH, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1} <= blocked
    assert signal.SIGKILL not in blocked


@pytest.mark.parametrize("method", METHODS)
def test_mask_is_given_back(method: str) -> None:
    """Inside the shield the signals are blocked, helpers started or not; behind it all is as before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with loaders.shielded(method):
        assert loaders.shielded_signals() <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


class Unblocked:
    """Something in the dataset lets the signals in again, as a resource tracker does, and one comes."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        os.kill(os.getpid(), signal.SIGTERM)
        return index


def test_a_loader_ignores_what_comes_through_the_shield() -> None:
    """A signal to the whole group ends no loader process that has unblocked it: the trainer needs its batches."""
    data = batches(Unblocked(), 2, workers=1, shuffle=False, start_method="fork")
    try:
        assert [found.tolist() for found in itertools.islice(data, 2)] == [[0, 1], [2, 3]]
    finally:
        data.close()


@pytest.mark.filterwarnings("ignore:.*pickle")  # which torch since 2.13 warns of as well
def test_failing_start_leaves_nothing() -> None:
    """Where a loader process can't be started, those that were are ended, and the reason comes out."""

    class Local:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises((AttributeError, TypeError)):
        iter(batches(Local(), 2, workers=2, start_method="spawn"))
    assert multiprocessing.active_children() == []
