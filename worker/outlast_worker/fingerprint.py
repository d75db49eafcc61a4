"""What decides the last bit of a result beside the state: versions, machine, threads, flags, and the code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outlast_jobs import __version__

SAME = "bit-exact expected"

_WORDS = {
    "python": "python",
    "torch": "torch",
    "numpy": "numpy",
    "outlast": "outlast",
    "machine": "machine",
    "cpu": "CPU",
    "cpu_capability": "torch's CPU capability",
    "blas": "BLAS",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "threads": "threads",
    "interop_threads": "interop threads",
    "devices": "devices",
    "hash_seed": "PYTHONHASHSEED",
}
_ENVIRONMENT = ("MKL_CBWR", "CUBLAS_WORKSPACE_CONFIG", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def fingerprint() -> dict[str, Any]:
    """Everything beside state, code and data on which the bits of a run hang, in plain values."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "outlast": _outlast_version(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(),
        "cuda": torch.version.cuda,
        "cudnn": _cudnn(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "devices": _devices(),
        "determinism": _determinism(),
        "hash_seed": os.environ.get("PYTHONHASHSEED") or "random",
    }


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs, a plain sentence each; empty where bit-exact results are to be expected."""
    differences = []
    for key in _keys(old, new):
        before, now = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            differences += _flags(before, now)
        elif before != now:
            differences.append(_sentence(_WORDS.get(key, key), before, now))
    return differences


def _flags(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        _sentence(flag, before.get(flag), now.get(flag))
        for flag in _keys(before, now)
        if before.get(flag) != now.get(flag)
    ]


def other_torch(saved: Mapping[str, Any]) -> bool:
    """Whether a fingerprint is of another torch than this one; so is one that names none."""
    return bool(saved.get("torch") != str(torch.__version__))


def verdict(differences: Iterable[str]) -> str:
    """One line for people over what ``compare`` found."""
    listed = "; ".join(differences)
    return f"bit-exact not expected: {listed}" if listed else SAME


def code_identity(script: str | Path | None) -> dict[str, Any]:
    """What tells one version of the training code from another: the script's sha256, git's commit.

    Paths are left out, since a moved copy of the same code is the same code.
    """
    if script is None:
        return {}
    path = Path(script)
    try:
        identity: dict[str, Any] = {
            "script": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    except OSError:
        return {"script": path.name}
    commit = _git_commit(path.resolve().parent)
    return identity if commit is None else {**identity, "git_commit": commit}


def _keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    order = dict.fromkeys((*_WORDS, *old, *new))
    return [key for key in order if key in old or key in new]


def _sentence(what: str, before: Any, now: Any) -> str:
    return f"{what} {_shown(before)}→{_shown(now)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _outlast_version() -> str:
    try:
        return importlib.metadata.version("outlast")
    except importlib.metadata.PackageNotFoundError:
        return __version__


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    for key in ("model name", "Model", "cpu model", "CPU part"):  # x86, Arm boards, MIPS, Arm servers
        match = re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE)
        if match:
            return match[1].strip()
    return platform.processor()


def _blas() -> str:
    found = re.search(r"BLAS_INFO=([^,\s]+)", torch.__config__.show())
    names = [found[1]] if found else []
    names += ["mkldnn"] if torch.backends.mkldnn.is_available() else []
    version = re.search(r"oneAPI Math Kernel Library Version (\S+)|OpenBLAS (\S+)", torch.__config__.show())
    return " ".join([*names, *([next(filter(None, version.groups()))] if version else [])]) or "unknown"


def _cudnn() -> int | None:
    version = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return version if version is None else int(version)


def _devices() -> list[str]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


def _determinism() -> dict[str, Any]:
    flags: dict[str, Any] = {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn.benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn.deterministic": bool(torch.backends.cudnn.deterministic),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "flush denormal": _flushes_denormals(),
    }
    flags.update({name: os.environ.get(name) for name in _ENVIRONMENT})
    return flags


def _flushes_denormals() -> bool:
    return bool((torch.tensor([1e-310], dtype=torch.float64, device="cpu") * 1.0).item() == 0.0)


def _git_commit(folder: Path) -> str | None:
    """The commit that HEAD names, read from git's own files: git itself may not be there."""
    for parent in (folder, *folder.parents):
        dot_git = parent / ".git"
        try:
            if dot_git.is_dir():
                return _resolve_head(dot_git)
            if dot_git.is_file():  # a worktree or submodule says where its folder is
                return _resolve_head((parent / dot_git.read_text().removeprefix("gitdir:").strip()).resolve())
        except (OSError, ValueError):
            return None
    return None


def _resolve_head(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return _commit(head)
    ref = head.removeprefix("ref:").strip()
    if ref.startswith("/") or ".." in ref.split("/"):
        return None
    common = git
    if (git / "commondir").is_file():
        common = (git / (git / "commondir").read_text().strip()).resolve()
    for place in (git / ref, common / ref):
        if place.is_file():
            return _commit(place.read_text().strip())
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((_commit(line.split(" ")[0]) for line in lines if line.endswith(f" {ref}")), None)


def _commit(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None
