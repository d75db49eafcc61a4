"""A training that changes its weights between boundaries in the way MODE names, and writes down what each state was."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch

from outlast_worker import Checkpointer, flight, imaging, meanwhile, sources, window, writing
from outlast_worker.digest import state_sha256
from outlast_worker.snapshot import clone

MODE = os.environ.get("MODE", "")
TOTAL = int(os.environ.get("TOTAL", "24"))
SKIPPED = int(os.environ.get("SKIPPED", "0"))  # the first steps, which change nothing
sources.REHEARSALS = int(os.environ.get("REHEARSALS", "0"))
sources.CHECK_EVERY = int(os.environ.get("CHECKED", "50"))
window.SAMPLES = int(os.environ.get("SAMPLES", "500"))
modes: list[str] = []
_into, _run, _side_by_side = imaging.into, flight.Flight._run, writing.side_by_side
threads: list[str] = []


def side_by_side(jobs: Any, most: int | None = None) -> None:
    threads.append(str(most))
    _side_by_side(jobs, most)


def into(buffer: Any, planned: Any, mode: Any, movable: Any, transfers: Any) -> Any:
    found = _into(buffer, planned, mode, movable, transfers)
    there = found.transfers.open + found.transfers.compared
    modes.append(f"{mode}:{len(found.meanwhile) + len(found.rehearsed) + there}")
    return found


def as_late_as_can_be(self: Any) -> None:
    """The thread begins when the training's own has copied all: whatever changes before that is in the copy."""
    while self.open:
        time.sleep(0.001)
    _run(self)


changed, written = threading.Event(), threading.Event()
_confirmed = flight.Flight._confirmed


def after_the_change(self: Any) -> None:
    """The thread copies what the script has changed by then, and writes it all before the next update."""
    changed.wait()
    _run(self)


def confirmed(self: Any) -> None:
    written.set()
    _confirmed(self)


def let_it_write() -> None:
    found = ckpt._session and ckpt._session.seals.meanwhile.flight
    if LATE == "2" and found and found.step == ckpt.step_count:
        changed.set()
        written.wait(60)
        found._ended.wait(0.5)  # it would be sealed by then
        changed.clear()
        written.clear()


def slowly(self: Any) -> None:
    """This save waits to be sealed until the next one waits for it, and a second more."""
    while self.step == SLOW and ckpt.step_count < SLOW + 4:
        time.sleep(0.001)
    time.sleep(1.0 if self.step == SLOW else 0.0)
    _confirmed(self)


# all but single numbers lies on a device, which reaches the buffer or not
DEVICE = os.environ.get("DEVICE", "")
device: Any = None
if DEVICE:
    import streams

    device = streams.Late(lambda tensor: tensor.dim() > 0, pins=DEVICE == "pinned")
    meanwhile.devices = lambda: device
LATE = os.environ.get("LATE", "0" if DEVICE else "1")
SLOW = int(os.environ.get("SLOW", "0"))
if SLOW:
    flight.Flight._confirmed = slowly  # type: ignore[method-assign]
meanwhile.into = into
writing.side_by_side = side_by_side
if LATE != "0":
    flight.Flight._run = as_late_as_can_be if LATE == "1" else after_the_change  # type: ignore[method-assign]
    flight.Flight._confirmed = confirmed  # type: ignore[method-assign]

_carry = window.Copying._carry


def interrupted(self: Any) -> None:
    """A signal's handler raises in the training's own thread, while it helps with the copy of step 8."""
    found = ckpt._session and ckpt._session.seals.meanwhile.flight
    if found and found.step == 8 and threading.current_thread() is threading.main_thread():
        window.Copying._carry = _carry  # type: ignore[method-assign]
        self._left.pop()
        raise KeyboardInterrupt
    _carry(self)


if MODE.startswith("interrupted"):
    window.Copying._carry = interrupted  # type: ignore[method-assign]

torch.manual_seed(1)
torch.set_num_threads(1)
net = torch.nn.Sequential(
    torch.nn.Linear(6, 40), torch.nn.BatchNorm1d(40), torch.nn.ReLU(), torch.nn.Linear(40, 1)
)
base = torch.nn.Linear(6, 6).requires_grad_(False)
if MODE.startswith("frozen"):
    net.insert(0, base)
optimizer = torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
average = torch.optim.swa_utils.AveragedModel(net)
shadow = [torch.zeros_like(p) for p in net.parameters()]
ckpt = Checkpointer(model=net, optimizer=optimizer, scheduler=scheduler, average=average)


@torch.no_grad()
def change() -> None:
    if ckpt.step_count <= SKIPPED:
        return
    match MODE:
        case "clip" | "frozen clip":
            for p in net.parameters():
                p.clamp_(-0.11, 0.11)
        case "swap":
            for p, other in zip(net.parameters(), shadow, strict=True):
                kept = p.clone()
                p.copy_(other)
                other.copy_(kept)
            net(torch.randn(9, 6))
            for p, other in zip(net.parameters(), shadow, strict=True):
                p.copy_(other * 1.01)
        case "pointer":  # another memory behind the parameter, and back
            for p in net.parameters():
                kept = p.data
                p.data = kept * 2
                p.data.mul_(0.5)
        case "data":
            for p in net.parameters():
                p.data.mul_(0.99)
        case "numpy":
            for p in net.parameters():
                p.detach().numpy()[...] *= 0.99
        case "load":
            net.load_state_dict(
                {k: v * 0.99 if v.is_floating_point() else v for k, v in net.state_dict().items()}
            )
        case "frozen seen":
            base.weight.mul_(0.99)
        case "frozen unseen":
            base.weight.data.mul_(0.99)
        case "moments":
            for entries in optimizer.state.values():
                entries["exp_avg"].mul_(0.5)


@torch.no_grad()
def replay(capture: bool) -> None:
    """An update that a graph makes: recorded once, and afterwards done where nobody sees it."""
    if capture:
        device.recording = True
        optimizer.step()
        device.recording = False
    for p in net.parameters():
        p.data.sub_(0.01 * p.grad)
        for entry in optimizer.state[p].values():
            if entry.dim():  # what is on the host no graph changes
                entry.data.mul_(0.9)


def update() -> torch.Tensor:
    found = net(torch.randn(16, 6))
    loss = found.square().mean() + 0.1 * found.mean()
    optimizer.zero_grad()
    loss.backward()
    if MODE == "hand" and ckpt.step_count > SKIPPED:
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(0.01 * p.grad)
    elif MODE == "graph" and ckpt.step_count > SKIPPED:
        replay(capture=ckpt.step_count == SKIPPED + 1)
    elif MODE != "skip":
        optimizer.step()
    if device is not None:
        device.let_go()
        device.broken = MODE == "broken" and ckpt.step_count > SKIPPED
    average.update_parameters(net)
    scheduler.step()
    return loss


with ckpt, open("states", "a") as states:
    while ckpt.step_count < TOTAL:
        try:
            loss = update()
        except KeyboardInterrupt:
            if MODE != "interrupted and caught":
                raise
            loss = update()
        ckpt.extra["list"] = [ckpt.step_count, bytearray(b"x")]
        at = ckpt.step_count + 1
        if MODE == "killed" and at == 14:
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            ckpt.step(loss)
        finally:
            print(at, state_sha256(clone(ckpt._state.capture())), file=states, flush=True)
        if MODE == "raise" and at == 12:
            raise ValueError("bad luck")
        ckpt.extra["list"][0] = -1
        ckpt.extra["list"][1][0] = 0
        if ckpt._session is not None:
            ckpt._session.seals.meanwhile.buffers.settled()
        change()
        let_it_write()
        time.sleep(0.5 if at == SLOW else 0.0)
print("modes", *modes, flush=True)
print("threads", *threads, flush=True)
if device is not None and (made := ckpt._session and ckpt._session.seals.meanwhile.buffers._ready):
    print("pinned:", made.pinned)
