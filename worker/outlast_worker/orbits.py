"""Where a random stream stands on its way, and how many draws lie between two such places."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

_WORDS = 624  # 32-bit words of one block of a Mersenne Twister
_TORCH_HEAD = struct.Struct("<QiiQ")  # initial seed, words left in the block, whether seeded, next word
_TORCH_REST = _TORCH_HEAD.size + 8 * _WORDS  # what follows is the half of a normal draw that is kept
_PHILOX = struct.Struct("<QQ")  # seed and offset
MAX_BLOCKS = 5000
"""Blocks looked through for a place, some three million draws; a stream further on is called seeded anew."""


def places(rng: Mapping[str, Any]) -> dict[str, str]:
    """The place of each stream of a captured RNG state, as text: equal text, equal stream.

    A Mersenne Twister's is ``mt:BLOCK:POSITION:REST``, a device's ``philox:SEED:OFFSET``.
    """
    found = {name: _place(*_twister(name, rng[name])) for name in ("python", "numpy", "torch")}
    for index, state in enumerate(rng.get("cuda", [])):
        found[f"cuda:{index}"] = _device_place(state)
    return found


def draws_between(rng: Mapping[str, Any], stream: str, to: Sequence[str]) -> list[int | None]:
    """How many 32-bit words lie between a captured state and each place; None where it is not on the way.

    For a device the offset is counted. Only forward: a place behind the state is not found.
    """
    if stream.startswith("cuda:"):
        states = rng.get("cuda", [])
        index = int(stream.partition(":")[2])
        return [_offset_between(_device_place(states[index]), place) for place in to]
    words, position, _ = _twister(stream, rng[stream])
    wanted = [_parse(place) for place in to]
    found: list[int | None] = [None] * len(to)
    block = tuple(int(word) for word in words)
    for number in range(MAX_BLOCKS):
        digest = _block_digest(block)
        for index, place in enumerate(wanted):
            if found[index] is None and place is not None and place[0] == digest:
                count = number * _WORDS + place[1] - position
                found[index] = count if count >= 0 else None
        if all(n is not None or wanted[i] is None for i, n in enumerate(found)):
            break
        block = _next_block(block)
    return found


def _twister(stream: str, state: Any) -> tuple[Any, int, str]:
    """Words, position in them, and what else decides the next draw, of one of the three host streams."""
    if stream == "python":
        _, words, gauss = state
        return words[:_WORDS], int(words[_WORDS]), "" if gauss is None else float(gauss).hex()
    if stream == "numpy":
        _, key, position, has_gauss, gauss = state
        return key, int(position), float(gauss).hex() if has_gauss else ""
    data = bytes(state.numpy().tobytes())
    _, left, _, following = _TORCH_HEAD.unpack_from(data)
    words = np.frombuffer(data, "<u8", _WORDS, _TORCH_HEAD.size).astype("<u4")
    # A stream just seeded has not made its first block of words yet: it is at the end of the block before.
    position = _WORDS if following == 0 and left == 1 else following
    rest = data[_TORCH_REST:]
    return words, int(position), _digest(rest) if any(rest) else ""


def _place(words: Any, position: int, rest: str) -> str:
    return f"mt:{_block_digest(words)}:{position}:{rest}"


def _parse(place: str) -> tuple[str, int] | None:
    kind, _, rest = place.partition(":")
    if kind != "mt":
        return None
    block, position, _ = rest.split(":", 2)
    return block, int(position)


def _block_digest(words: Any) -> str:
    return _digest(np.asarray(words, dtype="<u4").tobytes())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _next_block(block: tuple[int, ...]) -> tuple[int, ...]:
    """All three streams are the same generator, so python's own makes the next block of any."""
    twister = random.Random()
    twister.setstate((3, (*block, _WORDS), None))
    twister.getrandbits(32 * _WORDS)
    words = twister.getstate()[1]
    return tuple(words[:_WORDS])


def _device_place(state: torch.Tensor) -> str:
    data = bytes(state.numpy().tobytes())
    if len(data) != _PHILOX.size:
        return f"device:{_digest(data)}"
    seed, offset = _PHILOX.unpack(data)
    return f"philox:{seed}:{offset}"


def _offset_between(begin: str, end: str) -> int | None:
    kind, seed, before = begin.split(":") if begin.count(":") == 2 else ("", "", "")
    other, end_seed, after = end.split(":") if end.count(":") == 2 else ("", "", "")
    if kind != "philox" or other != kind or seed != end_seed:
        return None
    count = int(after) - int(before)
    return count if count >= 0 else None
