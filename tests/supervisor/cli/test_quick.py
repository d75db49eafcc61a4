"""The two commands that have to be quick: their own reading of a line, and what they load."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from tests.supervisor.cli.records import status_of

from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import cli
from outlast_supervisor.commands import root
from outlast_supervisor.commands.run import rest_of
from outlast_supervisor.quick.words import can_be_folder, plain

PLAIN = (
    "run job.yaml",
    "run --run-dir q -- sh -c true",
    "run job.yaml --run-dir=q --from step-000000001.a0001 -- --steps 5 --",
    "run --fresh --release --takeover --allow-rng-loss -v -q --json job.yaml",
    "run --quiet job.yaml --verbose --run-dir a --run-dir b --run-dir= --from=x=y",
    "run -- --help",
    "status",
    "status a b a",
    "status -w -q --json",
    "status a --details --watch --quiet",
    "status --details --no-details a",
    "status --no-details --details a",
)
NOT_PLAIN = (
    "",
    "--help",
    "-h run job.yaml",
    "logs a",
    "run",
    "run --",
    "run a b",
    "run --nope a",
    "run -qv a",
    "run --fre a",
    "run a --help",
    "run -h",
    "run a --run-dir",
    "run a --run-dir -- x",
    "run a --run-dir --fresh",
    "run a --json=1",
    "run -",
    "status --details=1",
    "status -- a",
    "status -h",
    "status -wq",
)


def click_reads(line: list[str]) -> dict[str, Any]:
    """What the full reader makes of the same line."""
    command = root.get_command(click.Context(root), line[0])
    assert command is not None
    with command.make_context(line[0], line[1:]) as context:
        found = dict(context.params)
        return found | {"after": rest_of(context)} if line[0] == "run" else found


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_line_means_what_the_full_reader_takes_it_for(text: str, folder: Path) -> None:
    """Every option of both commands, in either way of writing it, the last one counting."""
    line = text.split()
    assert plain(line) == (line[0], click_reads(line))


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_full_reader(text: str) -> None:
    """Help, other commands, wrong and shortened options, too much and too little."""
    assert plain(text.split()) is None


def test_no_option_is_missing_in_the_quick_reading() -> None:
    """An option that a command gets is read here as well, or its every use would be slow."""
    for name in ("run", "status"):
        command = root.get_command(click.Context(root), name)
        assert command is not None
        for parameter in command.params:
            for word in [*parameter.opts, *parameter.secondary_opts] if parameter.name else []:
                if isinstance(parameter, click.Option) and "--help" not in parameter.opts:
                    more = [] if parameter.is_flag else ["x"]
                    assert plain([name, word, *more, "job"]) is not None, word


def test_a_run_directory_that_cannot_be_one_is_refused_as_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in its place is 64 with a message; a folder, and what does not exist yet, may be one."""
    (folder / "file").touch()
    assert all(can_be_folder(place) for place in (str(folder), str(folder / "new"), None))
    monkeypatch.setattr(sys, "argv", ["outlast", "run", "--run-dir", "file", "--", "true"])
    with pytest.raises(SystemExit, match="64"):
        cli.main()
    assert "'file' is a file" in capsys.readouterr().err


# each costs one to thirty milliseconds, and none of them is needed by then
HEAVY = (
    "click",
    "dataclasses",
    "inspect",
    "secrets",
    "shutil",
    "random",
    "tempfile",
    "typing_extensions",
    "yaml",
    "rich",
    "watchdog",
    "psutil",
    "torch",
    "numpy",
    "asyncio",
)
LOADED = f"""
import sys
from outlast_supervisor.cli import main
def look(event, arguments):
    if event in ("subprocess.Popen", "look.now"):
        print(*(name for name in {HEAVY!r} if name in sys.modules), len(sys.modules) > 100, flush=True)
sys.addaudithook(look)
try:
    main()
finally:
    sys.audit("look.now")
"""


def test_a_start_loads_little_before_the_worker_is_there(folder: Path) -> None:
    """From `outlast run` to the exec of its worker: imports are nearly all of that time."""
    line = [sys.executable, "-c", LOADED, "run", "--run-dir", "q", "--", "true"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "True"


LOOKED = """
import re, sys
from outlast_supervisor.cli import main
def look(event, arguments):
    if event == "open" and re.fullmatch("/proc/[0-9]+/environ", str(arguments[0])):
        print("looked", flush=True)
    elif event == "os.scandir":
        print("swept", flush=True)
    elif event == "subprocess.Popen":
        print("started", flush=True)
sys.addaudithook(look)
main()
"""


def test_a_run_that_begins_now_is_not_looked_for_among_all_processes(folder: Path) -> None:
    """Nothing can bear an id that was just made; one that was there before is looked for. Sweeping waits."""

    def before_the_worker(*command: str) -> list[str]:
        line = [sys.executable, "-c", LOOKED, "run", "--run-dir", "q", "--", *command]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        return list(itertools.takewhile(lambda word: word != "started", done.stdout.split()))

    assert before_the_worker("true") == []
    assert "looked" in before_the_worker("echo", "again")


def test_status_loads_little(run: RunDirectory) -> None:
    """The whole of `outlast status`."""
    status_of(run)
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "status"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "True"


def test_what_loading_is_spared_is_there_afterwards(run: RunDirectory) -> None:
    """A module that was kept from being loaded can be, and garbage is collected again."""
    status_of(run)
    code = "import sys, gc\nfrom outlast_supervisor.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    more = "import typing_extensions\nprint(gc.isenabled(), typing_extensions.TypedDict is not None)"
    line = [sys.executable, "-c", code + more, "status"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True True"
