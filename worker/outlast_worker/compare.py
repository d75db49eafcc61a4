"""Compare two saved states part by part, and count draws: ``python -m outlast_worker.compare A B --json``.

For `outlast prove`, whose own process never imports torch. With ``-`` requests are read from standard input.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from outlast_jobs.contract import Answer
from outlast_worker.digest import Leaf, canonical, leaves, state_sha256
from outlast_worker.orbits import draws_between
from outlast_worker.restoring import read_generation

_STRUCTURE = math.inf
"""The difference of what cannot be subtracted: text, another shape, an entry that only one side has."""


def main(arguments: list[str] | None = None) -> int:
    """Answer what was asked; 0 equal, 1 not, 2 could not be looked at."""
    parser = argparse.ArgumentParser(prog="python -m outlast_worker.compare", description=__doc__)
    parser.add_argument("a", help="a generation, or - for a list of requests on standard input")
    parser.add_argument("b", nargs="?", help="the generation to hold against it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    if args.a == "-":
        print(json.dumps([_answer(request) for request in json.load(sys.stdin)]))
        return Answer.HELD
    if args.b is None:
        parser.error("name two generations")
    try:
        found = compare(_state(args.a), _state(args.b))
    except (OSError, ValueError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return Answer.UNDECIDED
    print(json.dumps(found, indent=2) if args.json else _text(found))
    return Answer.HELD if found["equal"] else Answer.DID_NOT_HOLD


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Both digests, and for each part whether it is equal, the largest difference and where that is."""
    parts = {
        name: _compare_part(first, second)
        for name, first, second in _pairs(_by_part(canonical(a)), _by_part(canonical(b)))
    }
    return {
        "equal": all(part["equal"] for part in parts.values()),
        "sha256": [state_sha256(dict(a)), state_sha256(dict(b))],
        "parts": parts,
    }


def _by_part(state: Mapping[str, Any]) -> dict[str, Any]:
    parts = dict(state["parts"])
    for name, stream in state["rng"].items():
        if name == "cuda":
            parts |= {f"rng/cuda:{index}": device for index, device in enumerate(stream)}
        else:
            parts[f"rng/{name}"] = stream
    return {**parts, "counters": state["counters"], "losses": state["losses"], "extra": state["extra"]}


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    missing = {"missing": True}
    for name in dict.fromkeys((*a, *b)):
        yield name, a.get(name, missing), b.get(name, missing)


def _compare_part(a: Any, b: Any) -> dict[str, Any]:
    first = {leaf.path: leaf for leaf in leaves(a)}
    second = {leaf.path: leaf for leaf in leaves(b)}
    values_a, values_b = dict(_numbers(a)), dict(_numbers(b))
    largest, where = 0.0, ""
    equal = True
    for path in dict.fromkeys((*first, *second)):
        one, two = first.get(path), second.get(path)
        if one is not None and two is not None and _same(one, two):
            continue
        equal = False
        leaf = one or two
        shown = leaf.shown if leaf is not None else ""
        if one is not None and two is not None and one.tag == two.tag and one.tag in ("map", "list", "tuple"):
            continue  # the entry that one lacks says it
        found = _amount(values_a.get(shown), values_b.get(shown))
        if found > largest or not where:
            largest, where = found, shown
    return {"equal": equal, "largest": _plain(largest), "where": where}


def _same(a: Leaf, b: Leaf) -> bool:
    if a.tag != b.tag:
        return False
    if isinstance(a.payload, bytes) or isinstance(b.payload, bytes):
        return isinstance(a.payload, bytes) and isinstance(b.payload, bytes) and a.payload == b.payload
    return torch.equal(a.payload, b.payload)


def _numbers(tree: Any, shown: str = "") -> Iterator[tuple[str, Any]]:
    """The values that can be subtracted, under the names that `leaves` gives them."""
    if isinstance(tree, float | torch.Tensor) or type(tree) is int:
        yield shown or ".", tree
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _numbers(item, f"{shown}/{key}" if shown else str(key))
    elif isinstance(tree, list | tuple):
        for number, item in enumerate(tree):
            yield from _numbers(item, f"{shown}/{number}" if shown else str(number))


def _amount(a: Any, b: Any) -> float:
    if a is None or b is None:
        return _STRUCTURE
    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        return _STRUCTURE
    if not isinstance(a, torch.Tensor):
        return _finite(abs(float(a) - float(b)))
    if a.shape != b.shape or a.dtype != b.dtype or a.numel() == 0 or a.layout is not torch.strided:
        return _STRUCTURE
    if a.dtype in (torch.uint8, torch.bool):  # the states of generators: their bytes are no numbers
        return _STRUCTURE
    wide = torch.complex128 if a.is_complex() else torch.float64
    return _finite(float((a.detach().cpu().to(wide) - b.detach().cpu().to(wide)).abs().max()))


def _finite(value: float) -> float:
    """A difference with a NaN in it is as large as can be, never none."""
    return value if math.isfinite(value) else _STRUCTURE


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if "draws" in request:
            rng = _state(request["generation"])["rng"]
            return {"draws": draws_between(rng, request["draws"], request["to"])}
        return compare(_state(request["a"]), _state(request["b"]))
    except Exception as error:  # the asker goes on without this answer, and says why
        return {"error": f"{type(error).__name__}: {error}"}


def _state(path: str) -> dict[str, Any]:
    return read_generation(Path(path)).state


def _text(found: Mapping[str, Any]) -> str:
    lines = []
    for name, part in found["parts"].items():
        if part["equal"]:
            lines.append(f"{name}: equal")
        else:
            by = "in form" if part["largest"] is None else f"by up to {part['largest']!r}"
            lines.append(f"{name}: differs {by}, at {part['where']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
