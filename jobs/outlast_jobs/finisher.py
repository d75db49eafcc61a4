"""Finish the save of a worker that is dead, from the copy of its state in a buffer: hash, write, seal.

    python -m outlast_jobs.finisher FD CHECKPOINTS RUN_ID ATTEMPT

Started by the supervisor once nothing of the attempt is left. It has the attempt's right to write and no more: a newer
claim ends it as it would have ended the worker. It ends at once when its stdin does. One line of JSON on stdout says
what came of it.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from outlast_jobs.buffer_image import BufferImage
from outlast_jobs.buffer_note import File, index_of, read_note
from outlast_jobs.buffer_state import STATE_AT, State, header_at, sealed_size, state_of
from outlast_jobs.errors import AlreadySealed, Corrupt, Fenced, IntegrityError
from outlast_jobs.generation import GenerationName
from outlast_jobs.parallel import each, readers
from outlast_jobs.sealer import Sealer


class Finished(msgspec.Struct, frozen=True):
    """What became of it: the generation that is sealed, or why none is."""

    generation: str = ""
    step: int = 0
    bytes: int = 0
    seconds: float = 0.0  # from the boundary to the seal
    healthy: bool = True
    already: bool = False  # the worker itself had sealed it
    why: str = ""


def finish(fd: int, checkpoints: Path, run_id: str, attempt: int) -> Finished:
    """Seal what is in the buffer behind this descriptor. Never raises for what a buffer can hold."""
    if not sealed_size(fd) or state_of(fd) is not State.COPIED:
        return Finished(why="the buffer holds no copy that is known to be right")
    try:
        note = read_note(fd)
        name = GenerationName.parse(note.generation)
        if name is None or name.attempt != attempt:
            raise Corrupt(f"the buffer's note is of {note.generation[:100]!r}, not of attempt {attempt}")
        index = index_of(note, name, run_id)
    except IntegrityError as error:
        return Finished(why=str(error))
    memory = memoryview(mmap.mmap(fd, 0))
    sealer = Sealer(checkpoints, attempt, name)
    try:
        sealer.begin()
        healthy = _write(sealer, note.files, memory) and index.healthy
        seconds = max(0.0, time.monotonic() - note.began)
        now = {"saved_at": time.time(), "save_seconds": seconds, "healthy": healthy}
        sealer.seal(msgspec.structs.replace(index, **now))
    except AlreadySealed:
        memory[header_at(len(memory)) + STATE_AT] = State.SEALED
        return Finished(str(name), name.step, already=True)
    except (Fenced, OSError, ValueError) as error:
        sealer.abort()
        return Finished(str(name), name.step, why=str(getattr(error, "strerror", None) or error))
    memory[header_at(len(memory)) + STATE_AT] = State.SEALED
    return Finished(str(name), name.step, sealer.bytes_written, seconds, healthy)


def _write(sealer: Sealer, files: tuple[File, ...], memory: memoryview) -> bool:
    """Write them all, several at a time; whether no number that counts is a NaN."""

    def work(file: File, _: Callable[[], bool]) -> bool:
        image = BufferImage(memory[file.start : file.start + file.nbytes], file.storages)
        sealer.add(file.name, image)
        return not image.sick

    return all(each(work, files, readers()))


def main() -> None:
    """As the head of this file says."""
    # Whoever ends a job signals all of it: this is over in a moment, or when the supervisor says so.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=_watch, daemon=True).start()
    fd, checkpoints, run_id, attempt = sys.argv[1:]
    found = finish(int(fd), Path(checkpoints), run_id, int(attempt))
    print(json.dumps(msgspec.to_builtins(found)), flush=True)
    os._exit(0)


def _watch() -> None:
    """End with the supervisor, which keeps the other end of stdin open as long as it wants this done."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
