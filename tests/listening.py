"""A supervisor that only listens: it starts attempts of a small training script and decides nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tests.waiting import wait_until

from outlast_jobs.claim import claim
from outlast_jobs.generation import GenerationName, Index, decode_index
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.rundir import RunDirectory

TRAIN = """
import os, random, signal, sys, time
import numpy as np
import torch
from outlast_worker import Checkpointer, batches

torch.set_num_threads(1)
mode = os.environ.get("MODE", "")
total = int(os.environ.get("TOTAL", "40"))
pause = float(os.environ.get("PAUSE", "0.002"))
accumulate = int(os.environ.get("ACCUMULATE", "1"))
torch.manual_seed(1); random.seed(2); np.random.seed(3)

class Squares(torch.utils.data.Dataset):
    identity = {"name": "squares"}
    def __len__(self): return 30
    def __getitem__(self, i): return torch.tensor([float(i), random.random(), float(np.random.rand())]) / 30

width = 9 if mode == "wide" else 8
model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1))
kind = torch.optim.Adam if mode == "adam" else torch.optim.AdamW
if mode in ("mine", "newer"):  # an optimizer of somebody else's, and a later version of it, which has an option more
    class Mine(torch.optim.AdamW):
        def __setstate__(self, state):
            super().__setstate__(state)
            for group in self.param_groups if mode == "newer" else ():
                group.setdefault("warm", 0.5)
    kind = Mine
optimizer = kind(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
data = batches(Squares(), 4, workers=int(os.environ.get("WORKERS", "0")), seed=5, start_method="fork")
noise = np.random.default_rng(7)
ckpt = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, data=data, noise=noise)
print("before:", ckpt.extra.get("last"), ckpt.step_count, flush=True)

def update(found):
    loss = torch.zeros(())
    for batch in found if accumulate > 1 else [found]:
        moved = batch + torch.rand(()) + random.random() + np.random.rand() + noise.random()
        loss = loss + model(moved).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); scheduler.step()
    return loss

def evaluate():
    torch.rand(9); random.random(); np.random.rand(3)
    for parameter in model.parameters(): parameter.data.mul_(2)  # other weights, swapped in
    while os.environ["OUTLAST_ATTEMPT"] == "1" and "SHORT" not in os.environ:
        ckpt.poll(); time.sleep(0.005)
    for parameter in model.parameters(): parameter.data.mul_(0.5)

with ckpt:
    for found in ckpt.steps(total, accumulate):
        loss, at = update(found), ckpt.step_count + 1
        time.sleep(pause)
        if mode == "nan" and at == 5: loss = loss * float("nan")
        if mode == "raise" and at == 7: raise ValueError("bad luck")
        if mode == "exit" and at == 7: sys.exit(3)
        if mode == "full" and at in (10, 11):
            import resource
            if at == 11: ckpt._session.seals.settle(wait=True)  # it is full until the save has ended
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 if at == 10 else -1, -1))
        ckpt.extra["last"] = at
        ckpt.step(loss, step=at - 3 if mode == "ignore" else None)
        if mode == "eval" and ckpt.step_count == 6:
            with ckpt.phase("eval"): evaluate()
        if mode == "break" and ckpt.step_count == 12: break
print("after", ckpt.step_count, ckpt.epoch, ckpt.batch_in_epoch, flush=True)
"""

_ZYGOTE = """
import atexit, json, os, runpy, signal, sys, threading, traceback
import numpy, torch, torch._dynamo
import outlast_worker.checkpointer, outlast_worker.session
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("wait"):
        print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0); os.dup2(log, 1); os.dup2(log, 2)
    break
else:
    sys.exit()
code = 0
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit as error:
    code = error.code or 0
except BaseException:
    traceback.print_exc()
    code = 1
# As an interpreter ends, but for taking its modules apart: with torch that lasts longer than the training.
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(code)
"""


_MARK = b"all before this is heard"


class Zygote:
    """A process that has imported torch and forks a trainer when asked: importing takes seconds each time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fork(self, cwd: Path, env: dict[str, str], log: Path) -> int:
        return int(self._ask({"cwd": str(cwd), "env": env, "log": str(log)}))

    def wait(self, pid: int) -> int:
        return int(self._ask({"wait": pid}))

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> str:
        to, back = _pipe(self._process.stdin), _pipe(self._process.stdout)
        to.write(json.dumps(request) + "\n")
        to.flush()
        return back.readline()


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise RuntimeError("the process was started without pipes")
    return stream


class Trainer:
    """One attempt."""

    def __init__(self, zygote: Zygote, pid: int, log: Path, caught_up: Callable[[], None]) -> None:
        self.pid = pid
        self.log = log
        self._zygote = zygote
        self._caught_up = caught_up
        self._code: int | None = None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def finish(self) -> tuple[int, str]:
        """Exit code and output; by then all that it said is heard. The pid is not free before this."""
        if self._code is None:
            state = Path(f"/proc/{self.pid}/stat")
            wait_until(lambda: state.read_text().rsplit(") ", 1)[1][0] == "Z", 60, "the trainer's end")
            self._code = self._zygote.wait(self.pid)
            self._caught_up()
        return self._code, self.log.read_text()

    def end(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._code = self._zygote.wait(self.pid)


class Listener:
    """One run, its attempts and what they said."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        folder.mkdir()
        self.folder = folder
        self.run = RunDirectory(folder / "run")
        self.run_id = self.run.create().run.run_id
        self.heard: list[dict[str, str]] = []
        self.address = str(folder / "n")
        self.attempt = 0
        self._zygote = zygote
        self._started: list[Trainer] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._marked = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        (folder / "train.py").write_text(TRAIN)

    def environment(self, **changes: str) -> dict[str, str]:
        """What a supervisor sets for the next attempt, which is claimed by this call."""
        self.attempt += 1
        self.heard.clear()
        claim(self.run.checkpoints, self.attempt)
        newest = self.newest()
        return {
            **os.environ,
            "NOTIFY_SOCKET": self.address,
            "OUTLAST_RUN": str(self.run.path),
            "OUTLAST_RUN_ID": self.run_id,
            "OUTLAST_ATTEMPT": str(self.attempt),
            "OUTLAST_CHECKPOINTS": str(self.run.checkpoints),
            "OUTLAST_SUPERVISOR": str(ProcessIdentity.current()),
            "OUTLAST_RECORD_IDS": "1",
            "PYTHONHASHSEED": "0",
            **({"OUTLAST_RESUME": str(newest)} if newest else {}),
            **changes,
        }

    def start(self, **changes: str) -> Trainer:
        """Start the next attempt, from the newest generation where there is one."""
        log = self.folder / f"log-{self.attempt + 1}"
        pid = self._zygote.fork(self.folder, self.environment(**changes), log)
        trainer = Trainer(self._zygote, pid, log, self._catch_up)
        self._started.append(trainer)
        return trainer

    def through(self, **changes: str) -> tuple[int, str]:
        """Start the next attempt and wait for its end."""
        return self.start(**changes).finish()

    def generations(self) -> list[Path]:
        names = [name for path in self.run.checkpoints.iterdir() if (name := GenerationName.parse(path.name))]
        return [self.run.checkpoints / str(name) for name in sorted(names)]

    def newest(self) -> Path | None:
        return next(iter(reversed(self.generations())), None)

    def index(self, path: Path | None = None) -> Index:
        found = path or self.newest()
        if found is None:
            raise FileNotFoundError("no generation")
        return decode_index((found / "index.json").read_bytes())

    def values(self, key: str) -> list[str]:
        return [message[key] for message in list(self.heard) if key in message]

    def wait(self, key: str, value: str | None = None) -> None:
        wait_until(lambda: any(value in (None, found) for found in self.values(key)), 60, f"{key} {value}")

    def wait_for_step(self, step: int) -> None:
        steps = "X_OUTLAST_STEP"
        wait_until(lambda: any(int(found) >= step for found in self.values(steps)), 60, f"step {step}")

    def history(self) -> dict[int, dict[str, Any]]:
        """Each step once, from the attempt that went on, without the clock."""
        steps: dict[int, dict[str, Any]] = {}
        for path in sorted(self.run.metrics.iterdir()):
            header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
            steps = {step: line for step, line in steps.items() if step <= header["restored_step"]}
            steps.update({line["step"]: line | {"t": None} for line in lines})
        return steps

    def fall_silent(self) -> None:
        """As a supervisor that was killed: nobody is at the socket any more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", self.address)  # ends the reader, which would keep the socket open
        self._reader.join()
        self._socket.close()

    def close(self) -> None:
        for trainer in self._started:
            trainer.end()
        self._socket.close()

    def _catch_up(self) -> None:
        """Wait until everything that was sent by now is heard."""
        self._marked.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            try:
                sock.sendto(_MARK, self.address)
            except OSError:  # a test has closed the socket, or removed it
                return
        if not self._marked.wait(60):
            raise TimeoutError("waited 60 s in vain for what the trainer said")

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._socket.recv(8192):
                if data == _MARK:
                    self._marked.set()
                    continue
                self.heard.append(dict(line.split("=", 1) for line in data.decode().split("\n")))
