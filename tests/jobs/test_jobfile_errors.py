"""Wrong job files: each brings exactly one error, and these are the messages."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from outlast_jobs.jobfile import JobFileError, load_job

JOB = "name: x\ncommand: [python, train.py]\n"
EVERY_KEY = (
    '"name", "command", "workdir", "env", "run_dir", "signals", "save", "keep", "start_from", "adopt", '
    '"restart", "stop", "hang", "identity", "audit", "sick", "logs", "hooks", "notices", "slurm", '
    '"daemon", "standby" or "preload"'
)


def _table() -> list[tuple[str, str]]:
    """The table of wrong files: text and message."""
    blocks = (Path(__file__).parent / "wrong_jobs.txt").read_text(encoding="utf-8").split("\n\n")
    pairs = [block.strip("\n").rpartition("\n=> ") for block in blocks if "=> " in block]
    return [(text.replace("...\n", JOB, 1), said.replace("{keys}", EVERY_KEY)) for text, _, said in pairs]


WRONG = [
    *_table(),
    ("", 'job.yaml: is empty; expected at least the keys "name" and "command"'),
    ("# only a comment\n", 'job.yaml: is empty; expected at least the keys "name" and "command"'),
    ("name: x\n\tcommand: [a]", "job.yaml:2: a tab in the indentation; yaml takes only spaces there"),
    (JOB + "keep:\n\tlast: 3", "job.yaml:4: a tab in the indentation; yaml takes only spaces there"),
    ("name: x\x07", "job.yaml:1: control character 0x07 in the text; take it out"),
    (
        f"name: {'x' * 101}\ncommand: [a]",
        'job.yaml:1: name: expected a folder name of 1 to 100 characters without "/" or a "." or "-" '
        f'in front, got "{"x" * 57}…"',
    ),
]


def refused(data: bytes | str) -> JobFileError:
    """The error that a job file of this content brings, in the current directory."""
    Path("job.yaml").write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(JobFileError) as caught:
        load_job(Path("job.yaml"))
    return caught.value


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_job_file_brings_exactly_this_error(text: str, message: str) -> None:
    """File, line, key, what was expected, what stands there, and the cure: one line, to the letter."""
    assert str(refused(text)) == message


@pytest.mark.parametrize("text", [text for text, _ in WRONG])
def test_every_error_has_its_place(text: str) -> None:
    """An error names the file, and the line as a number, for programs as well as people."""
    error = refused(text)
    assert error.file == "job.yaml"
    assert error.line is None or 1 <= error.line <= text.count("\n") + 1
    assert str(error).startswith(f"job.yaml:{error.line}: " if error.line else "job.yaml: ")
    assert "\n" not in str(error)
    assert not str(error).endswith(".")


def test_the_table_is_all_there() -> None:
    """The table is long, and no file stands in it twice."""
    assert len({text for text, _ in WRONG}) == len(WRONG) > 100


def test_an_error_carries_what_was_expected_and_the_nearest() -> None:
    """A program that shows errors in its own way need not take messages apart."""
    error = refused(JOB + "save: {evry_steps: 5}")
    assert (error.line, error.key, error.nearest) == (3, "save.evry_steps", "every_steps")
    assert error.expected == '"every_steps", "every_seconds", "every", "between" or "link_unchanged"'
    error = refused(JOB + "stop:\n  grace: 30s\n  on_usr1: sav")
    assert (error.line, error.key, error.nearest) == (5, "stop.on_usr1", "save")
    assert error.expected == '"auto", "save" or "stop"'


def test_of_several_errors_the_first_in_the_file_is_told() -> None:
    """Errors are worked off from the top, whatever their kind; what is missing comes last."""
    text = "comand: [a]\nkeep: {last: 0}\nsave: {}\nsick: maybe\nname: a/b\n"
    keys = []
    for line in text.splitlines():
        keys.append(refused(text).key)
        text = text.replace(line, "", 1)
    assert keys == ["comand", "keep.last", "save", "sick", "name"]
    assert refused("sick: stop").key == "name"


def test_a_value_on_a_line_of_its_own_is_named_by_that_line() -> None:
    """In a list or mapping over several lines it is the line of the wrong part that is named."""
    error = refused("name: x\ncommand:\n  - python\n  - train.py\n  - 5\n")
    assert (error.line, error.key) == (5, "command[2]")
    error = refused(JOB + "env:\n  A: a\n  B: 1\n")
    assert (error.line, error.key) == (5, "env.B")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{key}: &{key} [{','.join(['*' + before] * 9)}]\n"
    for before, key in zip("abcdefghij", "bcdefghijk", strict=True)
)
TOO_MANY = "holds more than 10,000 values, counting what aliases repeat"
TOO_DEEP = "nested more than 20 levels deep; a job needs 3"
HOSTILE: dict[str, tuple[bytes | str, str]] = {
    "aliases that double nine times nine": (BOMB, f"job.yaml:5: {TOO_MANY}"),
    "a long text repeated": (f"a: &a {'y' * 300000}\nb: [{'*a,' * 3000}]", f"job.yaml:2: {TOO_MANY}"),
    "anchors without end": ("a: [" + ",".join(f"&a{n} x" for n in range(90000)), f"job.yaml:1: {TOO_MANY}"),
    "a list without end": ("a: [" + "1," * 400000, f"job.yaml:1: {TOO_MANY}"),
    "keys without end": ("".join(f"k{n}: 1\n" for n in range(70000)), f"job.yaml:5000: {TOO_MANY}"),
    "nested mappings": ("{a: " * 200000, f"job.yaml:1: {TOO_DEEP}"),
    "nested lists": ("- " * 400000, f"job.yaml:1: {TOO_DEEP}"),
    "nested by indentation": ("".join(" " * n + "a:\n" for n in range(1300)), f"job.yaml:21: {TOO_DEEP}"),
    "larger than a mebibyte": (
        "#" * (2 << 20),
        "job.yaml: is larger than 1 MiB; a job file is a page of text",
    ),
    "documents without end": ("---\n" * 200000, "job.yaml:2: a second document begins; one job a file"),
    "nulls": (b"name: x\n\0\0", "job.yaml:2: control character 0x00 in the text; take it out"),
    "utf-16": ("name: x".encode("utf-16"), "job.yaml:1: byte 0xff is not utf-8; save the file as utf-8"),
    "latin-1": (
        "name: x\n# \xe9".encode("latin-1"),
        "job.yaml:2: byte 0xe9 is not utf-8; save the file as utf-8",
    ),
    "comments only": ("#\n" * 500000, 'job.yaml: is empty; expected at least the keys "name" and "command"'),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_costs_one_named_error(kind: str) -> None:
    """What would fill memory, stack or time in a trusting reader is refused by its name, at once."""
    data, message = HOSTILE[kind]
    began = time.process_time()
    assert str(refused(data)) == message
    assert time.process_time() - began < 2


def test_deep_brackets_are_refused_wherever_the_limit_is_noticed() -> None:
    """Half a million opening brackets end in a named error, not in a full stack."""
    assert "nest" in str(refused("a: " + "[" * 500000))


def test_no_tag_runs_anything() -> None:
    """A tag that would call a function in a trusting reader is refused, and calls nothing."""
    assert refused("name: !!python/object/apply:os.mkdir [made]\ncommand: [a]").key == "name"
    assert not Path("made").exists()


def test_a_long_value_is_shown_cut_short() -> None:
    """A message stays a line that a person can read, whatever stands in the file."""
    assert len(str(refused(f"name: {'x' * 500000}\ncommand: [a]"))) < 250


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none", "none: can't be read: no such file or directory"),
        (".", ".: can't be read: is a directory"),
        ("pipe", "pipe: is not a regular file; name a yaml file"),
        ("/dev/zero", "/dev/zero: is not a regular file; name a yaml file"),
        ("job.yaml/x", "job.yaml/x: can't be read: not a directory"),
        ("a\0b", '"a\\u0000b": can\'t be read: the name holds a null character'),
    ],
)
def test_what_is_no_file_is_refused_without_waiting(path: str, message: str) -> None:
    """Folders, pipes and devices are no job files, and none of them holds the reader up."""
    Path("job.yaml").touch()
    os.mkfifo("pipe")
    with pytest.raises(JobFileError) as caught:
        load_job(Path(path))
    assert str(caught.value) == message


def test_a_file_with_a_byte_order_mark_is_read() -> None:
    """Editors that begin a file with a byte order mark do no harm."""
    Path("job.yaml").write_bytes(b"\xef\xbb\xbfname: x\ncommand: [a]\n")
    assert load_job(Path("job.yaml")).name == "x"
