"""A proof for people and for programs: lines, a page, and JSON. Pure, but for the one function that writes."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outlast_jobs import __version__, durable
from outlast_jobs.contract import Schema
from outlast_jobs.jobfile import command_digest
from outlast_jobs.units import format_duration
from outlast_supervisor.startup import code_digest

from .divergence import Divergence
from .proving import Proof
from .verdicts import DETECTED, ControlVerdict, FlowVerdict, Row

JSON, PAGE = "proof.json", "report.md"


def as_json(proof: Proof, protocol: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All of it, in plain values."""
    options = proof.options
    return {
        "schema": Schema.PROOF,
        "job": options.job.name,
        "verdict": proof.whole.word,
        "exit_code": int(proof.whole.answer),
        "reason": proof.whole.reason,
        "began": proof.began,
        "seconds": round(proof.seconds, 3),
        "steps": proof.last,
        "cuts": [asdict(cut) for cut in proof.cuts],
        "tolerance": options.tolerance,
        "only": list(options.only),
        "flows": [_flow(flow) for flow in proof.flows],
        "controls": [_control(control) for control in proof.controls],
        "notes": list(proof.notes),
        "environment": proof.reference.fingerprint,
        "code": proof.reference.start.get("code", {}),
        "command_digest": command_digest(options.job),
        "code_digest": code_digest(options.job),
        "outlast": __version__,
        "protocol": dict(protocol) if protocol else None,
    }


def lines(proof: Proof) -> list[str]:
    """What is printed: each flow, each control, the environment, and the verdict last."""
    told = [f"{flow.flow}: {_said(flow)}" for flow in proof.flows]
    told += [f"without {c.part}: {c.verdict}: {c.why}" for c in proof.controls]
    told += [f"note: {note}" for note in proof.notes]
    told += [f"{name}: {text}" for name, text in environment(proof.reference.fingerprint)]
    if proof.logs is not None:
        told.append(f'logs of the flows: "{proof.logs}"')
    told.append(f"{proof.options.job.name}: {proof.whole.word}: {proof.whole.reason}")
    return told


def environment(fingerprint: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the bits hang on, a line each."""
    get = fingerprint.get
    if not fingerprint:
        yield "environment", f"not known, {platform.platform()}"
        return
    names = ("python", "torch", "numpy", "outlast")
    yield "versions", ", ".join(f"{n} {str(get(n)).removeprefix('CPython ')}" for n in names)
    yield "machine", f"{get('cpu')}, torch uses {get('cpu_capability')}, {get('blas')}"
    yield "threads", f"{get('threads')}, and {get('interop_threads')} between operations"
    yield "devices", ", ".join(map(str, get("devices") or [])) or "none, CPU only"
    flags = get("determinism")
    if isinstance(flags, dict):
        on = [f"{name} {value}" for name, value in flags.items() if value not in (None, False)]
        yield "determinism", ", ".join(on) or "no flag set"
    yield "hash seed", str(get("hash_seed"))


def page(proof: Proof, protocol: Mapping[str, Any] | None = None) -> str:
    """The page for people, in Markdown."""
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(proof.began))
    took = format_duration(round(proof.seconds, 1))
    out = [
        f"# Proof of `{proof.options.job.name}`: {proof.whole.word}",
        "",
        f"{_sentence(proof.whole.reason)} {when}, {proof.last} steps, {took}.",
        "",
        *_flows_part(proof),
        *_controls_part(proof.controls),
    ]
    if protocol:
        out += ["## The job's own protocol", "", _sentence(str(protocol.get("text"))), ""]
    if proof.notes:
        out += ["## Notes", "", *(f"- {note}" for note in proof.notes), ""]
    out += ["## Environment", "", "| | |", "|---|---|"]
    out += [f"| {name} | {_cell(text)} |" for name, text in environment(proof.reference.fingerprint)]
    return "\n".join([*out, ""])


def write(folder: Path, proof: Proof, protocol: Mapping[str, Any] | None = None) -> None:
    """Leave both files in the folder."""
    text = json.dumps(as_json(proof, protocol), indent=2, ensure_ascii=False, allow_nan=False)
    durable.replace_file(folder / JSON, text.encode() + b"\n")
    durable.replace_file(folder / PAGE, page(proof, protocol).encode())


# --- parts of the page ---


def _flows_part(proof: Proof) -> Iterator[str]:
    if not proof.flows:
        return
    yield from (
        "## Flows against the uninterrupted run",
        "",
        "| flow | resumed from | verdict |",
        "|---|---|---|",
    )
    for flow in proof.flows:
        yield f"| {flow.flow} | {flow.restored or '-'} | {_cell(flow.verdict)} |"
    yield ""
    for flow in proof.flows:
        if not flow.held:
            yield f"**{flow.flow}**: {_sentence(_said(flow))}"
            yield ""
    names = list(dict.fromkeys(row.name for flow in proof.flows for row in flow.rows))
    if names:
        yield from ("### Part by part", "", f"| | {' | '.join(f.flow for f in proof.flows)} |")
        yield f"|---|{'---|' * len(proof.flows)}"
        for name in names:
            yield f"| {name} | {' | '.join(_cell(_verdict_on(flow, name)) for flow in proof.flows)} |"
        yield ""


def _controls_part(controls: Sequence[ControlVerdict]) -> Iterator[str]:
    if not controls:
        return
    yield from ("## What if it were left out", "", "| left out | verdict | |", "|---|---|---|")
    for control in controls:
        yield f"| {control.part} | {control.verdict} | {_cell(control.why)} |"
    yield ""


def _verdict_on(flow: FlowVerdict, name: str) -> str:
    found = next((row for row in flow.rows if row.name == name), None)
    return "-" if found is None else _row(found)


def _row(row: Row) -> str:
    if row.verdict not in ("diverged", "within tolerance"):
        return row.verdict
    by = f" by {row.largest!r}" if row.largest is not None else ""
    return f"{row.verdict}{by}"


def _said(flow: FlowVerdict) -> str:
    text: str = flow.verdict
    if flow.held:
        source = f", resumed from {flow.restored}" if flow.restored else ""
        counted = f", {flow.steps} steps compared" if flow.steps else ""
        return f"{text}{source}{counted}"
    if flow.first is not None:
        text += f" at {flow.first}" if not flow.first.at_restore else f" {flow.first}"
    return f"{text}: {flow.cause}" if flow.cause else text


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# --- parts of the JSON ---


def _flow(flow: FlowVerdict) -> dict[str, Any]:
    return {
        "flow": flow.flow,
        "verdict": flow.verdict,
        "resumed_from": flow.restored or None,
        "steps": flow.steps,
        "parts": {row.name: _plain_row(row) for row in flow.rows},
        "first": _divergence(flow.first),
        "cause": flow.cause or None,
        "seconds": round(flow.seconds, 3),
    }


def _plain_row(row: Row) -> dict[str, Any]:
    largest = row.largest if row.largest is not None and math.isfinite(row.largest) else None
    return {"verdict": row.verdict, "largest": largest, **({"note": row.note} if row.note else {})}


def _control(control: ControlVerdict) -> dict[str, Any]:
    return {
        "part": control.part,
        "verdict": control.verdict,
        "detected": control.verdict == DETECTED,
        "why": control.why,
        "first": _divergence(control.first),
        "seconds": round(control.seconds, 3),
    }


def _divergence(found: Divergence | None) -> dict[str, Any] | None:
    if found is None:
        return None
    amount = found.amount
    return {
        "step": found.step,
        "at_restore": found.at_restore,
        "thing": found.thing,
        "name": found.name,
        "expected": _json_value(found.old),
        "found": _json_value(found.new),
        "by": amount if amount is not None and math.isfinite(amount) else None,
        "also": list(found.also),
        "text": str(found),
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return value if isinstance(value, str | int | bool) or value is None else str(value)
