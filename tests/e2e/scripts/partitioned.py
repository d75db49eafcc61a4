"""A trainer whose first attempt is cut off from its host, as on a node that the network has lost.

It trains on in a mount namespace of its own, where the run directory has another path and its locks are out of
reach; nothing in /proc tells whose it is; and no signal comes when its supervisor dies. At one moment it waits
until somebody opens the fifo `go` for writing: `paused` holds its pid by then. The moment is an argument:
`step`, in the middle of step 8, or `save`, when the generation of step 10 is written and not yet published.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

STEPS = 30
INSIDE = "--inside"
# tests find the processes that they started by this one, which is no sign of a run
KEPT = ("PATH", "OUTLAST_E2E_MARK", "PYTHONPATH")
ISLAND = """
set -e
mount --bind "$1" "$2"
: > "$3"
mount --bind "$3" "$2/alive"
shift 3
exec env -i "$@"
"""


def cut_off() -> None:
    """Go on in a place of our own; does not return."""
    run = Path(os.environ["OUTLAST_RUN"])
    here = Path.cwd() / "elsewhere"
    here.mkdir()
    moved = {k: v.replace(str(run), str(here)) for k, v in os.environ.items() if k.startswith("OUTLAST_")}
    Path("moved.json").write_text(json.dumps({**moved, "NOTIFY_SOCKET": os.environ["NOTIFY_SOCKET"]}))
    ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG, none
    os.closerange(3, 4096)  # `alive` among them
    kept = [f"{name}={os.environ[name]}" for name in KEPT if name in os.environ]
    command = [sys.executable, __file__, sys.argv[1], INSIDE]
    island = [str(run), str(here), str(Path.cwd() / "alive-elsewhere")]
    os.execvp("unshare", ["unshare", "--mount", "sh", "-c", ISLAND, "sh", *island, *kept, *command])


def wait_to_be_let_go() -> None:
    Path("paused.tmp").write_text(str(os.getpid()))
    Path("paused.tmp").rename("paused")
    os.close(os.open("go", os.O_RDONLY))


def pause_before_publishing(step: int) -> None:
    from outlast_jobs import durable

    publish = durable.rename_to_free_name

    def paused(source: Path, target: Path) -> None:
        if target.name.startswith(f"step-{step:09d}."):
            wait_to_be_let_go()
        publish(source, target)

    durable.rename_to_free_name = paused


def train(pause_at: int) -> None:
    import torch
    from mini import Numbers
    from torch import nn

    from outlast_worker import Checkpointer, batches

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = batches(Numbers(64), batch_size=8, seed=1)
    ckpt = Checkpointer(model=model, optimizer=optimizer, data=data)
    with ckpt:
        for x, y in ckpt.steps(total=STEPS):
            if ckpt.step_count + 1 == pause_at:
                wait_to_be_let_go()
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            time.sleep(0.005)
            ckpt.step(loss=loss)


def main() -> None:
    moment = sys.argv[1]
    if INSIDE in sys.argv:
        os.environ.update(json.loads(Path("moved.json").read_text()))
        if moment == "save":
            pause_before_publishing(10)
        train(pause_at=8 if moment == "step" else 0)
    elif os.environ["OUTLAST_ATTEMPT"] == "1":
        cut_off()
    else:
        train(pause_at=0)


if __name__ == "__main__":
    main()
