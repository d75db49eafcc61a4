"""Whatever lies in a file that outlast reads: no crash, no hang, little memory, and an error that has a name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.readers import make
from tests.faults.scale import scaled, told

NUMBER = scaled(120, 6_000)
CHILD = Path(__file__).with_name("fuzz_child.py")
NAMES = [
    "job file", "resolved job", "run.json", "index", "index with its digest", "index digest", "generation's file",
    "journal", "metrics", "log", "status", "request", "lock", "lease",
    "single file", "its digest", "any JSON", "notification",
]  # fmt: skip


def test_every_reader_is_attacked(tmp_path: Path) -> None:
    """The list below names all readers."""
    assert sorted(make(tmp_path)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_content_breaks_a_reader(tmp_path: Path, name: str) -> None:
    """Damaged, twisted and hostile content, and odd files, bring a value or a named error, in bounds."""
    found = subprocess.run(
        [sys.executable, str(CHILD), name, str(NUMBER), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=scaled(120, 1500),
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-5000:]
    told(f"inputs for the reader of: {name}", int(found.stdout.split()[-1]))
