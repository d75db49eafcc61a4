"""The fingerprint of an environment and of the code, and what is said of differences."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from outlast_worker.fingerprint import SAME, code_identity, compare, fingerprint, verdict


def test_the_same_environment_is_bit_exact() -> None:
    """Two fingerprints of one process do not differ, also through JSON, and the verdict says so."""
    one = fingerprint()
    two = json.loads(json.dumps(fingerprint()))
    assert compare(one, two) == []
    assert verdict(compare(one, two)) == SAME == "bit-exact expected"


def test_it_names_what_bits_hang_on() -> None:
    """Versions, machine, CPU, BLAS, threads, devices, determinism flags and hash seed are all there."""
    keys = {"python", "torch", "numpy", "outlast", "cpu", "cpu_capability", "blas", "threads", "devices"}
    found = fingerprint()
    assert keys | {"determinism", "hash_seed", "machine", "interop_threads"} <= found.keys()
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["cpu"]


def test_another_thread_count_is_said_plainly() -> None:
    """Each difference is a short sentence with both values."""
    old = fingerprint()
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        differences = compare(old, fingerprint())
    finally:
        torch.set_num_threads(before)
    assert differences == [f"threads {before}→{before + 1}"]
    assert verdict(differences) == f"bit-exact not expected: threads {before}→{before + 1}"


def test_flags_and_hash_seed_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A determinism flag that was switched and a hash seed that was set are named."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    old = fingerprint()
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not before
    try:
        differences = compare(old, fingerprint())
    finally:
        torch.backends.cudnn.benchmark = before
    assert any(text.startswith("cudnn.benchmark ") for text in differences)
    assert "PYTHONHASHSEED random→0" in differences


def test_fingerprints_of_other_versions_are_compared_too() -> None:
    """Entries that only one side knows are differences, not errors."""
    assert compare({}, {"threads": 1}) == ["threads none→1"]
    assert compare({"determinism": {"x": True}}, {"determinism": {}}) == ["x on→none"]
    assert compare({"determinism": {"x": True}}, {}) != []
    assert compare({"devices": ["A", "B"]}, {"devices": []}) == ["devices A, B→none"]


def test_code_is_known_by_content_and_commit(tmp_path: Path) -> None:
    """The identity of code is the script's sha256 and the commit, without any path."""
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    plain = code_identity(script)
    assert set(plain) == {"script", "sha256"}
    assert str(tmp_path) not in json.dumps(plain)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert code_identity(script) == {**plain, "git_commit": head}
    subprocess.run([*git, "pack-refs", "--all"], check=True)
    assert code_identity(str(script))["git_commit"] == head
    subprocess.run([*git, "worktree", "add", "-q", str(tmp_path / "w")], check=True)
    assert code_identity(tmp_path / "w" / "train.py") == {**plain, "git_commit": head}
    script.write_text("print(2)\n")
    assert code_identity(script)["sha256"] != plain["sha256"]


def test_code_that_is_not_a_file_has_no_digest(tmp_path: Path) -> None:
    """An interactive session or a script that is gone gives what is known, and no error."""
    assert code_identity(None) == {}
    assert code_identity(tmp_path / "gone.py") == {"script": "gone.py"}


def test_a_broken_repository_is_no_error(tmp_path: Path) -> None:
    """A .git folder that can't be understood only means that the commit isn't known."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".git").mkdir()
    assert "git_commit" not in code_identity(tmp_path / "train.py")
    (tmp_path / ".git" / "HEAD").write_text("ref: ../../etc/passwd\n")
    assert "git_commit" not in code_identity(tmp_path / "train.py")
    (tmp_path / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert "git_commit" not in code_identity(tmp_path / "train.py")
