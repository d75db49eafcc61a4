"""A run directory that others may write in: links, pipes and devices in the place of its files and folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import OUTLAST, Run
from tests.faults.mutations import odd_files
from tests.faults.scale import scaled, told

from outlast_jobs import durable
from outlast_jobs.beneath import open_append
from outlast_jobs.claim import claim
from outlast_jobs.contract import ExitCode
from outlast_jobs.durable import write_file
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.look import Verdict, look
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sealer import Sealer

JOB = {
    "command": ["sh", "-c", "exit 0"],
    "signals": "native",
    "restart": {"without_progress": 2, "waiting": "0s", "backoff": "1ms..1ms"},
}
FOLDERS = ("checkpoints", "requests", "journal", "logs", "metrics")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def elsewhere(folder: Path) -> Path:
    """Another run of the same user, with an unfinished save, trash and a request."""
    other = folder / "victim"
    for name in FOLDERS:
        (other / name / ".writing-0001" / "step-000000001.a0001").mkdir(parents=True)
        (other / name / ".trash-x").mkdir()
        (other / name / ".trash-x" / "precious").write_bytes(b"x")
        (other / name / "attempt-0001.log").write_bytes(b"x")
        os.utime(other / name / ".trash-x", (1, 1))
    return other


@pytest.mark.parametrize("name", FOLDERS)
def test_a_run_whose_folder_is_a_link_is_not_started_and_touches_nothing(
    tmp_path: Path, runs: list[Run], name: str
) -> None:
    """Through a link another run would be fenced, swept and written into: exit 73, with the cure."""
    run = Run(tmp_path / "job", JOB)
    runs.append(run)
    other = elsewhere(tmp_path)
    before = contents(other)
    run.directory.path.mkdir()
    (run.directory.path / name).symlink_to(other / name)
    ended = run.cli("run", str(run.job_file))
    assert ended.code == ExitCode.CANNOT_WRITE, ended
    assert "symbolic link" in ended.err
    assert "run_dir" in ended.err
    assert contents(other) == before


@pytest.mark.parametrize(
    "name", ["lock", "alive", "status.json", "job.yaml", "run.json", "logs/hooks.log", "requests/x"]
)
def test_no_odd_file_in_a_file_s_place_hangs_a_start_or_leads_out(
    tmp_path: Path, runs: list[Run], name: str
) -> None:
    """Whatever lies where a file of the run belongs: `outlast run` ends soon and changes nothing outside."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret\n")
    kinds = odd_files(secret)
    kinds.pop("ten gigabytes")  # readers are tried with that by themselves
    usual = ("a pipe", "a link to a secret", "a folder")
    for kind in scaled((usual[len(name) % 3],), tuple(kinds)):
        run = Run(tmp_path / kind.replace(" ", "-"), JOB)
        runs.append(run)
        place = run.directory.path / name
        place.parent.mkdir(parents=True)
        kinds[kind](place)
        ended = run.cli("run", str(run.job_file))
        assert ended.code in (0, 65, 70, 73), (kind, ended)
        assert "Traceback" not in ended.err, (kind, ended)
        assert secret.read_bytes() == b"secret\n", kind


def test_a_log_or_metrics_file_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe in its place would hold whoever opens it for writing for ever."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    for path in (run.attempt_log(1), run.attempt_metrics(1)):
        os.mkfifo(path)
        with pytest.raises(OSError):
            open_append(run.path, path)
    (run.path / "proof").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError, match="out of the run directory"):
        open_append(run.path, run.path / "proof" / "x")
    assert not (tmp_path / "x").exists()


def test_numbers_that_no_life_can_follow_hold_no_run_up(tmp_path: Path, runs: list[Run]) -> None:
    """Names with numbers of many digits, which anybody may put there, are nobody's."""
    run = Run(tmp_path / "job", JOB)
    runs.append(run)
    made = run.directory
    made.create()
    nines = "9" * 18
    (made.journal / f"{nines}-x.jsonl").touch()
    (made.journal / f"{'9' * 60}-x.jsonl").touch()
    (made.logs / f"attempt-{'9' * 60}.log").touch()
    (made.checkpoints / f".writing-{nines}").mkdir()
    (made.checkpoints / f"step-{'9' * 60}.a{'9' * 60}").mkdir()
    ended = run.cli("run", str(run.job_file))
    assert ended.code == 0, ended


# In a process of its own, since a thread would wait for the one that it is to disturb. renameat2(2) with
# RENAME_EXCHANGE swaps two names in one instant, so that one of the two is always there.
_SWAPPER = """
import ctypes, os, sys, time
place, link, stop = (os.fsencode(word) for word in sys.argv[1:])
libc = ctypes.CDLL(None)
swap = lambda: libc.renameat2(-100, place, -100, link, ctypes.c_uint(2))
number = 0
print("ready", flush=True)
while not os.path.exists(stop):
    number += 1
    if swap():
        sys.exit("no exchange of names here")
    until = time.perf_counter() + 0.0001
    while time.perf_counter() < until:
        pass
if os.path.islink(place):
    swap()
print(number)
"""


def race(place: Path, other: Path, act: Callable[[int], None], rounds: int) -> int:
    """Carry something out so often beside a process that swaps a folder for a link; returns the swaps."""
    link, stop = place.with_name("link"), place.with_name("stop")
    link.symlink_to(other)
    command = [sys.executable, "-c", _SWAPPER, str(place), str(link), str(stop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as swapper:
        pipe = swapper.stdout
        assert pipe is not None
        assert pipe.readline() == "ready\n"
        for number in range(rounds):
            with contextlib.suppress(OSError, RuntimeError):
                act(number)
        stop.touch()
        number = int(pipe.readline())
    link.unlink()
    stop.unlink()
    assert number > 10
    return number


ROUNDS = scaled(300, 5_000)


@pytest.mark.parametrize("level", ["checkpoints", "writing", "step"])
def test_no_swapped_folder_leads_a_save_out_of_the_run(tmp_path: Path, level: str) -> None:
    """While each folder above a generation's files is swapped for a link in turn, no file is written elsewhere."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    claim(run.checkpoints, 1)
    writing = run.checkpoints / ".writing-0001"
    outside = tmp_path / "outside"
    step = "step-000000001.a0001"
    (outside / ".writing-0001" / step).mkdir(parents=True)
    (outside / step).mkdir()
    places = {"checkpoints": run.checkpoints, "writing": writing, "step": writing / step}
    sealer = Sealer(run.checkpoints, 1, GenerationName(1, 1))
    sealer.begin()
    before = contents(outside)

    def save(number: int) -> None:
        sealer.add(f"model-{number}.pt", b"x")

    swaps = race(places[level], outside, save, ROUNDS)
    assert contents(outside) == before
    told(f"swaps of the folder at {level} during {ROUNDS} writes", swaps)


def test_no_swapped_folder_leads_a_deletion_out_of_the_run(tmp_path: Path) -> None:
    """While the checkpoints are swapped for a link to another run, claims and deletions take nothing of that."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    outside = tmp_path / "outside"
    for name in (".writing-0001", "step-000000001.a0001", ".trash-1"):
        (outside / name).mkdir(parents=True)
        (outside / name / "precious").write_bytes(b"x")
    before = contents(outside)

    def delete(number: int) -> None:
        path = run.checkpoints / "step-000000001.a0001"
        with contextlib.suppress(OSError):
            path.mkdir()
        if number % 2:
            durable.remove_tree(path, run.checkpoints)
        else:
            durable.delete_tree(run.checkpoints / ".trash-1")
        run.sweep()

    swaps = race(run.checkpoints, outside, delete, ROUNDS)
    after = contents(outside)
    assert {name: data for name, data in after.items() if data} == {n: d for n, d in before.items() if d}
    told("swaps beside deletions", swaps)


def test_no_swapped_file_leads_a_verification_out_of_the_run(tmp_path: Path) -> None:
    """A member of a generation that is swapped for a link to a file of the same bytes is refused, or was the file."""
    folder = tmp_path / "step-000000001.a0001"
    claim(tmp_path, 1)
    sealer = Sealer(tmp_path, 1, GenerationName(1, 1))
    sealer.begin()
    sealer.add("meta.pt", b"x" * 4096)
    sealer.seal(Index(run_id="a" * 32, attempt=1, step=1, healthy=True))
    outside = tmp_path / "outside"
    outside.write_bytes(b"y" * 4096)
    seen: set[str] = set()

    def verify(number: int) -> None:
        finding = look(folder, None, full=True)
        seen.add(finding.verdict)
        wrong = "has sha256" in finding.reason
        assert not wrong, "it read the other file"

    swaps = race(folder / "meta.pt", outside, verify, ROUNDS)
    assert seen <= {Verdict.VERIFIED, Verdict.CORRUPT, Verdict.INCOMPLETE}
    told(f"swaps of a file during {ROUNDS} looks", swaps)


def test_a_device_under_a_generation_s_name_is_refused(tmp_path: Path) -> None:
    """A pipe, a device, a socket or a link as a generation, or as its index, is corrupt, and is not read."""
    for kind, put in odd_files(tmp_path / "secret").items():
        if kind in ("ten gigabytes", "a closed file", "a folder"):
            continue
        folder = tmp_path / "step-000000002.a0001"
        put(folder)
        assert look(folder, None, full=True).verdict in (Verdict.CORRUPT, Verdict.INCOMPLETE), kind
        folder.unlink()
        folder.mkdir()
        put(folder / "index.json.sha256")
        assert look(folder, None, full=True).verdict in (Verdict.CORRUPT, Verdict.INCOMPLETE), kind
        shutil.rmtree(folder)


def test_a_job_s_name_cannot_lead_out(tmp_path: Path) -> None:
    """The name of a job becomes a folder's name, and is refused where it could be more."""
    names = ("../x", "/x", "a/b", "..", ".", "", "a\\0b", "x" * 300, "a\\nb")
    for name in scaled(names[:4], names):
        (tmp_path / "job.yaml").write_text(f'name: "{name}"\ncommand: [sh, -c, "exit 0"]\n')
        found = subprocess.run([OUTLAST, "run", "job.yaml"], cwd=tmp_path, capture_output=True, text=True)
        assert found.returncode == 64, (name, found)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"]


def test_a_pickle_with_code_is_data_or_refused(tmp_path: Path) -> None:
    """Bytes that run code where Python's own loader reads them run none here, whatever file they lie in."""
    marker = tmp_path / "it-ran"
    # pickle protocol 0, as the pickle module documents it
    bad = b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."
    claim(tmp_path, 1)
    sealer = Sealer(tmp_path, 1, GenerationName(1, 1))
    sealer.begin()
    sealer.add("meta.pt", bad)
    folder = sealer.seal(Index(run_id="a" * 32, attempt=1, step=1, healthy=True))
    code = (
        "import sys; from pathlib import Path; from outlast_worker import read_generation\n"
        "try: read_generation(Path(sys.argv[1]))\n"
        "except ValueError as error: print(type(error).__name__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "Corrupt"
    assert not marker.exists()
    write_file(tmp_path / "control.pkl", bad)
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))",
            str(tmp_path / "control.pkl"),
        ],
        check=True,
    )
    assert marker.exists(), "the bytes are harmless, so this shows nothing"
