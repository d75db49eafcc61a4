"""What the model says about each key, taken apart once for those who check, write and describe job files."""

from __future__ import annotations

import functools
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from outlast_jobs.jobfile_errors import listed
from outlast_jobs.jobfile_model import EXAMPLES, Section


class Spec(msgspec.Struct, frozen=True):
    """A type of the model: ``bare`` without notes, ``checked`` with the limits that msgspec holds it to."""

    bare: Any
    checked: Any
    expected: str
    description: str
    read: str | None  # a reader of jobfile_values
    keys: str | None  # the same, for the keys of a mapping
    some: bool  # a list that must not be empty
    limits: tuple[msgspec.Meta, ...]

    @property
    def section(self) -> type[Section] | None:
        """The section that this is, if it is one."""
        return self.bare if isinstance(self.bare, type) and issubclass(self.bare, Section) else None

    @property
    def is_mapping(self) -> bool:
        """Whether this holds names with a value each."""
        return get_origin(self.bare) is dict

    @property
    def element(self) -> Spec | None:
        """What a list or a mapping holds, if this is one."""
        if self.is_mapping:
            return spec_of(get_args(self.bare)[1])
        is_list = get_origin(self.bare) is tuple and self.read is None  # a range is a pair, read from a text
        return spec_of(get_args(self.bare)[0]) if is_list else None

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be, if it is one of several."""
        return get_args(self.bare) if get_origin(self.bare) is Literal else ()


class Key(msgspec.Struct, frozen=True):
    """A key of a section."""

    name: str
    spec: Spec
    required: bool
    default: Any


@functools.cache
def keys_of(section: type[Section]) -> dict[str, Key]:
    """The keys that a person may write in a section, in the model's order."""
    return {
        field.name: Key(
            field.name,
            spec_of(field.type),
            field.required,
            field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default,
        )
        for field in msgspec.structs.fields(section)
        if get_origin(field.type) is Annotated  # the others are filled in by the program
    }


@functools.cache
def spec_of(annotation: Any) -> Spec:
    """Takes an annotation apart: notes, an optional None, the type itself."""
    bare = checked = annotation
    notes: list[msgspec.Meta] = []
    while True:
        if get_origin(bare) is Annotated:
            notes = [*bare.__metadata__, *notes]
            checked, bare = bare, bare.__origin__
        elif get_origin(bare) in (Union, types.UnionType) and type(None) in get_args(bare):
            left = tuple(part for part in get_args(bare) if part is not type(None))
            bare = checked = Union[left]  # noqa: UP007
        else:
            break
    told: dict[str, Any] = {}
    for note in notes:
        told.update({name: value for name, value in (note.extra or {}).items() if value is not None})
    return Spec(
        bare=bare,
        checked=checked,
        expected=told.get("expected") or _expected(bare),
        description=next((note.description for note in reversed(notes) if note.description), ""),
        read=told.get("read"),
        keys=told.get("keys"),
        some=told.get("some", False),
        limits=tuple(notes),
    )


def _expected(bare: Any) -> str:
    if get_origin(bare) is Literal:
        return listed(get_args(bare))
    if bare in EXAMPLES:
        return f"keys with values such as {EXAMPLES[bare]}"
    return "text, a number, true or false"
