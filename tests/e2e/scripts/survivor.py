"""A trainer that a KILL of its supervisor leaves alive: with loaders, a stray daemon, and a step that never ends.

Beside the job file it leaves `lock`, held by it and by all that it starts; `two` if it finds that held, for then
two attempts live at once; and in `hung` its own pid and the daemon's, as soon as the step that never ends began.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import subprocess
import time
from pathlib import Path

import torch
from mini import Numbers
from torch import nn

from outlast_worker import Checkpointer, batches

# as a daemon is started: in a session of its own, its parent gone; it does not heed TERM
DAEMON = "trap '' TERM; while :; do sleep 0.2; done"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-seconds", type=float, default=0.005)
    parser.add_argument("--hang-at", type=int, default=0, help="in the first attempt")
    parser.add_argument("--titled", action="store_true", help="overwrite the environment that /proc shows")
    args = parser.parse_args()
    if args.titled:
        overwrite_environment()

    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        Path("two").touch()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = batches(Numbers(64), batch_size=8, workers=2, seed=1)
    ckpt = Checkpointer(model=model, optimizer=optimizer, data=data)
    with ckpt:
        for x, y in ckpt.steps(total=args.steps):
            if ckpt.step_count + 1 == args.hang_at and os.environ["OUTLAST_ATTEMPT"] == "1":
                hang(lock)
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            time.sleep(args.step_seconds)
            ckpt.step(loss=loss)


def overwrite_environment() -> None:
    """What programs do that set their own title: it is written where argv and the environment lie."""
    stat = Path("/proc/self/stat").read_bytes()
    start, end = map(int, stat[stat.rindex(b")") + 2 :].split()[47:49])  # proc(5): env_start, env_end
    ctypes.memset(start, 0, end - start)


def hang(lock: int) -> None:
    command = ["sh", "-c", f"( {DAEMON} ) >/dev/null 2>&1 & echo $!"]
    started = subprocess.run(
        command,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        pass_fds=(lock,),
        check=True,
    )
    Path("hung.tmp").write_text(f"{os.getpid()} {started.stdout}")
    Path("hung.tmp").rename("hung")
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
