"""A process with little memory that feeds one reader hostile content; what it must not do ends it with a message."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults.mutations import absurd, by_hand, damaged, odd_files, twisted
from tests.faults.readers import Reader, make
from tests.faults.scale import chance

SECONDS = 20  # for one input, on a slow machine
HEADROOM = 192 << 20  # bytes of address space beyond what the process has once everything is imported
OURS = ("notification", "any JSON", "index with its digest")  # read here by the test itself
SECRET = b"the secret that lies outside the run"


class Hang(BaseException):
    """One input took too long. Not an Exception, so that no reader can take it for its own."""


def _late(number: int, frame: FrameType | None) -> None:
    raise Hang("it hangs")


def attack(reader: Reader) -> None:
    """One reading: it may give anything back, or raise an error that has a name in its contract."""
    signal.alarm(SECONDS)
    try:
        found = reader.read()
        if SECRET.decode() in repr(found):
            raise AssertionError("what lies outside the run came out")
    except reader.named as error:
        if SECRET.decode() in str(error):
            raise AssertionError("what lies outside the run came out in an error") from error
    finally:
        signal.alarm(0)


def clear(path: Path) -> None:
    """Whatever lies there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main(name: str, number: int, folder: Path) -> int:
    """Returns how many inputs were tried; raises where one broke the reader."""
    signal.signal(signal.SIGALRM, _late)
    reader = make(folder)[name]
    attack(reader)  # the valid one
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, used + HEADROOM))
    random = chance(f"fuzz-{name}")
    tried = 0
    for n, data in enumerate(_inputs(reader.sample, random, number)):
        reader.path.write_bytes(data)
        try:
            attack(reader)
        except BaseException as error:
            kept = folder / "broke-it"
            kept.write_bytes(data)
            print(
                f"input {n} ({len(data)} bytes, kept in {kept}): {type(error).__name__}: {error}: {data[:300]!r}"
            )
            traceback.print_exc()
            raise SystemExit(1) from error
        tried += 1
    secret = folder / "secret"
    secret.write_bytes(SECRET + b"\n" + reader.sample)
    for kind, put in odd_files(secret).items() if name not in OURS else ():
        clear(reader.path)
        put(reader.path)
        try:
            attack(reader)
        except BaseException as error:
            print(f"{kind}: {type(error).__name__}: {error}")
            traceback.print_exc()
            raise SystemExit(1) from error
        finally:
            clear(reader.path)
        tried += 1
    return tried


def _inputs(sample: bytes, random: object, number: int):  # type: ignore[no-untyped-def]
    yield from by_hand(sample)
    yield from absurd(sample)
    for n in range(number):
        yield (damaged, twisted)[n % 2](sample, random)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        print(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
