"""A trainer with two loader processes that counts signals, says what it does, and leaves in a given way."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings

from loader_data import Noisy

from outlast_worker.batches import batches

COUNTED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
seen: set[int] = set()
kept: list[object] = []


def say(*words: object) -> None:
    print(*words, flush=True)


def main(method: str, leaving: str) -> None:
    for number in COUNTED:
        signal.signal(number, lambda got, _frame: seen.add(got))
    data = batches(Noisy(64), 4, workers=2, start_method=method)
    say("starting")
    iterator = iter(data)
    next(iterator)
    loaders = sorted(child.pid or 0 for child in multiprocessing.active_children())
    say("trained", *loaders)
    if leaving == "hang":
        while True:
            next(iterator, None)
            time.sleep(0.01)
    if leaving == "signals":
        while seen != set(COUNTED):
            time.sleep(0.01)
        for _ in range(40):  # more than was fetched ahead
            next(iterator, None) or next(iterator := iter(data))
        say("same", loaders == sorted(child.pid or 0 for child in multiprocessing.active_children()))
    if leaving == "collected":
        del iterator, data
        gc.collect()
        say("left", len(multiprocessing.active_children()))
    if leaving == "forked":
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork beside threads; that one is meant here
        if os.fork() == 0:
            data.close()  # the child inherited them, but they are not its own
            os._exit(0)
        os.wait()
        say("alive", len(multiprocessing.active_children()), bool(next(iterator)))
    if leaving == "thread":
        data.close()
        made = []
        thread = threading.Thread(target=lambda: made.append(iter(data)))
        thread.start()
        thread.join()
        for _ in range(12):
            next(made[0])
        say("alive", len(multiprocessing.active_children()))
    say("leaving", time.monotonic())
    if leaving in ("saved", "signals", "raised"):
        kept.append(data)  # as a script's own globals are: until the interpreter is gone
    if leaving in ("saved", "signals"):
        raise SystemExit(75)
    if leaving == "raised":
        raise LookupError("told to")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
