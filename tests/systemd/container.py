"""A machine to boot and to cut off: systemd as the first process of a container made of this one's own files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.e2e.harness import PATIENCE, Ended, children, gone, kill
from tests.systemd.manager import ROOT_ENV, Namespace, ended
from tests.waiting import wait_until

HALT = signal.SIGRTMIN + 4  # poweroff.target, see systemd(1)
SHARED = Path("/srv/shared")
_TOP = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")
_KEPT = ("passwd", "group", "nsswitch.conf", "os-release", "ld.so.cache")
_EMPTY = (
    "etc/systemd/system",
    "etc/tmpfiles.d",
    "var",
    "proc",
    "sys",
    "dev",
    "run",
    "tmp",
    "root",
    "usr",
    "srv",
)


class Machine:
    """Its `/etc` and `/var` stay over its boots; programs are this machine's, read only."""

    def __init__(self, folder: Path, shared: Path) -> None:
        """``shared`` is the one folder of this machine that it may write to: there it is SHARED."""
        self.shared = shared
        self.root = folder / "root"
        self.console = folder / "console.log"
        for name in _EMPTY:
            (self.root / name).mkdir(parents=True)
        for name in _TOP:
            if os.path.islink(f"/{name}"):
                (self.root / name).symlink_to(os.readlink(f"/{name}"))
        for name in _KEPT:
            if os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", self.root / "etc" / name)
        (self.root / "etc/machine-id").touch()
        # a boot empties /tmp, and this repository may lie there
        (self.root / "etc/tmpfiles.d/tmp.conf").symlink_to("/dev/null")
        self._namespace: Namespace | None = None
        self.init = 0

    @property
    def units(self) -> Path:
        return self.root / "etc/systemd/system"

    def boot(self) -> None:
        """Switch it on, and wait until its services can be asked for."""
        readable = {"/usr", *_interpreter()}
        binds = [f"--bind-ro={_escaped(path)}" for path in sorted(readable)]
        binds.append(f"--bind={_escaped(str(self.shared))}:{SHARED}")
        nspawn = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--boot"]
        nspawn += ["--console=pipe", "--hostname=machine", f"--directory={self.root}", *binds]
        self._namespace = Namespace(nspawn, self.console, ROOT_ENV)
        self.init = wait_until(self._found, PATIENCE, "the container's first process")
        # degraded: a service of this machine that is none of ours does not like the container
        done = ("running", "degraded")
        wait_until(lambda: self.ctl("is-system-running").out.strip() in done, PATIENCE, "the boot")

    def _found(self) -> int | None:
        """Below the namespace's first process is nspawn, and below that the container's."""
        if self._namespace is None:
            return None
        for pid in (p for nspawn in children(self._namespace.first) for p in children(nspawn)):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe").endswith("/systemd"):
                    return pid
        return None

    def enter(self, *command: str, seconds: float = PATIENCE) -> Ended:
        """Run a command in it."""
        return ended(["nsenter", "--target", str(self.init), "--all", *command], ROOT_ENV, seconds)

    def ctl(self, *words: str) -> Ended:
        return self.enter("systemctl", *words)

    def show(self, unit: str) -> dict[str, str]:
        """What its manager knows of a unit."""
        lines = self.ctl("show", unit).out.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def power_off(self) -> None:
        """An orderly shutdown."""
        kill(self.init, HALT)
        wait_until(lambda: gone(self.init), PATIENCE, "the shutdown")
        self.close()

    def cut(self) -> None:
        """The power is cut: everything in it is gone in one instant."""
        kill(self.init)
        wait_until(lambda: gone(self.init), PATIENCE, "the end")
        self.close()

    def close(self) -> None:
        if self._namespace is not None:
            self._namespace.close()
            self._namespace = None


def _interpreter() -> set[str]:
    """Where this interpreter and its packages lie, as far as that is not /usr."""
    found = {sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[2])}
    return {path for path in found if not path.startswith("/usr/")}


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:")
