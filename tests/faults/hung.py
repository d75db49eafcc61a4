"""A mount whose calls hang when told to, and a run on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_until, whole_lines

_SCRIPT = Path(__file__).parent / "scripts" / "hanging.py"


class Storage:
    """The mount, and its switch. While it hangs, callers can't be ended: let it answer before all else ends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mount"
        self.path.mkdir(parents=True)
        backing = folder / "backing"
        backing.mkdir()
        self._switch = folder / "switch"
        self._held = folder / "switch.held"
        words = [str(word) for word in (sys.executable, _SCRIPT, backing, self.path, self._switch)]
        self._process = subprocess.Popen(words, cwd="/", stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        wait_until(self.path.is_mount, 30, "the mount")

    def hang(self, *calls: str) -> None:
        """From now on calls such as `fsync checkpoints` (for paths with this text in them) do not return."""
        self._held.unlink(missing_ok=True)
        new = self._switch.with_name("switch.new")
        new.write_text("".join(f"{call}\n" for call in calls))
        new.rename(self._switch)

    def answer(self) -> None:
        """All goes on."""
        self._switch.unlink(missing_ok=True)

    def held(self) -> list[str]:
        """The calls that were made to wait since it hangs, as `OPERATION PATH`."""
        return whole_lines(self._held)

    def close(self) -> None:
        """Unmount it; whoever still uses it gets errors."""
        self.answer()
        subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=True)
        self._process.kill()
        self._process.wait(30)
