"""The recipe in the documentation is a program, and what it promises holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import outlast_worker

RECIPE = Path(__file__).parents[2] / "docs" / "recipe.md"


def test_the_recipe_resumes_bit_for_bit(tmp_path: Path) -> None:
    """The script of the recipe, ended in mid-epoch and started again, ends with the loss of a run never ended."""
    script = re.search(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    assert script is not None
    (tmp_path / "train.py").write_text(script[1])

    def train(folder: str, steps: int) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = [sys.executable, "../train.py", str(steps)]
        return subprocess.run(
            command, cwd=tmp_path / folder, capture_output=True, text=True, check=True
        ).stdout

    assert train("cut", 13).startswith("13 ")
    assert train("cut", 24) == train("whole", 24)


def test_every_function_of_the_recipe_is_there() -> None:
    """Each function that the recipe names is exported, documented, and found by dir()."""
    named = set(re.findall(r"^\| `(\w+)[(`]", RECIPE.read_text(), re.MULTILINE))
    named |= set(re.findall(r", `(\w+)\(", RECIPE.read_text()))
    assert len(named) >= 10
    for name in named:
        assert name in outlast_worker.__all__
        assert name in dir(outlast_worker)
        assert getattr(outlast_worker, name).__doc__
