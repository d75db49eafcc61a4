"""The load.py of an export, which knows nothing but torch, against what the library restores."""

from __future__ import annotations

import collections
import importlib.util
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.worker.saved import reseal, save, whole_state

from outlast_worker.digest import first_difference
from outlast_worker.restoring import read_generation

DATA = Path(__file__).parent / "data" / "step-000000007.a0001"
TEMPLATE = Path(str(resources.files("outlast_jobs"))) / "templates" / "load.py"

ODD = {
    "empty": (b"", bytearray()),
    "long": 1 << 3000,
    "range": range(3, 9, 2),
    "keys": {(1, "a"): 1, "__outlast__": "tensor", b"": 2},
    "counter": collections.Counter("abca"),
    "default": collections.defaultdict(list, a=[1]),
    "frozen": frozenset({1, 2.5, "x"}),
    "deque": collections.deque([1, torch.arange(3)], maxlen=4),
    "ordered": collections.OrderedDict(b=1, a=np.float32(0.1)),
    "dtype": np.dtype("<M8[s]"),
    "scalars": [np.int64(3), np.complex128(1j), np.str_("x"), np.datetime64("2024-02-29"), np.str_("")],
    "arrays": [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.eye(3)),
        np.array(["a", "bc"]),
        np.zeros((0, 2)),
    ],
    "views": [torch.arange(10.0)[3:5], torch.ones(2, 3).t(), torch.tensor(1.5, dtype=torch.bfloat16)],
    "nan": float("nan"),
}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """The module, as it lies beside a generation."""
    shutil.copyfile(TEMPLATE, tmp_path / "load.py")
    spec = importlib.util.spec_from_file_location("exported_load", tmp_path / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_kind_of_value_comes_back(checkpoints: Path, load: Any) -> None:
    """Of each value that can be saved load.py and the library give the same, to type and last bit."""
    state = whole_state()
    state["extra"] = ODD
    path = save(checkpoints, state).path
    alone = load.load_state(path)
    assert first_difference(alone, read_generation(path).state) is None
    assert first_difference(alone["extra"], ODD) is None
    order = alone["extra"]["arrays"][1].flags
    assert (order.f_contiguous, order.c_contiguous) == (True, False) or ODD["arrays"][1].flags.c_contiguous
    assert type(alone["parts"]["model"]) is collections.OrderedDict
    assert alone["parts"]["model"]._metadata


def test_a_file_of_the_first_format_loads(load: Any) -> None:
    """The generation that is kept for ever."""
    assert first_difference(load.load_state(DATA), read_generation(DATA).state) is None


def test_it_finds_the_generation_beside_it(tmp_path: Path, load: Any) -> None:
    """Without an argument the one that lies where load.py lies; not one of several."""
    with pytest.raises(FileNotFoundError, match="holds 0 folders"):
        load.load()
    shutil.copytree(DATA, tmp_path / DATA.name)
    assert sorted(load.load()) == sorted(load.load_state(tmp_path / DATA.name)["parts"])
    shutil.copytree(DATA, tmp_path / "step-000000007.a0002")
    with pytest.raises(FileNotFoundError, match="holds 2 folders"):
        load.load()


@pytest.mark.parametrize("member", ["meta.pt", "model.shard-003.pt", "index.json", "index.json.sha256"])
def test_a_changed_byte_is_refused_before_anything_is_loaded(
    tmp_path: Path, load: Any, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whichever file it lies, torch's loader is not even called."""
    path = Path(shutil.copytree(DATA, tmp_path / DATA.name))
    data = bytearray((path / member).read_bytes())
    data[len(data) // 2] ^= 1
    (path / member).write_bytes(data)
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(load.Damaged):
        load.load()


def test_an_index_reaches_no_file_elsewhere(tmp_path: Path, load: Any) -> None:
    """A name that leaves the folder is refused, though its digest is right."""
    path = Path(shutil.copytree(DATA, tmp_path / DATA.name))
    reseal(path, lambda index: index["files"].update({"../load.py": index["files"]["meta.pt"]}))
    with pytest.raises(load.Damaged, match="no file of this folder"):
        load.load()


def test_it_needs_nothing_but_torch() -> None:
    """Neither outlast nor numpy is imported by it."""
    code = f"""
import sys, types
sys.modules["torch"] = types.SimpleNamespace(__version__="2.6", Tensor=object)
sys.path.insert(0, {str(TEMPLATE.parent)!r})
import load
print([name for name in sys.modules if name.startswith(("outlast", "numpy"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
