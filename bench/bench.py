"""Measure what the supervisor costs and how fast it acts; prints a table, decides nothing.

Every figure is a median of several runs with its range. Ratios are measured side by side, in turn, on the same
bytes. Run it on a quiet machine: python bench/bench.py [--quick]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import goals

OUTLAST = str(Path(sys.executable).with_name("outlast"))
# compiled files are part of an installation; measuring without them would measure the compiler
ENV = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NO_COLOR": "1"}
MIB = 1 << 20


HELD: list[tuple[str, float, str, float]] = []
"""The figures that have a bound: what, how much, in what, at most."""


def row(name: str, values: list[float], unit: str, at_most: float | None = None) -> None:
    """One line of the table."""
    low, mid, high = min(values), statistics.median(values), max(values)
    print(f"{name:<58}{mid:>9.2f} {unit:<6} {f'{low:.2f} to {high:.2f}':>20}", flush=True)
    if at_most is not None:
        HELD.append((name, mid, unit, at_most))


def lines_of(path: Path, count: int, seconds: float = 60.0) -> list[float]:
    """Wait until a file has that many lines, and return them as numbers."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if path.exists():
            lines = path.read_text().splitlines()
            if len(lines) >= count:
                return [float(line) for line in lines]
        time.sleep(0.002)  # looked at so often; all times are read from what the lines say
    raise SystemExit(f'"{path}" did not get {count} lines in {seconds} s')


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a supervisor that says nothing."""
    return subprocess.Popen(
        [OUTLAST, "run", "--quiet", *words],
        cwd=folder,
        env=ENV,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End it as a cluster would; a shell may have us and all that we start ignore what a terminal sends."""
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)


def idle(folder: Path, seconds: float) -> None:
    """Memory and processor time while nothing happens."""
    process = start(folder, "--run-dir", "idle", "--", "sleep", "1000")
    time.sleep(5)  # what a start leaves to do is done by then: only idling is measured
    before = _cpu(process.pid)
    time.sleep(seconds)  # the stretch of time that is measured
    spent = (_cpu(process.pid) - before) * 60 / seconds
    status = Path(f"/proc/{process.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+)", status)
    end(process)
    row(
        "supervisor: resident memory, idle",
        [int(resident[1]) / 1024 if resident else 0.0],
        "MB",
        30,
    )
    row("supervisor: processor time a minute, idle", [spent], "s", 0.05)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def restarts(folder: Path, rounds: int) -> None:
    """From a worker's death to the exec of the next one: after a backoff, which is taken off, and at once.

    A worker notes when it was there and, by an exec of the same program, how long it took to be there: with that
    off, its first line is the instant of its exec.
    """
    line = "$0 $1 $EPOCHREALTIME >> born; echo $EPOCHREALTIME >> died; exit 3"
    command = f"exec bash -c 'echo {line}' $EPOCHREALTIME $OUTLAST_ATTEMPT"
    for name, backoff, goal in (
        ("after a backoff of 0.2 s", 0.2, 5),
        ("after a backoff of 20 ms", 0.02, 5),
        ("after one of 1 ms, so at once", 0.001, 5),
    ):
        where = folder / f"loop-{backoff}"
        where.mkdir()
        job = where / "loop.yaml"
        job.write_text(
            f"name: loop\ncommand: [bash, -c, {json.dumps(command)}]\n"
            f"restart: {{backoff: {backoff}s..{backoff}s, without_progress: {rounds + 50}}}\n"
        )
        process = start(where, str(job))
        lines_of(where / "died", rounds)
        born = [line.split() for line in (where / "born").read_text().splitlines()[:rounds]]
        died = lines_of(where / "died", rounds)
        end(process)
        starts = [float(there) - float(first) for first, _, there in born]
        firsts = [float(first) for first, _, _ in born]
        gaps = [(b - d - backoff) * 1000 for d, b in zip(died, firsts[1:], strict=False)]
        execs = [gap - 1000 * took for gap, took in zip(gaps, starts[1:], strict=True)]
        row(f"restart {name}: death to the next exec", execs, "ms", goal)
        row("  to the first line of the next worker, a bash", gaps, "ms")


def first_start(folder: Path, rounds: int) -> None:
    """From `outlast run` to the worker's first instruction, in a run directory of its own."""
    values = []
    for number in range(rounds):
        mark = folder / f"first-{number}"
        at = time.time()
        process = start(
            folder,
            "--run-dir",
            f"first-run-{number}",
            "--",
            "bash",
            "-c",
            f"echo $EPOCHREALTIME > {mark}; sleep 1000",
        )
        values.append((lines_of(mark, 1)[0] - at) * 1000)
        end(process)
    row("start: outlast run to the worker's first line", values, "ms", 150)


RELAY = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda number, frame: None)  # or it would not be passed on
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
open(sys.argv[1] + ".ready", "w").write("1\\n")
with open(sys.argv[1], "a") as file:
    while True:
        signal.sigwait([signal.SIGUSR1])
        print(repr(time.time()), file=file, flush=True)
"""


def relay(folder: Path, rounds: int) -> None:
    """From a signal to the supervisor to its arrival at the worker."""
    (folder / "relay.py").write_text(RELAY)
    mark = folder / "relayed"
    process = start(folder, "--run-dir", "relay", "--", sys.executable, str(folder / "relay.py"), str(mark))
    lines_of(Path(f"{mark}.ready"), 1)
    time.sleep(2)  # as above: a start is over
    values = []
    for number in range(rounds):
        at = time.time()
        process.send_signal(signal.SIGUSR1)
        values.append((lines_of(mark, number + 1)[number] - at) * 1000)
        time.sleep(0.05)  # a signal on the heels of another is one with it
    end(process)
    row("relay: a signal to the supervisor until the worker has it", values, "ms", 2)


def status(folder: Path, rounds: int) -> None:
    """The whole of `outlast status`, as a command."""
    values = []
    for _ in range(rounds):
        at = time.perf_counter()
        subprocess.run(
            [OUTLAST, "status", "idle"], cwd=folder, env=ENV, stdout=subprocess.DEVNULL, check=False
        )
        values.append((time.perf_counter() - at) * 1000)
    row("outlast status", values, "ms", 150)


IMPORTS = """
import time
import torch
at = time.perf_counter()
from outlast_worker import Checkpointer, batches
print(1000 * (time.perf_counter() - at))
"""


def imports(rounds: int) -> None:
    """What the library adds to importing torch."""
    values = [
        float(
            subprocess.run([sys.executable, "-c", IMPORTS], env=ENV, capture_output=True, check=True).stdout
        )
        for _ in range(rounds)
    ]
    row("import of Checkpointer and batches, beside torch", values, "ms", 40)


def throughput(folder: Path, size: int, rounds: int) -> None:
    """Saving and verifying against a raw write and against sha256 of the same bytes, in turn."""
    import torch

    from outlast_jobs import verify
    from outlast_jobs.claim import claim
    from outlast_jobs.generation import GenerationName
    from outlast_worker.saving import IndexFields, save_generation

    torch.set_num_threads(1)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    claim(checkpoints, 1)
    numbers = torch.randn(size // 4)
    data = memoryview(numbers.numpy()).cast("B")
    weights = {f"layer{n}.weight": part for n, part in enumerate(numbers.chunk(16))}
    state = {"schema": "outlast.meta/1", "parts": {"model": weights}, "kinds": {"model": "stateful"}}
    state |= {"counters": {"step": 1, "epoch": 0, "batch_in_epoch": 1}, "losses": [], "rng": {}, "extra": {}}
    taken: dict[str, list[float]] = {"raw": [], "sha": [], "save": [], "verify": []}

    def timed(name: str, what: Callable[[], object]) -> None:
        at = time.perf_counter()
        what()
        taken[name].append(time.perf_counter() - at)

    for number in range(1, rounds + 1):
        name = GenerationName(number, 1)
        state["counters"] = {"step": number, "epoch": 0, "batch_in_epoch": number}
        timed("raw", lambda: _raw_write(folder / "raw", data))
        timed("sha", lambda: hashlib.sha256(data).digest())
        timed(
            "save",
            lambda n=name: save_generation(checkpoints, n, state, run_id="0" * 32, fields=IndexFields()),
        )
        timed("verify", lambda n=name: verify.look(checkpoints / str(n), None, full=True))
        shutil.rmtree(checkpoints / str(name))
    mib = size / MIB
    for key, what in (
        ("raw", "raw write and fsync"),
        ("sha", "sha256"),
        ("save", "save"),
        ("verify", "verify"),
    ):
        row(f"throughput, {mib:.0f} MiB: {what}", [mib / t for t in taken[key]], "MiB/s")
    for ours, limit, what in (
        ("save", "raw", "a save to a raw write and fsync"),
        ("save", "sha", "a save to sha256"),
        ("verify", "sha", "verifying to sha256"),
    ):
        row(f"ratio of times: {what}", [a / b for a, b in zip(taken[ours], taken[limit], strict=True)], "")


def _raw_write(path: Path, data: memoryview) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def main() -> None:
    """All measurements, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller files")
    args = parser.parse_args()
    rounds = 5 if args.quick else 15
    print(
        json.dumps(
            {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
        )
    )
    print(f"{'':<58}{'median':>9} {'':<6} {'range':>20}")
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        folder = Path(name)
        idle(folder, 15 if args.quick else 60)
        first_start(folder, rounds)
        restarts(folder, 3 * rounds)
        relay(folder, 3 * rounds)
        status(folder, rounds)
        throughput(folder, (64 if args.quick else 300) * MIB, 3 if args.quick else 5)
        imports(5 if args.quick else 9)
    print()
    for name, found, unit, most in HELD:
        goals.value(name, found, unit, at_most=most)


if __name__ == "__main__":
    main()
