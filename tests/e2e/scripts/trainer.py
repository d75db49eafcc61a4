"""A trainer that knows nothing of outlast: folders checkpoint-N, as it is told to go on from one; no torch."""

from __future__ import annotations

import argparse
import json
import os
import time
import zipfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=5)
parser.add_argument("--hang-at", type=int, default=-1, help="stop for ever in the middle of this step's save")
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--resume_from_checkpoint", type=Path)
options = parser.parse_args()

total = first = 0
if options.resume_from_checkpoint:
    with zipfile.ZipFile(options.resume_from_checkpoint / "model.pt") as archive:
        total = json.loads(archive.read("total"))
    first = json.loads((options.resume_from_checkpoint / "trainer_state.json").read_text())["step"]
print(f"begins behind {first}", flush=True)
for step in range(first + 1, options.steps + 1):
    time.sleep(0.01)
    total = (total * 31 + step) % 1_000_003
    if step == options.fail_at:
        raise SystemExit(f"fails at {step}")
    if step % options.every == 0:
        folder = Path("out", f"checkpoint-{step}")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / "model.pt", "w") as archive:
            archive.writestr("total", json.dumps(total))
            archive.writestr("weights", os.urandom(20_000))
        if step == options.hang_at and not options.resume_from_checkpoint:
            Path("hangs").touch()
            time.sleep(600)
        (folder / "trainer_state.json").write_text(json.dumps({"step": step}))
print(f"total {total}", flush=True)
Path("total").write_text(str(total))
