"""`outlast demo` runs elsewhere and answers by its exit code; `outlast verify` reads single files too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast_jobs.sidecar import publish
from outlast_supervisor.commands import invoke


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was executed, first the exit code that it shall have."""
    seen: list[Any] = [0]

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        seen.append(words)
        return subprocess.CompletedProcess(words, seen[0])

    monkeypatch.setattr(subprocess, "run", run)
    return seen


@pytest.mark.parametrize(("ended", "answer"), [(0, 0), (1, 1), (2, 2), (-9, 2), (3, 2)])
def test_the_demonstration_answers_for_its_child(child: list[Any], ended: int, answer: int) -> None:
    """0 and 1 are the child's answers; whatever else it ends with, a signal too, is undecided."""
    child[0] = ended
    assert invoke(["demo"]) == answer


def test_all_that_is_asked_reaches_the_child(child: list[Any]) -> None:
    """Every option is handed on, to the module of that name in this interpreter."""
    words = ["--steps", "9", "--cut", "4", "--strategy", "size", "--ckpt-every-seconds", "1.5", "--json"]
    assert invoke(["demo", *words, "--ckpt-every-steps", "2", "--keep-last", "1", "--output", "d"]) == 0
    (command,) = child[1:]
    assert command[:3] == [sys.executable, "-m", "outlast_worker.demo"]
    pairs = dict(zip(command[4::2], command[5::2], strict=True))
    assert command[3] == "--json"
    assert pairs == {
        "--output": "d",
        "--steps": "9",
        "--cut": "4",
        "--seed": "11",
        "--shards": "3",
        "--strategy": "size",
        "--ckpt-every-steps": "2",
        "--ckpt-every-seconds": "1.5",
        "--keep-last": "1",
    }


@pytest.mark.parametrize(
    "words", [["--steps", "1"], ["--strategy", "no"], ["--cut", "x"], ["--none"], ["extra"]]
)
def test_wrong_options_are_usage(child: list[Any], words: list[str]) -> None:
    """Values that can't be are found before anything runs."""
    assert invoke(["demo", *words]) == 64
    assert child[1:] == []


def test_single_files_are_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of single-file checkpoints is read whole, the corrupt one is named, and one file can be asked for."""
    for step in (1, 2, 3):
        publish(tmp_path / f"step-00000000{step}.a0001.pt", b"state" * step)
    publish(tmp_path / "ckpt.pt", b"state")
    assert invoke(["verify", str(tmp_path)]) == 0
    (tmp_path / "step-000000002.a0001.pt").write_bytes(b"xxxxx" * 2)
    capsys.readouterr()
    assert invoke(["verify", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["verified", "step-000000003.a0001.pt"],
        ["corrupt", "step-000000002.a0001.pt"],
        ["verified", "step-000000001.a0001.pt"],
        ["verified", "ckpt.pt"],
    ]
    assert invoke(["verify", "--quick", str(tmp_path)]) == 0
    capsys.readouterr()
    assert invoke(["verify", "--json", str(tmp_path / "step-000000002.a0001.pt")]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["step"], found["attempt"]) == ("corrupt", 2, 1)
    assert invoke(["verify", "--quarantine", str(tmp_path)]) == 64
