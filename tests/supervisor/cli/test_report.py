"""`outlast report`: a page that stands for itself, of whatever is there, and nothing of the run is touched."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.supervisor.cli.records import journal, status_of

from outlast_jobs import events
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.commands import invoke

HOSTILE = '<script>alert("&")</script>'
VOID = frozenset({"meta", "circle", "rect", "line", "polyline"})


class Page(HTMLParser):
    """A page's elements; every one that is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def metrics_of(run: RunDirectory, attempt: int, restored: int, last: int, *odd: str) -> None:
    """An attempt's steps, from the one that it restored on."""
    name = f"step-{restored:09d}.a{attempt - 1:04d}" if restored else None
    head = {"schema": "outlast.metrics/1", "attempt": attempt, "restored_step": restored, "restored": name}
    lines = [{"step": n, "loss": 100 / n, "t": 1000.0 * attempt + n} for n in range(restored + 1, last + 1)]
    run.metrics.mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in (head, *lines))
    run.attempt_metrics(attempt).write_text(text + "".join(f"{line}\n" for line in odd))


def written(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> Page:
    assert invoke(["report", str(run.path), "-o", "-"]) == 0
    return Page(capsys.readouterr().out)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """All below a folder, with size and time of change."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def test_the_page_needs_nothing_and_believes_nothing(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """No script, no address, all closed; what a worker, a host or a damaged file says is text and never markup."""
    status_of(run, name=HOSTILE, warnings=[HOSTILE], loss=HOSTILE)
    journal(
        run,
        (events.SUPERVISOR_STARTED, {"identity": HOSTILE, "version": HOSTILE}),
        (events.ATTEMPT_STARTED, {"attempt": 1, "resume": HOSTILE, "cause": HOSTILE, "host": HOSTILE}),
        (events.ATTEMPT_ATTACHED, {"attempt": 1, "restored": HOSTILE}),
        (events.ATTEMPT_ENDED, {"attempt": 1, "outcome": HOSTILE, "reason": HOSTILE}),
        (events.QUARANTINED, {"generation": HOSTILE, "verdict": HOSTILE, "reason": HOSTILE}),
        (events.AUDIT, {"text": HOSTILE, "compared": 1, "equal": False}),
    )
    (run.journal / f"0099-{HOSTILE.replace('/', '')}.jsonl").write_text("{broken\n")
    metrics_of(run, 1, 0, 9, '{"step": 10, "loss": "nan"}', '{"step": "x"}', HOSTILE)
    page = written(run, capsys)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [value for name, value in page.attributes if name.startswith("on") or name in ("href", "src")]
    assert not any("url(" in text or "@import" in text for text in page.text)
    assert sum(HOSTILE in text for text in page.text) >= 4
    assert any("1 of the losses are not finite, the first at step 10" in text for text in page.text)


@pytest.mark.parametrize("what", ["nothing", "a start", "no steps", "torn"])
def test_what_is_missing_is_left_out(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """A run without attempts, one that only started, a bare command, and torn files each make a page."""
    started = (events.ATTEMPT_STARTED, {"attempt": 1})
    if what != "nothing":
        journal(run, (events.SUPERVISOR_STARTED, {}), started)
    if what == "no steps":
        journal(run, started, (events.ATTEMPT_ENDED, {"attempt": 1, "outcome": "done"}))
    if what == "torn":
        run.metrics.mkdir(exist_ok=True)
        run.attempt_metrics(1).write_bytes(b'{"schema": "outlast.met\n\0\0\0{"step": 1, "loss"')
    page = written(run, capsys)
    assert ("svg" in page.tags) == (what != "nothing")
    assert "polyline" not in page.tags
    assert not any("goodput" in text for text in page.text)


def test_lost_steps_are_told_apart_from_those_that_count(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an attempt cut at step 30 and taken up at 20, ten steps are lost: in the figures and as a curve of its own."""
    journal(
        run,
        (events.SUPERVISOR_STARTED, {}),
        (events.ATTEMPT_STARTED, {"attempt": 1}),
        (events.ATTEMPT_ENDED, {"attempt": 1, "outcome": "crashed", "reason": "exit code 1"}),
        (events.ATTEMPT_STARTED, {"attempt": 2, "resume": "step-000000020.a0001"}),
    )
    metrics_of(run, 1, 0, 30)
    metrics_of(run, 2, 20, 40)
    assert invoke(["report", "tiny", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == {"kept": 40, "lost": 10}
    assert [(one["kept"], one["lost"]) for one in found["attempts"]] == [(20, 10), (20, 0)]
    assert found["attempts"][0]["outcome"] == "crashed"
    page = written(run, capsys)
    assert page.tags.count("polyline") == 2
    assert [name for name, value in page.attributes if value == "resumed"] == ["class"]
    assert any("exit code 1" in text for text in page.text)


def test_it_goes_where_it_is_told_to_and_leaves_the_run_alone(
    run: RunDirectory, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NAME.html here, or a named file, replaced as a whole; no file of the run is made, changed or removed."""
    status_of(run, name="tiny")
    journal(run, (events.SUPERVISOR_STARTED, {}), (events.ATTEMPT_STARTED, {"attempt": 1}))
    metrics_of(run, 1, 0, 5)
    before = tree(run.path)
    (folder / "tiny.html").write_text("an older one")
    assert invoke(["report"]) == 0
    assert "tiny.html: 1 attempt, " in capsys.readouterr().err
    assert (folder / "tiny.html").read_text().startswith("<!DOCTYPE html>")
    assert invoke(["report", "tiny", "-q", "-o", "other.html"]) == 0
    assert capsys.readouterr() == ("", "")
    assert sorted(path.name for path in folder.iterdir()) == ["other.html", "runs", "tiny.html"]
    assert tree(run.path) == before


def test_what_can_not_be_written_is_said_with_a_cure(
    run: RunDirectory, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder, a missing folder and an unknown run end with 64, one line each, and nothing is left behind."""
    (folder / "taken").mkdir()
    for words, says in (
        (["tiny", "-o", "taken"], '"taken" is a folder'),
        (["tiny", "-o", "no/such/place.html"], "No such file or directory; name another place with --output"),
        (["nowhere"], '"nowhere" is no run directory'),
    ):
        assert invoke(["report", *words]) == 64
        said = capsys.readouterr().err
        assert says in said
        assert len(said.splitlines()) == 1
    assert sorted(os.listdir(folder)) == ["runs", "taken"]


def test_many_attempts_make_a_page_of_bounded_size(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has the newest 300 of 1,000 attempts and says so; the picture has all of them."""
    journal(
        run,
        (events.SUPERVISOR_STARTED, {}),
        *(
            record
            for number in range(1, 1001)
            for record in (
                (events.ATTEMPT_STARTED, {"attempt": number}),
                (events.ATTEMPT_ENDED, {"attempt": number, "outcome": "crashed"}),
            )
        ),
    )
    page = written(run, capsys)
    assert page.tags.count("g") == 1000
    assert any(re.search(r"700 earlier attempts", text) for text in page.text)


def test_a_pipe_is_written_to_and_a_link_is_followed(run: RunDirectory, tmp_path: Path) -> None:
    """What stands at the place of the page is never replaced by one: as root, /dev/null would be gone for all."""
    journal(run, (events.DONE, {"attempt": 1, "command_digest": "c"}))
    pipe, target, link = tmp_path / "pipe", tmp_path / "target.html", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(target)
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as reading:  # so that neither end waits
        assert invoke(["report", "--output", str(pipe)]) == 0
        assert reading.read(9) == b"<!DOCTYPE"
    assert pipe.is_fifo()
    for _ in range(2):
        assert invoke(["report", "--output", str(link)]) == 0
    assert link.is_symlink()
    assert target.read_text().startswith("<!DOCTYPE")
