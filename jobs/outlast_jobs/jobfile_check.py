"""Holds a job file's tree against the model, in the file's order: the first thing wrong is the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from outlast_jobs.jobfile_errors import JobFileError, did_you_mean, key_path, listed, near, quoted
from outlast_jobs.jobfile_fields import Spec, keys_of
from outlast_jobs.jobfile_model import SHORTHAND, Adopt, Job, Restart, Save, Section, Signals
from outlast_jobs.jobfile_values import ReadError, read_value
from outlast_jobs.jobfile_yaml import Items, Mapping, Node, Scalar
from outlast_jobs.pythoncommand import ASKED, parse_python


def check_job(tree: Mapping, file: str, *, resolved: bool) -> Job:
    """The job that a tree describes, its paths as written (in a resolved one a path may hold a "$")."""
    job: Job = _Checker(file, resolved).section(tree, Job, "")
    return job


class _Checker:
    def __init__(self, file: str, resolved: bool) -> None:
        self.file = file
        self.readers = {"path": "word"} if resolved else {}

    def section(self, tree: Mapping, section: type[Section], path: str) -> Any:
        keys = keys_of(section)
        values: dict[str, Any] = {}
        for name, node in tree.pairs.items():
            here = key_path(path, name)
            if name not in keys:
                self.unknown(name, section, here, tree.lines[name])
            if isinstance(node, Scalar) and node.value is None:
                continue  # "save:" with all below it commented out is the same as no "save" at all
            values[name] = self.value(node, keys[name].spec, here)
        for key in keys.values():
            if key.required and key.name not in values:
                here, expected = key_path(path, key.name), key.spec.expected
                raise JobFileError(
                    self.file, f"missing; expected {expected}", line=tree.line, key=here, expected=expected
                )
        made = section(**values)
        if rule := _RULES.get(section):
            for key_name, problem in rule(made, tree.pairs.keys()):
                line = tree.lines.get(key_name, tree.line)
                here = key_path(path, key_name) if key_name else path
                raise JobFileError(self.file, problem, line=line, key=here)
        return made

    def value(self, node: Node, spec: Spec, path: str) -> Any:
        if spec.section is not None:
            return self.subsection(node, spec, spec.section, path)
        if spec.element is None:
            return self.scalar(node, spec, path)
        if spec.is_mapping:
            return self.mapping(node, spec, spec.element, path)
        return self.items(node, spec, spec.element, path)

    def subsection(self, node: Node, spec: Spec, section: type[Section], path: str) -> Any:
        if isinstance(node, Mapping):
            return self.section(node, section, path)
        short = SHORTHAND.get(section)
        if short and isinstance(node, Scalar):
            return section(**{short: self.value(node, keys_of(section)[short].spec, path)})
        return self.wrong(node, spec, path)

    def mapping(self, node: Node, spec: Spec, element: Spec, path: str) -> dict[str, Any]:
        if not isinstance(node, Mapping):
            self.wrong(node, spec, path)
        for name in node.pairs:
            try:
                read_value(spec.keys or "word", name)
            except ReadError as error:
                problem = f"can't be set here: {error.hint}" if error.hint else "is no name that can be set"
                raise JobFileError(
                    self.file, problem, line=node.lines[name], key=key_path(path, name)
                ) from error
        return {name: self.value(value, element, key_path(path, name)) for name, value in node.pairs.items()}

    def items(self, node: Node, spec: Spec, element: Spec, path: str) -> tuple[Any, ...]:
        if not isinstance(node, Items):
            self.wrong(node, spec, path, hint=_list_hint(node, element))
        if spec.some and not node.items:
            self.wrong(node, spec, path)
        return tuple(self.value(item, element, f"{path}[{n}]") for n, item in enumerate(node.items))

    def scalar(self, node: Node, spec: Spec, path: str) -> Any:
        if not isinstance(node, Scalar):
            self.wrong(node, spec, path)
        try:
            reader = self.readers.get(spec.read or "", spec.read)
            value = read_value(reader, node.value) if reader else node.value
            return msgspec.convert(value, spec.checked)
        except ReadError as error:
            self.wrong(node, spec, path, hint=error.hint or _hint(node, spec, path))
        except msgspec.ValidationError:
            self.wrong(node, spec, path, hint=_hint(node, spec, path))

    def wrong(self, node: Node, spec: Spec, path: str, *, hint: str = "") -> NoReturn:
        nearest = near(node.text, spec.choices) if isinstance(node, Scalar) else None
        shown = _shown(node)
        if path.partition(".")[0] == "env" and isinstance(node, Scalar) and len(node.text) > _NO_SECRET:
            shown, hint = "another value", hint.partition(": ")[0]  # what stands there may be a secret
        problem = f"expected {spec.expected}, got {shown}"
        problem += did_you_mean(nearest) or (f"; {hint}" if hint else "")
        raise JobFileError(
            self.file, problem, line=node.line, key=path, expected=spec.expected, nearest=nearest
        )

    def unknown(self, name: str, section: type[Section], here: str, line: int) -> NoReturn:
        keys = keys_of(section)
        nearest = _elsewhere(name) or near(name, keys)
        expected = listed(keys)
        problem = f"unknown key{did_you_mean(nearest) or f'; expected {expected}'}"
        raise JobFileError(self.file, problem, line=line, key=here, expected=expected, nearest=nearest)


def _elsewhere(name: str) -> str | None:
    """Where a key that is right in itself belongs."""
    for key in keys_of(Job).values():
        if key.spec.section is not None and name in keys_of(key.spec.section):
            return f"{key.name}.{name}"
    return name if name in keys_of(Job) else None


def _shown(node: Node) -> str:
    if isinstance(node, Scalar):
        if node.value is None:
            return "nothing"
        return quoted(node.value) if isinstance(node.value, str) else node.text
    if isinstance(node, Items):
        return "a list" if node.items else "an empty list"
    return "a mapping"


def _hint(node: Scalar, spec: Spec, path: str) -> str:
    """What to do about the usual slips."""
    if spec.bare is str:
        if node.value is None:
            return 'write "" for an empty text'
        return "" if isinstance(node.value, str) else f"put it in quotes: {quoted(node.text)}"
    if isinstance(node.value, str) and spec.bare is int and node.text.strip().isdecimal():
        return "take the quotes off"
    if path == "keep.last" and node.value == 0:
        return "with none kept there would be nothing to resume from"
    return ""


def _list_hint(node: Node, element: Spec) -> str:
    if not isinstance(node, Scalar):
        return ""
    if element.choices:
        return f"write it as a list: [{near(node.text, element.choices) or node.text}]" if node.text else ""
    if element.bare is not str:
        return f"write it as a list: [{node.text}]" if isinstance(node.value, int) else ""
    import shlex

    try:
        words = shlex.split(node.text)
    except ValueError:
        words = node.text.split()
    return f"write it as a list: [{', '.join(map(_word, words))}]"


def _word(word: str) -> str:
    return word if word.isidentifier() or word.replace(".", "").replace("/", "").isalpha() else quoted(word)


_NO_SECRET = 4
"""Characters of a value in env that are shown: enough for a number or true, and for no password."""

_Problems = list[tuple[str, str]]


def _job_rule(job: Job, given: Any) -> _Problems:
    if not job.command[0]:
        return [("command", 'expected a program as the first word, got ""')]
    if job.standby and isinstance(why := parse_python(job.command), str):
        return [("standby", f"possible only with {ASKED}; of this command {why}")]
    if "preload" in given and not job.standby:
        return [("preload", 'has a meaning only with "standby: true"; add that or take this out')]
    if job.adopt is not None and job.signals.mode == "outlast":
        return [
            ("adopt", "is for scripts without the library; with it take this out, else write signals: native")
        ]
    if job.adopt is not None and job.start_from is not None:
        return [
            ("start_from", 'is a generation, and the script of "adopt" reads none; take one of the two out')
        ]
    return []


def _adopt_rule(adopt: Adopt, given: Any) -> _Problems:
    import shlex

    if not adopt.pattern:
        return [("pattern", 'expected a pattern such as "checkpoint-*", got ""')]
    if adopt.complete is not None and (not adopt.complete or {"", ".."} & set(adopt.complete.split("/"))):
        return [("complete", "expected the name of a file in the checkpoint's folder")]
    try:
        words = shlex.split(adopt.resume)
    except ValueError as error:
        return [("resume", f"expected words as in a shell: {error}")]
    if not any("{path}" in word for word in words):
        return [("resume", 'expected "{path}" in it, as in "--resume_from_checkpoint {path}"')]
    return []


def _signals_rule(signals: Signals, given: Any) -> _Problems:
    taken: dict[str, str] = {}
    for key in ("save", "stop", "stacks"):
        name = getattr(signals, key)
        if name in taken:
            other = taken[name]
            blamed = key if key in given else other  # the one that the file names, if only one is there
            return [
                (
                    blamed,
                    f"{name} is already what {other if blamed == key else key} takes; each needs its own",
                )
            ]
        taken[name] = key
    return []


def _save_rule(save: Save, given: Any) -> _Problems:
    for key in ("every_steps", "every_seconds"):
        if save.auto and getattr(save, key) is not None:
            return [(key, 'excluded by "every: auto"; take one of them out')]
    if not save.auto and "between" in given:
        return [("between", 'has a meaning only with "every: auto"; add that or take this out')]
    if save.every_steps is None and save.every_seconds is None and not save.auto:
        return [("", 'expected one of "every_steps", "every_seconds" or "every: auto", got none of them')]
    return []


def _restart_rule(restart: Restart, given: Any) -> _Problems:
    for code in restart.free_on:
        if code in restart.never_on:
            return [("free_on", f'{code} stands in "never_on" too; keep it in one of them')]
    return []


_RULES: dict[type[Section], Callable[[Any, Any], _Problems]] = {
    Job: _job_rule,
    Signals: _signals_rule,
    Save: _save_rule,
    Restart: _restart_rule,
    Adopt: _adopt_rule,
}
"""What keys of one section say about each other."""
