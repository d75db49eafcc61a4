"""The child that asks a cloud's metadata service: `python -m outlast_supervisor.notices.watch PARENT CLOUD`.

A line of JSON on stdout for each thing that is news; it lives as long as the process that started it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from outlast_supervisor import linux
from outlast_supervisor.early import HEEDED

from . import aws, azure, gce
from .fetch import Service
from .words import Found, Told, Unreadable, clipped, encode, news

EVERY = "OUTLAST_NOTICES_EVERY"
"""Environment variable: seconds between two looks, in place of what each vendor recommends."""
TELL_AFTER = 3  # looks in vain before it is told: one alone happens anywhere
LONGEST_PAUSE = 60.0  # seconds between looks at a service that has never answered: it is not there


@dataclass(frozen=True)
class Watch:
    """What is asked in turn, and how often."""

    every: float
    looks: tuple[tuple[str, Callable[[], Found]], ...]  # source in words for people, and its look


def watches(cloud: str) -> tuple[Watch, ...]:
    """All that one cloud has to be asked; what can be held open has a watch of its own."""
    match cloud:
        case "aws":
            asks = aws.Aws(Service(os.environ.get(aws.NAME) or aws.BASE))
            looks = (("AWS's spot notice", asks.spot), ("AWS's rebalance recommendation", asks.rebalance))
            return (Watch(aws.EVERY, looks),)
        case "gce":
            host = os.environ.get(gce.NAME)
            service = Service(f"http://{host}" if host else gce.BASE)
            preempted, moved = gce.Gce(service, "preempted"), gce.Gce(service, "maintenance-event")
            return (
                Watch(gce.EVERY, (("GCE's preemption notice", preempted.look),)),
                Watch(gce.EVERY, (("GCE's maintenance event", moved.look),)),
            )
        case "azure":
            events = azure.Azure(Service(os.environ.get(azure.NAME) or azure.BASE))
            return (Watch(azure.EVERY, (("Azure's scheduled event", events.events),)),)
    raise ValueError(f'no cloud "{cloud}" is known')


@dataclass
class _Source:
    name: str
    look: Callable[[], Found]
    found: Found = ()
    failed: int = 0
    answered: bool = False

    def step(self) -> None:
        try:
            found = self.look()
        except Unreadable as error:
            self.failed += 1
            if self.failed == TELL_AFTER:
                _tell(Told("trouble", self.name, clipped(error)))
            return
        if self.failed >= TELL_AFTER:
            _tell(Told("well", self.name))
        self.failed, self.answered = 0, True
        for told in news(self.name, self.found, found, time.monotonic()):
            _tell(told)
        self.found = found


def _tell(told: Told) -> None:
    try:
        os.write(1, encode(told))
    except OSError:  # nobody reads any more
        os._exit(0)


def _watch(watch: Watch, every: float | None) -> None:
    sources = [_Source(name, look) for name, look in watch.looks]
    pause = usual = every if every is not None else watch.every
    while True:
        for source in sources:
            source.step()
        known = any(source.answered for source in sources)
        pause = usual if known else min(2 * pause, max(LONGEST_PAUSE, usual))
        time.sleep(pause)


def main() -> None:
    """Watch one cloud until the supervisor ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)  # what is sent to all of a job is not for us
    parent, cloud = int(sys.argv[1]), sys.argv[2]
    linux.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked to be told
        return
    every = os.environ.get(EVERY)
    seconds = max(0.01, float(every)) if every else None
    first, *others = watches(cloud)
    for watch in others:
        threading.Thread(target=_watch, args=(watch, seconds), daemon=True).start()
    _watch(first, seconds)


if __name__ == "__main__":
    main()
