"""Properties of the table of measurements: what fails is named in it, and what was not run keeps what it had."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    module = importlib.import_module("results")
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "RESULTS.md")
    return module


SCRIPT = """
import sys
sys.path.insert(0, {bench!r})
import goals
print("a line of the script", sys.argv[1:])
goals.ratio("a save", 2.0, 4.0, "torch.save", unit="ms", at_most={bound})
goals.value("memory", 31.0, "MB", at_most=30)
sys.exit({code})
"""


def parts(results: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: tuple[float, int]) -> None:
    """Parts with these names, whose scripts hold a ratio against a bound and end with a code."""
    made = []
    for name, (bound, code) in scripts.items():
        (folder / f"{name}.py").write_text(SCRIPT.format(bench=str(BENCH), bound=bound, code=code))
        made.append(results.Part(name, (f"{name}.py",), 1))
    monkeypatch.setattr(results, "PARTS", tuple(made))


def carried_out(results: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["results.py", *words])
    return int(results.main())


def test_each_goal_stands_in_the_table_with_its_verdict(
    results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure within its bound is met, one beyond it is not, in the file and in the terminal."""
    parts(results, tmp_path, monkeypatch, save=(0.6, 0))
    assert carried_out(results, monkeypatch) == 0
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| save | a save | 2.00 ms | torch.save, 4.00 ms | 0.50 | at most 0.6 | met |" in text
    assert "| save | memory | 31.0 MB |  |  | at most 30 MB | NOT MET |" in text
    assert "a line of the script []" in text.partition("## save")[2]
    said = capsys.readouterr().out
    assert said.count("NOT MET") == 2  # where the part ran, and in the table at the end
    assert "save 0 s" in said or "save 1 s" in said


def test_a_part_that_fails_says_so_and_the_others_go_on(
    results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failing part found before its end stays, its row says how it ended, and the next part is run."""
    parts(results, tmp_path, monkeypatch, first=(1, 3), second=(1, 0))
    assert carried_out(results, monkeypatch) == 1
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| first | all of it |  |  |  |  | not measured: ended with 3 |" in text
    assert "| first | a save | 2.00 ms |" in text
    assert "**Failed: ended with 3.**" in text
    assert "| second | a save | 2.00 ms |" in text


def test_a_part_that_is_not_run_keeps_what_it_found_last(
    results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running one part replaces its rows and its section, and leaves the others as they are."""
    parts(results, tmp_path, monkeypatch, first=(1, 0), second=(1, 0))
    carried_out(results, monkeypatch)
    before = results.kept((tmp_path / "RESULTS.md").read_text())
    parts(results, tmp_path, monkeypatch, first=(0.1, 0), second=(0.1, 0))
    assert carried_out(results, monkeypatch, "--only", "sec") == 0
    after = results.kept((tmp_path / "RESULTS.md").read_text())
    assert after.rows["first"] == before.rows["first"]
    assert after.sections["first"] == before.sections["first"]
    assert [line.endswith("| NOT MET |") for line in after.rows["second"]] == [True, True]
    assert results.written(after) == (tmp_path / "RESULTS.md").read_text()


def test_a_quick_run_keeps_nothing(results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of shortened runs never stand in the file."""
    parts(results, tmp_path, monkeypatch, first=(1, 0))
    assert carried_out(results, monkeypatch, "--quick") == 0
    assert not (tmp_path / "RESULTS.md").exists()


def test_a_part_that_does_not_end_is_ended(
    results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its minutes a part is killed with what it started, and called late."""
    (tmp_path / "slow.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    monkeypatch.setattr(results, "PARTS", (results.Part("slow", ("slow.py",), 2 / 60),))
    assert carried_out(results, monkeypatch) == 1
    text = (tmp_path / "RESULTS.md").read_text()
    assert "not measured: not done after" in text
    pid = int(text.partition("```\n")[2].split()[0])
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_figure_that_is_not_there_is_named(
    results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A contender that could not be run stands in the table of saves with the reason, and so does its goal."""
    saves = importlib.import_module("saves")
    records = tmp_path / "records"
    monkeypatch.setenv("OUTLAST_BENCH_GOALS", str(records))
    line = {"call": 0.01, "stall": 0.01, "lost": 0.01, "durable": 0.2}
    answers = {"outlast": ([], "no such module"), "outlast, blocking": ([], "it says nothing")}
    monkeypatch.setattr(saves, "measure", lambda name, *_, **__: answers.get(name, ([line], "")))
    found = saves.table(300, 1, 1, (*saves.LIMITS, *saves.PEERS, *saves.OURS))
    saves.hold(300, found)
    said = capsys.readouterr().out
    assert "outlast                        not measured: no such module" in said
    told = [json.loads(text) for text in records.read_text().splitlines()]
    assert len(told) == 7
    assert all(goal["verdict"].startswith("not measured: ") for goal in told)


def test_nothing_is_held_against_noise(
    results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure that is below zero by noise makes no ratio, and so no verdict."""
    goals = importlib.import_module("goals")
    goals.ratio("lost a save", 20.0, -3.0, "DCP process", unit="ms", at_most=1.0)
    said = capsys.readouterr().out
    assert "not measured: DCP process is within the noise, -3.00 ms" in said


def test_a_goal_beyond_the_machine_says_what_it_hangs_on(
    results: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a part that no way can do without is beyond the bound, the verdict names it; else it is no excuse."""
    goals = importlib.import_module("goals")

    def verdict(ours: float, least: float) -> str:
        limit = goals.Least(least, "sha256")
        goals.ratio("a save", ours, 10.0, "torch.save", unit="ms", at_most=0.5, least=limit)
        return capsys.readouterr().out.rpartition("at most 0.5: ")[2].strip()

    assert verdict(7.0, 6.0) == "NOT MET; sha256 alone: 0.60"
    assert verdict(7.0, 4.0) == "NOT MET"
    assert verdict(4.0, 6.0) == "met"


def test_a_part_that_ran_and_has_no_goal_is_not_called_unmeasured(results: Any) -> None:
    """Only a part of which nothing is kept counts as not run."""
    name, other = results.PARTS[0].name, results.PARTS[1].name
    text = results.written(results.Kept({}, {name: "its figures"}))
    assert f"| {name} | | | | | | it has no goal; see below |" in text
    assert f"| {other} | | | | | | not measured: it was not run |" in text


def test_one_slow_step_beside_a_save_changes_nothing_of_what_it_cost(
    results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lost is the call, and what the steps after it took longer than steps around them usually do."""
    monkeypatch.syspath_prepend(str(BENCH / "saves"))
    lost = importlib.import_module("measure").lost
    quiet = lost(0.01, [0.12, 0.11, 0.1], [0.1] * 12)
    assert quiet == pytest.approx(0.04)
    assert lost(0.01, [0.12, 0.11, 0.1], [0.1] * 11 + [2.0]) == pytest.approx(quiet)
    assert lost(0.0, [0.2] * 3, [0.2] * 12) == pytest.approx(0.0)
