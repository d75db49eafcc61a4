"""The JSON Schema of the job file, for editors."""

from __future__ import annotations

from typing import Any

from outlast_jobs.contract import Schema
from outlast_jobs.jobfile_fields import Spec, keys_of
from outlast_jobs.jobfile_model import SHORTHAND, Job, Section

_NUMBER = r"\d+(\.\d+)?"
_DURATION = rf"^\s*({_NUMBER}|\d+:[0-5]\d:[0-5]\d|({_NUMBER}\s*(d|h|m|s|ms)\s*)+)$"
_RANGE = rf"^\s*{_NUMBER}\s*[a-z]*\s*\.\.\s*{_NUMBER}\s*[a-z]*\s*$"
_READ: dict[str, dict[str, Any]] = {
    "duration": {"type": ["string", "number"], "pattern": _DURATION, "examples": ["30s", "10m", "1h30m"]},
    "size": {
        "type": ["string", "integer"],
        "pattern": rf"^\s*{_NUMBER}\s*([KMGTP]i?)?B?\s*$",
        "examples": ["500MB", "20GiB"],
    },
    "range": {"type": "string", "pattern": _RANGE, "examples": ["1s..60s"]},
    "name": {"type": "string", "pattern": r"^[^/.\s-][^/]{0,99}$"},
    "path": {"type": "string", "minLength": 1},
    "shell": {"type": "string", "minLength": 1},
    "signal": {"type": "string", "pattern": "^([sS][iI][gG])?[A-Za-z0-9]+$", "examples": ["USR1", "TERM"]},
    "slurm_time": {"type": "string", "examples": ["04:00:00", "2-00:00:00"]},
}
_BARE: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    str | int | bool: {"type": ["string", "integer", "boolean"]},
}
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum"}


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12, with the meaning of each key."""
    schema = _section(Job)
    schema["properties"]["schema"] = {"const": Schema.JOB, "description": "the format of this file"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "outlast job file",
        **schema,
    }


def _section(section: type[Section]) -> dict[str, Any]:
    keys = keys_of(section).values()
    properties = {}
    for key in keys:
        described = {"description": key.spec.description, **_type(key.spec)}
        if key.spec.choices and isinstance(key.default, str):
            described["default"] = key.default
        properties[key.name] = described
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := [key.name for key in keys if key.required]:
        schema["required"] = required
    return schema


def _type(spec: Spec) -> dict[str, Any]:
    if spec.section is not None:
        return _section_or_word(spec.section)
    if spec.choices:
        return {"enum": list(spec.choices)}
    if spec.element is not None:
        inner = _type(spec.element)
        if spec.is_mapping:
            return {"type": "object", "additionalProperties": inner}
        return {"type": "array", "items": inner, **({"minItems": 1} if spec.some else {})}
    limits = {
        word: limit
        for note in spec.limits
        for name, word in _LIMITS.items()
        if (limit := getattr(note, name)) is not None
    }
    return {**_READ.get(spec.read or "", _BARE.get(spec.bare, {})), **limits}


def _section_or_word(section: type[Section]) -> dict[str, Any]:
    written = _section(section)
    short = SHORTHAND.get(section)
    return {"anyOf": [_type(keys_of(section)[short].spec), written]} if short else written
