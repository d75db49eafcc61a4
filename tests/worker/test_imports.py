"""What the library brings in: held as a set of modules, since times differ from machine to machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LIST = "import torch, sys; before = set(sys.modules); {}; print(*sorted(set(sys.modules) - before))"


def added(statement: str) -> list[str]:
    """The modules that a statement adds to those of torch."""
    found = subprocess.run(
        [sys.executable, "-c", _LIST.format(statement)], capture_output=True, text=True, check=True
    )
    return found.stdout.split()


def test_the_package_alone_brings_in_nothing() -> None:
    """``import outlast_worker`` adds itself to what torch imports, and no other module."""
    assert added("import outlast_worker") == ["outlast_worker"]


def test_a_training_script_imports_of_ours_what_runs_without_a_supervisor() -> None:
    """The names of a training script add no package but ours to torch, and nothing that saves or supervises."""
    found = added("from outlast_worker import Checkpointer, batches")
    foreign = {name.split(".")[0] for name in found if name.split(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"outlast_worker", "outlast_jobs"}
    assert not {"asyncio", "concurrent.futures", "decimal", "subprocess", "sysconfig"} & set(found)
    ours = {name.removeprefix("outlast_worker.") for name in found if name.startswith("outlast_worker.")}
    assert not ours & {
        "boundary",
        "demo",
        "fingerprint",
        "folder",
        "migrate",
        "proof_files",
        "proofing",
        "restoring",
        "saving",
        "sealing",
        "session",
        "sharded",
        "single",
        "strays",
    }


_SUPERVISED = """
import os, pathlib, signal, sys
run = pathlib.Path(sys.argv[1])
names = ("RUN", "RUN_ID", "ATTEMPT", "SAVE_EVERY_STEPS")
os.environ.update(zip([f"OUTLAST_{name}" for name in names], [str(run), "a" * 32, "1", "2"]))
for folder in ("checkpoints/.writing-0001", "metrics"):
    (run / folder).mkdir(parents=True)
import torch
before = set(sys.modules)
from outlast_worker import Checkpointer
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
made = set(sys.modules)
ckpt = Checkpointer(model=model, optimizer=optimizer)
supervised = set(sys.modules) - made
with ckpt:
    entered = set(sys.modules)
    for step in range(6):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        ckpt.step()
        ckpt._session.seals.meanwhile.buffers.settled()
    with ckpt.phase("eval"):
        ckpt.poll()
    assert ckpt._session.seals.newest is not None
later = {name for name in set(sys.modules) - entered if not name.startswith("torch")}
print(*sorted(supervised))
print(*sorted(later))
ours = [module for name, module in sys.modules.items() if name.startswith("outlast_")]
found = [value for module in ours for value in vars(module).values() if isinstance(value, type)]
print(*sorted({kind.__qualname__ for kind in found if hasattr(kind, "__dataclass_fields__")}))
"""


def test_a_supervised_run_imports_all_before_it_trains(tmp_path: Path) -> None:
    """What saving takes comes with the Checkpointer, and nothing but it; no save waits for a file of the library."""
    done = subprocess.run(
        [sys.executable, "-c", _SUPERVISED, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    supervised, later, compiled = (line.split() for line in done.stdout.splitlines())
    foreign = {name.split(".")[0] for name in supervised} - set(sys.stdlib_module_names)
    assert foreign - {"zlib_ng"} == {"outlast_worker", "outlast_jobs", "msgspec"}
    assert not {"asyncio", "concurrent.futures", "yaml", "subprocess", "sysconfig"} & set(supervised)
    ours = {name.removeprefix("outlast_worker.") for name in supervised}
    assert {"session", "saving", "sealing", "boundary", "fingerprint"} <= ours
    assert not ours & {"cuda", "demo", "folder", "migrate", "proof_files", "proofing", "sharded", "single"}
    assert later == []
    assert compiled == [], (
        "dataclasses: the methods of each are compiled at every start, which takes a millisecond"
    )
