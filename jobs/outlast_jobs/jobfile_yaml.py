"""A job file as a tree with line numbers, read within limits: a hostile file costs one named error."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from outlast_jobs.jobfile_errors import JobFileError, key_path, quoted

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_VALUES = 10_000

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_TEXT_TAG = "tag:yaml.org,2002:str"
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, bool | None] = {
    word: value
    for value, words in ((None, "null Null NULL ~"), (True, "true True TRUE"), (False, "false False FALSE"))
    for word in words.split()
} | {"": None}


class Scalar(Struct, frozen=True):
    """A single value, and the text that stood for it."""

    line: int
    text: str
    value: str | int | float | bool | None
    weight: int


class Items(Struct):
    """A list."""

    line: int
    items: list[Node] = field(default_factory=list)
    weight: int = 1
    open: bool = True


class Mapping(Struct):
    """A mapping, in the file's order, with the line of each key."""

    line: int
    pairs: dict[str, Node] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    weight: int = 1
    open: bool = True
    key: str | None = None  # the key whose value comes next


Node = Scalar | Items | Mapping


def plain_value(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means by YAML 1.2's core rules.

    PyYAML follows 1.1, where ``on`` is true, ``04:00:00`` is 14400 and ``010`` is 8: none of them is what
    the writer of a job file means.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def read_text(path: Path) -> str:
    """The text of a job file; a symbolic link is followed, since configuration maps are mounted as links."""
    file = str(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise JobFileError(file, "is not a regular file; name a yaml file")
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise JobFileError(file, f"can't be read: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        if isinstance(error, JobFileError):
            raise
        raise JobFileError(quoted(file), "can't be read: the name holds a null character") from error
    if len(data) > MAX_BYTES:
        raise JobFileError(file, f"is larger than {MAX_BYTES >> 20} MiB; a job file is a page of text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JobFileError(
            file,
            f"byte 0x{data[error.start]:02x} is not utf-8; save the file as utf-8",
            line=data.count(b"\n", 0, error.start) + 1,
        ) from error


def parse(text: str, file: str) -> Mapping:
    """The tree of a job file's text."""
    import yaml  # 20 ms that only readers of job files pay

    if bad := _CONTROL.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise JobFileError(file, f"control character 0x{ord(bad[0]):02x} in the text; take it out", line=line)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = _Builder(file).build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(file, text, error) from error
    except yaml.YAMLError as error:
        raise JobFileError(file, f"is not valid yaml: {error}".splitlines()[0]) from error
    if root is None or (isinstance(root, Scalar) and root.value is None):
        raise JobFileError(file, 'is empty; expected at least the keys "name" and "command"')
    if not isinstance(root, Mapping):
        raise JobFileError(
            file, 'expected keys with values, such as "name: bytelm", at the top level', line=root.line
        )
    return root


def _syntax_error(file: str, text: str, error: Any) -> JobFileError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    lines = text.split("\n")
    row = lines[line - 1] if line and line <= len(lines) else ""
    if "\t" in row[: len(row) - len(row.lstrip())]:
        return JobFileError(file, "a tab in the indentation; yaml takes only spaces there", line=line)
    problem = f"not valid yaml: {error.problem}"
    if error.context:
        problem += f" {error.context}"
    if error.context_mark and error.context_mark.line + 1 != line:
        problem += f" that begins in line {error.context_mark.line + 1}"
    return JobFileError(file, problem, line=line)


class _Builder:
    """Builds the tree from parser events, on a stack of its own: depth is a number here, not recursion."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Node | None = None
        self.stack: list[Items | Mapping] = []
        self.anchors: dict[str, Node] = {}
        self.documents = 0
        self.weight = 0

    def build(self, events: Iterable[Any]) -> Node | None:
        for event in events:
            kind = type(event).__name__
            line = event.start_mark.line + 1
            if kind == "ScalarEvent":
                self.place(self.scalar(event, line), event, line)
            elif kind == "AliasEvent":
                self.place(self.aliased(event.anchor, line), None, line)
            elif kind in ("MappingStartEvent", "SequenceStartEvent"):
                self.start(Mapping(line) if kind == "MappingStartEvent" else Items(line), event, line)
            elif kind in ("MappingEndEvent", "SequenceEndEvent"):
                self.end()
            elif kind == "DocumentStartEvent":
                self.documents += 1
                if self.documents > 1:
                    raise JobFileError(self.file, "a second document begins; one job a file", line=line)
        return self.root

    def scalar(self, event: Any, line: int) -> Scalar:
        text = event.value
        weight = 1 + len(text) // 200  # so that an alias of a long text counts for what it is
        if event.tag not in (None, "!", _TEXT_TAG):
            raise self.tag_error(event.tag, line)
        is_plain = event.tag is None and event.implicit[0]
        return Scalar(line, text, plain_value(text) if is_plain else text, weight)

    def aliased(self, anchor: str, line: int) -> Node:
        node = self.anchors.get(anchor)
        if node is None:
            raise self.error(f'"*{anchor}" has no anchor "&{anchor}" before it', line)
        if not isinstance(node, Scalar) and node.open:
            raise self.error(f'"*{anchor}" stands inside its own anchor', line)
        return node

    def start(self, node: Items | Mapping, event: Any, line: int) -> None:
        if event.tag not in (None, "!"):
            raise self.tag_error(event.tag, line)
        if len(self.stack) >= MAX_DEPTH:
            raise JobFileError(
                self.file, f"nested more than {MAX_DEPTH} levels deep; a job needs 3", line=line
            )
        self.place(node, event, line)
        self.stack.append(node)

    def end(self) -> None:
        node = self.stack.pop()
        node.open = False
        if self.stack:
            self.stack[-1].weight += node.weight - 1  # its own place was counted when it was put there

    def place(self, node: Node, event: Any, line: int) -> None:
        if event is not None and event.anchor:
            self.anchors[event.anchor] = node
        self.weight += node.weight
        if self.weight > MAX_VALUES:
            problem = f"holds more than {MAX_VALUES:,} values, counting what aliases repeat"
            raise JobFileError(self.file, problem, line=line)
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        if isinstance(parent, Mapping) and parent.key is None:
            parent.key = self.new_key(parent, node, line)
            return
        parent.weight += node.weight
        if isinstance(parent, Items):
            parent.items.append(node)
        elif parent.key is not None:
            parent.pairs[parent.key] = node
            parent.key = None

    def new_key(self, parent: Mapping, node: Node, line: int) -> str:
        if not isinstance(node, Scalar):
            raise self.error("a list or mapping as a key; keys are plain words", line)
        if node.text in parent.pairs:
            path = key_path(self.here() or "", node.text)
            first = parent.lines[node.text]
            problem = f"stands here again, first in line {first}; keep one"
            raise JobFileError(self.file, problem, line=line, key=path)
        parent.lines[node.text] = line
        return node.text

    def here(self) -> str | None:
        """The path of what is being read, as far as it has one."""
        path = ""
        for depth, node in enumerate(self.stack, 1):
            inner = depth < len(self.stack)  # then what is being read was put in place when it began
            if isinstance(node, Items):
                path += f"[{len(node.items) - inner}]"
            elif node.key is not None:
                path = key_path(path, node.key)
            elif inner:
                path = key_path(path, next(reversed(node.pairs)))
        return path or None

    def error(self, problem: str, line: int) -> JobFileError:
        return JobFileError(self.file, problem, line=line, key=self.here())

    def tag_error(self, tag: str, line: int) -> JobFileError:
        short = tag.replace("tag:yaml.org,2002:", "!!")
        return self.error(f"yaml tag {quoted(short)} is not taken; write a plain value", line)
