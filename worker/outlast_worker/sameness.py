"""Whether a checkpoint is of this code, these data and this environment; if not, say so or refuse."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

from outlast_jobs.errors import IntegrityError
from outlast_worker.fingerprint import compare, fingerprint
from outlast_worker.recorded import recorded

Identity = Literal["warn", "strict"]


class AnotherIdentity(IntegrityError):
    """The checkpoint is whole, but of other code or data, or another environment. Use its own."""


def check_identity(
    saved: Mapping[str, Any],
    *,
    code: Mapping[str, Any] | None,
    data: Mapping[str, Any] | None,
    identity: Identity,
    name: str,
) -> None:
    """Refuse other code or data, where they are given; tell of another environment, or refuse it if strict.

    ``saved`` has what was recorded as ``fingerprint``, ``code`` and ``data``. All that is given must be
    recorded, and the same; what was recorded beside it does not matter.
    """
    if identity not in ("warn", "strict"):
        raise ValueError(f'identity is {identity!r}; give "warn" or "strict"')
    for what, wanted in (("code", code), ("data", data)):
        if changes := _changes(recorded(saved[what]), recorded(wanted or {})):
            raise AnotherIdentity(f"{name!r} is of other {what}: {changes}")
    environment = saved["fingerprint"]
    if not environment:
        if identity == "strict":
            raise AnotherIdentity(f"{name!r} does not say in which environment it was saved")
        return
    differences = compare(environment, fingerprint())
    if differences and identity == "strict":
        raise AnotherIdentity(f"{name!r} was saved in another environment: {'; '.join(differences)}")
    if differences:
        warnings.warn(
            f"{name!r} was saved in another environment, so the resumed run may differ in the last bits: "
            + "; ".join(differences),
            RuntimeWarning,
            stacklevel=3,
        )


def _changes(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    changed = [
        f"{key} {_short(saved.get(key))} → {_short(wanted.get(key))}"
        for key in sorted(wanted)
        if saved.get(key) != wanted.get(key)
    ]
    return "; ".join(changed)


def _short(value: Any) -> str:
    text = "not recorded" if value is None else str(value)
    return text if len(text) <= 40 else text[:12] + "…"
