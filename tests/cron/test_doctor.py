"""`outlast doctor` as the real cron runs it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.cron.machine import Machine
from tests.doctor.patients import job
from tests.e2e.harness import OUTLAST, PATIENCE
from tests.realparts import needs
from tests.waiting import wait_until

pytestmark = needs("cron", "faketime", "namespaces")


def test_what_the_doctor_says_under_cron(machine: Machine, tmp_path: Path) -> None:
    """It knows that cron started it, and finds a program that cron's own PATH does not have."""
    outs = {name: tmp_path / f"{name}.json" for name in ("sound", "lost")}
    lines = []
    for name, out in outs.items():
        place = tmp_path / name
        place.mkdir()
        more = {} if name == "sound" else {"command": ["outlast-no-such", "train.py"]}
        file = job(place, **more)
        words = f"{shlex.quote(OUTLAST)} doctor {shlex.quote(str(file))} --json"
        lines.append(f"* * * * * [ -e {out} ] || {{ {words} >{out}.$$; mv {out}.$$ {out}; }}\n")
    machine.set_crontab("".join(lines).encode())
    machine.boot(speed=60)
    for out in outs.values():
        wait_until(out.exists, PATIENCE, f"{out.name}; mail: {machine.mails()}")
    said = {name: json.loads(out.read_text()) for name, out in outs.items()}
    texts = {
        name: [f"{x['check']} {x['level']}: {x['text']}" for x in found["checks"]]
        for name, found in said.items()
    }
    assert said["sound"]["answer"] == 0, texts
    assert any(line.startswith("warning ok: cron:") for line in texts["sound"]), texts
    assert any("PATH=/usr/bin:/bin, no LANG" in line for line in texts["sound"]), texts
    assert said["lost"]["answer"] == 1
    assert any(line.startswith("command failure:") for line in texts["lost"]), texts
