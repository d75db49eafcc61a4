"""Bring what an older version wrote to this version's schema, step by step, in memory only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from outlast_jobs.errors import UnknownSchema

Migrations: TypeAlias = Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]
"""Older schema -> what makes the next one of it. Files of every schema ever written load for ever."""


def to_current(tree: dict[str, Any], newest: str, migrations: Migrations, what: str) -> dict[str, Any]:
    """The tree in the newest schema. UnknownSchema, naming ``what`` it is of, where no migration leads there."""
    while (schema := tree.get("schema")) != newest:
        migrate = migrations.get(schema) if isinstance(schema, str) else None
        if migrate is None:
            raise UnknownSchema(
                f"{what!r} has schema {str(schema)[:100]!r}, this version reads {', '.join([*migrations, newest])}; "
                "use the version of outlast that wrote it, or a newer one"
            )
        tree = migrate(tree)
    return tree
