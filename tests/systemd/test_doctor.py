"""`outlast doctor` as a service of a real service manager."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.doctor.patients import job
from tests.e2e.harness import OUTLAST
from tests.realparts import needs
from tests.systemd.manager import UserManager

from outlast_supervisor.schedulers.systemd import unit_name

pytestmark = needs("systemd", "namespaces")

UNITS = {
    "sound": ("TimeoutStopSec=60", "KillMode=mixed", "Restart=on-failure", "RestartPreventExitStatus=64 70"),
    "hurried": ("TimeoutStopSec=5", "KillMode=mixed", "Restart=on-failure", "RestartPreventExitStatus=70"),
    "patient": ("TimeoutStopSec=infinity", "KillMode=mixed", "Restart=always", "RestartPreventExitStatus=70"),
    "careless": ("TimeoutStopSec=60", "KillMode=process", "Restart=no"),
}
SAID = {
    "sound": (0, ("warning ok", "requeue ok")),
    "hurried": (1, ("warning failure: ", "is 5 s, less than stop.grace (30 s)", "requeue ok")),
    "patient": (0, ("no SIGKILL however long",)),
    "careless": (1, ("KillMode=process", "requeue failure")),
}


def test_what_the_doctor_says_of_its_unit(manager: UserManager, tmp_path: Path) -> None:
    """It finds its own unit, and what of it would cost a save or a start."""
    file = job(tmp_path)
    for name, options in UNITS.items():
        # a service that ends with 1 is not to come back while it is looked at
        text = "\n".join([*options, "Type=exec", "RestartSec=1h"])
        unit = f"doctor-{name}-{os.getpid()}.service"
        out = file.parent / f"{name}.json"
        answer, lines = look_once(manager, unit, text, file, out)
        wanted, parts = SAID[name]
        missing = [part for part in parts if part not in lines]
        assert not missing, f"{name}: {missing}\n{lines}"
        assert answer == wanted, f"{name}\n{lines}"
        assert unit in lines


def look_once(manager: UserManager, unit: str, text: str, file: Path, out: Path) -> tuple[int, str]:
    """Start a service that is the doctor, and read what it said."""
    service = f"[Service]\n{text}\nExecStart={OUTLAST} doctor {file} --json\nStandardOutput=file:{out}\n"
    manager.units.mkdir(parents=True, exist_ok=True)
    (manager.units / unit).write_text(service)
    manager.ctl("daemon-reload")
    started = manager.ctl("start", unit)
    assert started.code == 0, started.err
    try:
        manager.until(unit, MainPID="0")
        found = json.loads(out.read_text())
    finally:
        manager.ctl("stop", unit)
        (manager.units / unit).unlink()
    return int(found["answer"]), "\n".join(f"{x['check']} {x['level']}: {x['text']}" for x in found["checks"])


def test_the_unit_that_outlast_writes_is_sound(manager: UserManager, tmp_path: Path) -> None:
    """In the place of its own ExecStart the doctor finds nothing that fails."""
    file = job(tmp_path, name=f"written-{os.getpid()}")
    printed = manager.outlast("systemd", str(file))
    assert printed.code == 0, printed.err
    drop = ("ExecStart=", "Type=", "WatchdogSec=", "[Install]", "WantedBy=", "[X-Outlast]", "Job=")
    kept = [line for line in printed.out.splitlines() if not line.startswith(drop)]
    text = "\n".join(kept).partition("[Service]\n")[2]
    unit = unit_name(f"written-{os.getpid()}")
    answer, lines = look_once(manager, unit, f"{text}\nType=exec", file, tmp_path / "out.json")
    assert answer == 0, lines
    assert "warning failure" not in lines
    assert "requeue ok" in lines, lines
