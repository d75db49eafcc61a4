"""A machine that has nothing but the real cron: it boots, its clock runs fast, its mail is kept, it loses power."""

from __future__ import annotations

import shutil
import signal
import subprocess
import uuid
from pathlib import Path

from tests.e2e.harness import OUTLAST, PATIENCE, Ended, children, gone
from tests.waiting import wait_until

from outlast_supervisor.processes import descendants

_FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

# Its own crontabs and mail program, an empty /run, and a boot id that no boot before it had.
_MOUNTS = """
set -e
mount --make-rprivate /
mount --bind "$M/spool" /var/spool/cron
mount --bind "$M/empty" /etc/crontab
mount --bind "$M/cron.d" /etc/cron.d
mount -t overlay overlay -o "lowerdir=$M/bin:/usr/sbin" /usr/sbin
mount -t tmpfs run /run
mount --bind "$M/boot_id" /proc/sys/kernel/random/boot_id
"""
_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
_BOOT = _MOUNTS + 'exec env -i PATH=/usr/sbin:/usr/bin:/bin "$@"'
_INSIDE = _MOUNTS + 'exec "$@"'

# /usr/sbin/sendmail, as cron calls it
_SENDMAIL = """#!/bin/sh
exec cat >"$(mktemp "{mail}/XXXXXXXX")"
"""
# what a crontab's SHELL= names: it writes down how all that cron starts ends
_SHELL = """#!/bin/sh
/bin/sh "$@"
code=$?
echo $code >>"{ends}"
exit $code
"""


class Machine:
    """The folder holds what outlives a boot: the crontabs, the mail that came, and how each start ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mail_folder = folder / "mail"
        self._ends = folder / "ends"
        for name in ("spool/crontabs", "cron.d", "bin", "mail"):
            (folder / name).mkdir(parents=True)
        shutil.chown(folder / "spool/crontabs", group="crontab")
        (folder / "spool/crontabs").chmod(0o1730)
        for name in ("empty", "boot_id"):
            (folder / name).touch()
        self.shell = folder / "shell"
        for path, text in (
            (folder / "bin/sendmail", _SENDMAIL.format(mail=self.mail_folder)),
            (self.shell, _SHELL.format(ends=self._ends)),
        ):
            path.write_text(text)
            path.chmod(0o755)
        self.path = "/usr/bin:/bin:/usr/sbin"  # of those who install something
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self, speed: int = 1) -> None:
        """Start it; to cron, `speed` minutes pass in a minute, while to its jobs time goes as it does."""
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        fast = [f"LD_PRELOAD={_FAKETIME}", f"FAKETIME=+0 x{speed}"] if speed > 1 else []
        with open(self.folder / "console", "ab") as console:
            self._process = subprocess.Popen(
                [*_UNSHARE, "sh", "-c", _BOOT, "boot", *fast, "/usr/sbin/cron", "-f"],
                env={"PATH": "/usr/sbin:/usr/bin:/bin", "M": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        wait_until(self._up, PATIENCE, "cron")

    def _up(self) -> bool:
        return self._process is not None and any(
            Path(f"/proc/{pid}/comm").read_text().strip() == "cron" for pid in children(self._process.pid)
        )

    def cut_power(self) -> None:
        """Kill its first process, and with it, in that instant, all others."""
        if self._process is not None:
            for pid in children(self._process.pid):
                subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(pid)], check=False)
            self._process.kill()
            self._process.wait()
            self._process = None

    def processes(self) -> list[int]:
        """All supervisors that run on it, those included that are about to find another one."""
        if self._process is None:
            return []
        found = [pid for pid in descendants([self._process.pid]) if not gone(pid)]
        return [pid for pid in found if b"\0outlast_supervisor.cli\0run\0" in _command(pid)]

    def run(self, *command: str, given: bytes = b"", cwd: Path | None = None) -> Ended:
        """Run something with this machine's crontabs, booted or not."""
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _INSIDE, "inside", *command],
            env={"PATH": self.path, "M": str(self.folder), "HOME": "/root"},
            input=given,
            capture_output=True,
            timeout=PATIENCE,
            cwd=cwd,
        )
        return Ended(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())

    def cron(self, *arguments: object, given: bytes = b"") -> Ended:
        """`outlast cron` with this machine's crontabs."""
        return self.run(OUTLAST, "cron", *map(str, arguments), given=given)

    def set_crontab(self, text: bytes) -> None:
        """Install a whole crontab by the real program."""
        done = self.run("crontab", "-", given=text)
        assert done.code == 0, done.err

    def crontab(self) -> bytes | None:
        """The crontab as the real program stored it, below its own three lines; None where there is none."""
        spool = self.folder / "spool/crontabs/root"
        return b"".join(spool.read_bytes().splitlines(keepends=True)[3:]) if spool.exists() else None

    def ends(self) -> list[int]:
        """The exit codes of what cron started and has ended; its crontab needs SHELL set to `shell`."""
        return [int(word) for word in self._ends.read_text().split()] if self._ends.exists() else []

    def mails(self) -> list[str]:
        """What cron has mailed."""
        return [path.read_text() for path in sorted(self.mail_folder.iterdir())]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
