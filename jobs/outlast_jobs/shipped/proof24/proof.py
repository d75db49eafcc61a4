"""The protocol: four flows, each in a fresh process and a fresh folder, and the comparison of what they left.

    python proof.py --output DIR

Leaves DIR/verification.json. Exit code 0: it held; 1: the comparison failed; 2: it could not be completed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
HELD, DID_NOT_HOLD, UNDECIDED = 0, 1, 2
STEPS, CUT = 10, 5


class NotCompleted(RuntimeError):
    """A flow failed, so that there is nothing to compare."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the whole protocol. It is all done by other processes: this one never loads torch."""
    parser = argparse.ArgumentParser(
        description="prove that a resumed run is the run, on a run of ten updates"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="a folder that does not exist yet")
    output = Path(parser.parse_args(argv).output).absolute()
    try:
        output.mkdir(parents=True)
        first = f"{output / 'cut' / 'checkpoint.pt'}"
        _flows(output, {"continuous": ["--steps", str(STEPS)], "cut": ["--steps", str(CUT)]})
        rest = ["--steps", str(STEPS - CUT), "--resume", first]
        _flows(output, {"resumed": rest, "without-rng": [*rest, "--without-rng"]})
        code = subprocess.run(_command("verify.py", str(output)), check=False, env=_environment()).returncode
    except FileExistsError:
        print(f"proof24: {str(output)!r} exists already; name a folder that does not", file=sys.stderr)
        return UNDECIDED
    except (OSError, NotCompleted) as error:
        print(f"proof24: the proof could not be completed: {error}", file=sys.stderr)
        return UNDECIDED
    return code if code in (HELD, DID_NOT_HOLD) else UNDECIDED


def _flows(output: Path, flows: dict[str, list[str]]) -> None:
    """Flows that need nothing of each other, side by side."""
    running = {
        name: subprocess.Popen(
            _command("flow.py", "--output", str(output / name), *words),
            env=_environment(),
            stdin=subprocess.DEVNULL,
        )
        for name, words in flows.items()
    }
    codes = {name: process.wait() for name, process in running.items()}
    for name, code in codes.items():
        print(f"flow {name}: {'done' if code == 0 else f'exit code {code}'}", flush=True)
    if failed := [name for name, code in codes.items() if code]:
        raise NotCompleted(f"the flow {failed[0]!r} failed")


def _command(script: str, *words: str) -> list[str]:
    optimized = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    return [sys.executable, *optimized, str(HERE / script), *words]


def _environment() -> dict[str, str]:
    """One thread, no device, and no supervisor's hand in it."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("OUTLAST_")}
    return {**inherited, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


if __name__ == "__main__":
    sys.exit(main())
