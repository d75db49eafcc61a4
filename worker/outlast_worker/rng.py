"""Capture, restore and digest the process-wide random streams: python, numpy, torch CPU, CUDA devices."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

_WORDS = 624  # 32-bit words of a Mersenne Twister, which python and numpy both use
_PACK = struct.Struct(f"<{_WORDS + 1}I")


class RngError(ValueError):
    """A random stream could not be restored, so that the run would go on as another run.

    Start from another checkpoint, or ask for the loss (``--allow-rng-loss``).
    """


def capture_rng_state() -> dict[str, Any]:
    """All process-wide streams in numbers, text, tuples, lists and byte tensors: the safe loader reads it."""
    version, words, gauss = random.getstate()
    name, key, position, has_gauss, cached = _numpy_state()
    return {
        "python": (version, tuple(words), gauss),
        "numpy": (name, tuple(key.tolist()), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
    }


def restore_rng_state(state: Mapping[str, Any], *, allow_loss: bool = False) -> list[str]:
    """Set every stream to its saved state and return, in sentences, what could not be.

    A device that no longer exists is drift and only reported. Anything else that fails is an RngError,
    raised after the other streams were tried; with ``allow_loss`` it is only reported too.
    """
    lost: list[str] = []
    for stream, restore in _RESTORE.items():
        try:
            restore(state[stream])
        except Exception as error:
            # whatever numpy or torch say of a bad state, it means that the stream is lost
            why = "it was not saved" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            lost.append(f"the random state of {stream} could not be restored: {why}")
    if lost and not allow_loss:
        raise RngError("; ".join(lost))
    drift, failed = _restore_cuda(state.get("cuda", []))
    if failed and not allow_loss:
        raise RngError("; ".join(failed))
    return lost + failed + drift


def rng_digests() -> dict[str, str]:
    """Sixteen hex digits for each stream, equal exactly when the stream would go on equally."""
    _, words, gauss = random.getstate()
    name, key, position, has_gauss, cached = _numpy_state()
    head = f"{name} {position} {has_gauss} {cached.hex()} ".encode()
    digests = {
        "python": _digest(_PACK.pack(*words) + (b"" if gauss is None else struct.pack("<d", gauss))),
        "numpy": _digest(head + key.astype("<u4", copy=False).tobytes()),
        "torch": _digest(torch.get_rng_state().numpy().tobytes()),
    }
    if _cuda_started():
        for index, device in enumerate(torch.cuda.get_rng_state_all()):
            digests[f"cuda:{index}"] = _digest(device.numpy().tobytes())
    return digests


def _cuda_started() -> bool:
    """Whether this process uses CUDA: a digest must not be what starts it."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _numpy_state() -> tuple[str, np.ndarray[Any, Any], int, int, float]:
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        # np.random.set_bit_generator can put another one behind the legacy functions
        raise RngError(
            f"numpy's global stream uses {state['bit_generator']!r}, and only MT19937 can be saved; "
            "keep the generator in a variable and pass it as a part"
        )
    key = state["state"]["key"]
    return "MT19937", key, int(state["state"]["pos"]), int(state["has_gauss"]), float(state["gauss"])


def _restore_python(state: Any) -> None:
    version, words, gauss = state
    random.setstate((version, tuple(words), gauss))


def _restore_numpy(state: Any) -> None:
    name, key, position, has_gauss, cached = state
    if len(key) != _WORDS or not 0 <= position <= _WORDS:
        raise ValueError(f"{len(key)} words at position {position}, where {_WORDS} are needed")
    np.random.set_state((name, np.array(key, dtype=np.uint32), position, has_gauss, cached))


def _restore_torch(state: Any) -> None:
    torch.set_rng_state(state)


_RESTORE: dict[str, Callable[[Any], None]] = {
    "python": _restore_python,
    "numpy": _restore_numpy,
    "torch": _restore_torch,
}


def _restore_cuda(states: Any) -> tuple[list[str], list[str]]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    drift = [
        f"cuda:{index} no longer exists; its random state is left out" for index in range(count, len(states))
    ]
    drift += [f"cuda:{index} is new; its random state was not saved" for index in range(len(states), count)]
    failed = []
    for index, state in enumerate(states[:count]):
        try:
            torch.cuda.set_rng_state(state, index)
        except Exception as error:
            failed.append(
                f"the random state of cuda:{index} could not be restored: {type(error).__name__}: {error}"
            )
    return drift, failed
