"""The documents: what the contract names is in them, what they name exists, and their examples do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from outlast_jobs import events, requests, verify
from outlast_jobs.contract import Answer, Env, ExitCode, ExitWord, Field, Phase, Schema
from outlast_jobs.ending import Kind
from outlast_jobs.generation import Index
from outlast_jobs.jobfile import Job
from outlast_jobs.jobfile_fields import Key, keys_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
SAMPLE = ROOT / "tests" / "worker" / "data" / "step-000000007.a0001"
LONGEST = 250  # lines


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The fenced examples in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read(name), re.DOTALL | re.MULTILINE)


def rows(text: str) -> dict[str, list[str]]:
    """Of the tables in a text: each name in a first cell, with the other cells."""
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        first, *rest = re.split(r" \| ", line)
        found.update(dict.fromkeys(re.findall(r"`([^`]+)`", first) or [first], rest))
    return found


def constants(holder: object) -> list[str]:
    return [value for name, value in vars(holder).items() if name.isupper()]


def section_of(document: str, title: str) -> str:
    """What stands under one heading, up to the next one of its level."""
    return document.split(f"\n## {title}\n")[1].split("\n## ")[0]


SECTIONS = {key.name: key.spec.section for key in keys_of(Job).values() if key.spec.section is not None}


def test_every_key_of_the_job_is_described() -> None:
    """The table of the job names each of its keys and no other."""
    described = rows(section_of(read("job-file.md"), "The job"))
    assert described.keys() - {"key"} == keys_of(Job).keys()


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_every_key_of_a_section_is_described(name: str) -> None:
    """The table of a section names each of its keys and no other."""
    described = rows(section_of(read("job-file.md"), name))
    assert described.keys() - {"key"} == keys_of(SECTIONS[name]).keys()


@pytest.mark.parametrize("name", ["keep", "restart", "stop", "hang", "daemon"])
def test_defaults_are_the_models(name: str) -> None:
    """A documented default is what the key has when the file leaves it out."""
    described = rows(section_of(read("job-file.md"), name))
    for key in keys_of(SECTIONS[name]).values():
        assert default_told(key, described[key.name][1].strip("`")), key.name


def default_told(key: Key, told: str) -> bool:
    from outlast_jobs.units import parse_duration, parse_range

    if key.default in (None, ()):
        return told == "none"
    match key.spec.read:
        case "duration":
            return parse_duration(told) == key.default
        case "range":
            return parse_range(told) == key.default
    return told == str(key.default)


def test_the_example_is_a_job(tmp_path: Path) -> None:
    """The first example of the job file loads as it stands."""
    from outlast_jobs.jobfile import load_job

    file = tmp_path / "job.yaml"
    file.write_text(blocks("job-file.md", "yaml")[0], encoding="utf-8")
    assert load_job(file).save.every_seconds == 600.0


def test_the_protocol_names_everything() -> None:
    """Each environment variable, notification field, phase, last word and exit code has its place."""
    text = read("protocol.md")
    missing = [name for name in constants(Env) if f"`{name}`" not in text]
    missing += [name for name in constants(Field) if f"`{name}`" not in text]
    missing += [word for word in (*Phase, *ExitWord) if f"`{word}`" not in text]
    assert not missing
    codes = rows(section_of(text, "Exit codes of `outlast run`"))
    assert codes.keys() - {"code"} == {str(int(code)) for code in ExitCode}
    told = re.search(r"^`verify`: (.*)$", text, re.MULTILINE)
    assert told is not None
    assert re.findall(r"\b\d\b", told[1]) == [str(int(answer)) for answer in Answer]


def test_every_event_is_described() -> None:
    """Each event that a journal can hold is named, and no other."""
    text = section_of(read("on-disk.md"), "The journal")
    known = set(constants(events))
    assert not [name for name in known if f"`{name}`" not in text]
    assert rows(text).keys() - {"event"} <= known


def test_every_file_is_described() -> None:
    """Each schema, each field of an index and of a request, each verdict and each kind of end is named."""
    disk, decisions = read("on-disk.md"), read("decisions.md")
    assert not [schema for schema in constants(Schema) if f"`{schema}`" not in disk]
    fields = [field.name for field in msgspec.structs.fields(Index)]
    index = rows(disk.split("### index.json")[1].split("\n### ")[0])
    assert index.keys() - {"field"} == set(fields)
    asked = section_of(disk, "Requests")
    assert not [f.name for f in msgspec.structs.fields(requests.Request) if f"`{f.name}`" not in asked]
    assert not [verdict for verdict in verify.Verdict if f"| {verdict} |" not in decisions]
    assert not [kind for kind in Kind if f"| {kind} |" not in decisions]


def test_every_field_of_a_snapshot_is_described() -> None:
    """What status.json holds is what the table of its fields names."""
    described = rows(section_of(read("on-disk.md"), "status.json")).keys() - {"field"}
    source = (ROOT / "supervisor" / "outlast_supervisor" / "snapshot.py").read_text(encoding="utf-8")
    written = set(re.findall(r'^        "(\w+)": ', source, re.MULTILINE))
    assert described == written


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_a_document_keeps_to_what_exists(document: Path) -> None:
    """Not too long; every path and link in it leads somewhere; no line number that the next change makes wrong."""
    text = document.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    assert not re.search(r"\.py:\d", text)
    names = set(re.findall(r"`([\w/]+\.py)`", text))
    everything = [
        path for room in ("jobs", "supervisor", "worker", "tests", "bench") for path in source(room)
    ]
    assert not [name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in everything)]
    links = re.findall(r"\]\(([\w.-]+\.md)\)", text)
    assert not [link for link in links if not (document.parent / link).is_file()]


def source(room: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in (ROOT / room).rglob("*.py")]


def test_invariants_are_numbered_and_attacked() -> None:
    """From 1 on without a gap; each says must or should, and names what exists."""
    text = read("invariants.md")
    items = re.split(r"^(?=\d+\. )", text, flags=re.MULTILINE)[1:]
    assert [int(item.split(".")[0]) for item in items] == list(range(1, len(items) + 1))
    for item in items:
        paths = re.findall(r"`([\w/.]+\.(?:py|toml))`", item)
        assert re.match(r"\d+\. \*\*(Must|Should)\.\*\* ", item), item
        assert paths, item
        assert all((ROOT / path).is_file() for path in paths), item


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_a_test_that_a_document_names_exists(document: Path) -> None:
    """Whoever is told that a test holds something finds that test, in that file."""
    named = set(re.findall(r"\b(?:tests/)?([\w/]+\.py)::(\w+)", document.read_text(encoding="utf-8")))
    assert not [f"{file}::{test}" for file, test in sorted(named) if test not in defined_in(file)]


def defined_in(file: str) -> set[str]:
    path = ROOT / "tests" / file
    return set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)) if path.is_file() else set()


def test_each_fault_has_its_promise_and_its_tests() -> None:
    """A row for each class of fault names a promise and a test; invariants named there exist; rows are counted."""
    text = read("faults.md")
    table = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", text.split("\n## Figures\n")[0], re.MULTILINE)
    found = [row for row in table if row[0] != "what happened"]
    numbers = set(re.findall(r"^(\d+)\. ", read("invariants.md"), re.MULTILINE))
    for fault, promise, held_by in found:
        assert "::test_" in held_by, fault
        assert set(re.findall(r"\b\d+\b", promise.split(";")[0])) <= numbers, fault
    other = sum("does not apply" in row[1] for row in found)
    partly = sum("in part" in row[1] for row in found)
    held = len(found) - other - partly
    told = f"Of these {len(found)} rows {held} are held, {other} do not apply, and {partly} are held in part."
    assert told in text
    assert f"| {held} of {len(found)} |" in text


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of a generation."""
    return Path(shutil.copytree(SAMPLE, tmp_path / SAMPLE.name))


def test_the_commands_verify_a_generation(sample: Path) -> None:
    """The documented commands name every file of a sound generation as right, and a flipped bit as wrong."""
    (script,) = blocks("on-disk.md", "sh")

    def said() -> list[str]:
        found = subprocess.run(["sh", "-c", script], cwd=sample, capture_output=True, text=True, check=False)
        return found.stdout.splitlines()

    members = {path.name for path in sample.iterdir()} - {"index.json.sha256"}
    assert {line.removesuffix(": OK") for line in said()} == members
    shard = sample / "model.shard-000.pt"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert [line for line in said() if not line.endswith(": OK")] == ["model.shard-000.pt: FAILED"]


CHECK = """
import sys
from pathlib import Path

state = load(sys.argv[1])
assert "outlast_worker" not in sys.modules

from outlast_worker import read_generation

def same(mine, theirs):
    if isinstance(mine, torch.Tensor):
        return mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    if isinstance(mine, dict):
        return list(mine) == list(theirs) and all(same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, (list, tuple)):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return mine == theirs

loaded = read_generation(Path(sys.argv[1])).state
parts = ("model", "optimizer", "scheduler")
print(all(same(state["parts"][part], loaded["parts"][part]) for part in parts), state["counters"]["step"])
"""


def test_the_example_loads_a_generation(sample: Path) -> None:
    """The documented function, which knows torch alone, gives the values that the library gives."""
    (example,) = blocks("on-disk.md", "python")
    command = [sys.executable, "-c", example + CHECK, str(sample)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["True", "7"]
