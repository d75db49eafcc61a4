"""What the library brings in: held as a set of modules, since times differ from machine to machine."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_training_script_gets_what_it_needs_and_no_more() -> None:
    """The names of a training script add msgspec, numpy's own random streams and ours: nothing of torch's."""
    found = added("from outlast_worker import Checkpointer, batches")
    foreign = {name.split(".")[0] for name in found if name.split(".")[0] not in sys.stdlib_module_names}
    foreign = {name for name in foreign if not name.startswith(("_cython", "cython", "_sysconfigdata"))}
    assert foreign - {"zlib_ng"} == {"outlast_worker", "outlast_jobs", "msgspec", "numpy"}
    assert not {"asyncio", "concurrent.futures", "yaml", "subprocess"} & set(found)
    ours = {name.removeprefix("outlast_worker.") for name in found if name.startswith("outlast_worker.")}
    assert not ours & {
        "cuda",
        "demo",
        "demo_training",
        "single",
        "sharded",
        "folder",
        "proof_files",
        "migrate",
    }
