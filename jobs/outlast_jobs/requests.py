"""What anybody, on any host, asks of a run's supervisor: one small file a request."""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from outlast_jobs import durable, safejson
from outlast_jobs.beneath import open_parent
from outlast_jobs.contract import Schema
from outlast_jobs.errors import IntegrityError, Malformed, UnknownSchema
from outlast_jobs.rundir import RunDirectory

_LIMIT = 64 * 1024
_NAME = re.compile(r"(\d{16}-[0-9a-f]{12})\.json")
_VERB = re.compile(r"[a-z][a-z-]{0,31}")


class Request(msgspec.Struct, frozen=True, tag_field="schema", tag=Schema.REQUEST):
    """One thing that was asked. ``id`` is the file's name, and orders requests by time."""

    id: str
    verb: str
    by: str
    at: float
    args: dict[str, Any] = {}


def write_request(run: RunDirectory, verb: str, args: Mapping[str, Any], who: str) -> str:
    """Ask the run's supervisor for something, durably; returns the id under which it will be answered."""
    if not _VERB.fullmatch(verb):
        raise ValueError(f'cannot ask for "{verb[:80]}": a verb is lower-case letters')
    now = time.time()
    request = Request(f"{int(now * 1_000_000):016d}-{uuid.uuid4().hex[:12]}", verb, who, now, dict(args))
    data = msgspec.json.encode(request) + b"\n"
    if len(data) > _LIMIT:
        raise ValueError(f'cannot ask for "{verb}": its arguments take over {_LIMIT} bytes')
    durable.replace_file(run.requests / f"{request.id}.json", data, root=run.path)
    return request.id


def read_requests(run: RunDirectory) -> list[Request]:
    """Everything that waits for an answer, oldest first; files that are no requests are passed over."""
    asked: list[Request] = []
    try:
        names = sorted(path.name for path in run.requests.iterdir())
    except FileNotFoundError:
        names = []
    for name in names:
        # one that was answered in the meantime is gone, one that is still being written has another name
        with contextlib.suppress(IntegrityError, OSError):
            if match := _NAME.fullmatch(name):
                asked.append(_read(run.requests / name, match[1]))
    return asked


def remove_request(run: RunDirectory, request_id: str) -> None:
    """Take away a request that was answered; no error where it is gone."""
    if not _NAME.fullmatch(f"{request_id}.json"):
        raise ValueError(f'cannot remove the request "{request_id[:80]}": not the id of a request')
    path = run.requests / f"{request_id}.json"
    parent = open_parent(run.path, path)  # through a link another run's request would go
    try:
        os.unlink(path.name, dir_fd=parent)
    except FileNotFoundError:
        pass
    finally:
        os.close(parent)


def _read(path: Path, request_id: str) -> Request:
    tree = safejson.parse_object(durable.read_file(path, _LIMIT), what=f'"{path}"', limit=_LIMIT)
    if tree.get("schema") != Schema.REQUEST:
        raise UnknownSchema(
            f'"{path}" has schema {tree.get("schema")!r}; this version reads {Schema.REQUEST!r}'
        )
    try:
        request = msgspec.convert(tree, Request)
    except msgspec.ValidationError as error:
        raise Malformed(f'"{path}" is no request: {error}') from None
    if request.id != request_id or not _VERB.fullmatch(request.verb):
        raise Malformed(f'"{path}" is no request: its id or verb is not one')
    return request
