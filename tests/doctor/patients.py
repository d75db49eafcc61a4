"""Jobs for the doctor to look at: with a Python that only says what it has, so that no test waits for torch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.harness import OUTLAST, PATIENCE, Ended

from outlast_jobs import __version__, events
from outlast_jobs.journal import JournalWriter
from outlast_jobs.rundir import RunDirectory

WORKER = Path(__file__).parents[1] / "notices" / "by_hand.py"
"""A real worker without torch."""
SOUND = {"python": "3.12.1", "torch": "2.7.0", "outlast_worker": "1", "outlast_jobs": __version__}


def python(folder: Path, said: Mapping[str, str] | str = SOUND) -> Path:
    """An executable that answers as an interpreter would; a text instead is its whole script."""
    program = folder / "python3"
    text = said if isinstance(said, str) else f"#!/bin/sh\ncat <<'end'\n{json.dumps(said)}\nend\n"
    program.write_text(text)
    program.chmod(0o755)
    return program


def job(folder: Path, said: Mapping[str, str] | str = SOUND, **more: Any) -> Path:
    """A job file in a folder, with a script and an interpreter beside it."""
    (folder / "train.py").touch()
    file = folder / "job.yaml"
    command = [str(python(folder, said)), "train.py"]
    whole = {"name": "patient", "signals": "outlast", "run_dir": "run", "command": command, **more}
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    return file


def give_past(run: Path, step: float, save: float, cost: float | None = None) -> None:
    """Let a run have shown how many seconds a step and a save take, and what of that the training lost."""
    directory = RunDirectory(run)
    directory.create()
    writer = JournalWriter.open(directory)
    sealed = {"generation": "step-000000008.a0001", "step": 8, "bytes": 4096, "seconds": save}
    sealed |= {} if cost is None else {"cost": cost}
    writer.write([writer.append(events.SEALED, sealed)])
    writer.close()
    lines = ['{"schema": "outlast.metrics/1", "attempt": 1, "restored_step": 0}']
    lines += [f'{{"step": {n}, "loss": "0.5", "t": {n * step}}}' for n in range(1, 9)]
    directory.attempt_metrics(1).write_text("\n".join(lines) + "\n")


class Findings:
    """What the doctor said."""

    def __init__(self, ended: Ended) -> None:
        self.code = ended.code
        self.err = ended.err
        self.lines: list[dict[str, str]] = (
            json.loads(ended.out)["checks"] if ended.out.startswith("{") else []
        )

    def of(self, check: str) -> list[str]:
        """All that was said of one thing: level, text and cure in one."""
        return [f"{x['level']}: {x['text']} [{x['cure']}]" for x in self.lines if x["check"] == check]

    def failures(self) -> list[str]:
        return [f"{x['check']}: {x['text']}" for x in self.lines if x["level"] == "failure"]


def doctor(
    file: Path,
    *words: str,
    wrapper: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    seconds: float = PATIENCE,
) -> Findings:
    """`outlast doctor JOB --json`, waited for."""
    done = subprocess.run(
        [*wrapper, OUTLAST, "doctor", str(file), "--json", *words],
        env=dict(env) if env is not None else None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        start_new_session=True,
    )
    return Findings(Ended(done.returncode, done.stdout, done.stderr))
