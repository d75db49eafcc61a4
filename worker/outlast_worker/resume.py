"""Reading the generation that the supervisor chose, and saying how this environment differs from its own."""

from __future__ import annotations

import contextlib
from typing import Any

from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.verify import Verdict, look, scan
from outlast_worker.context import RunContext
from outlast_worker.fingerprint import compare
from outlast_worker.inherited import Inherited
from outlast_worker.restoring import Loaded, read_generation
from outlast_worker.sealing import Descriptions

_TOLD_BY_DATA = frozenset({"batch_size", "drop_last", "shuffle", "seed"})
"""What `Batches` compares by itself when its state is loaded, with what follows from it."""


def furthest(context: RunContext) -> RunContext:
    """With what a trainer before this one in the same attempt has sealed as what to resume from.

    A launcher that starts a failed trainer anew knows only what the attempt began with. Not after one that came to its
    end: another training follows it. One that has failed of a NaN is tried again from before that.
    """
    with contextlib.suppress(OSError):
        for path in scan(context.checkpoints):
            name = GenerationName.parse(path.name)
            if name is None or name.attempt != context.attempt:
                break
            found = look(path, context.run_id, full=False)  # to be read is to be verified
            if found.verdict is not Verdict.VERIFIED or found.index is None:
                continue
            if found.index.final:
                break
            if found.index.healthy:
                return context._replace(resume=path)
    return context


def load(context: RunContext, inherited: Inherited | None = None) -> Loaded | None:
    """The generation to resume from, verified while it was read; None for a fresh start."""
    if context.resume is None:
        return None
    # What a run starts from belongs to another run; all later generations must be its own.
    run_id = context.run_id if context.own_resume else None
    return read_generation(context.resume, run_id=run_id, inherited=inherited if context.own_resume else None)


def drift(index: Index, now: Descriptions, *, own: bool) -> list[str]:
    """How this attempt differs from the one that saved, in sentences; empty means bit-exact expected."""
    found = list(compare(index.fingerprint, now.fingerprint))
    if own:
        found += _changes("code", index.code, now.code)
        if _changes("job", index.config, now.config):
            found.append("job: another command or environment")  # their digest says no more
    data = {key: value for key, value in index.data.items() if key not in _TOLD_BY_DATA}
    return found + _changes("data", data, now.data)


def _changes(what: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What changed among the entries that both sides know."""
    return [
        f"{what}: {key} {_short(old[key])} → {_short(new[key])}"
        for key in sorted(old.keys() & new.keys())
        if old[key] != new[key]
    ]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:12] + "…"
