"""A real service manager of one's own: `systemd --user` with its own processes, mounts, /run and control group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.harness import OUTLAST, PATIENCE, Ended, children
from tests.waiting import wait_until

SYSTEMD = "/lib/systemd/systemd"
_CGROUPS = Path("/sys/fs/cgroup")
_RUNTIME = "/run/user/0"  # in a /run of its own
ROOT_ENV = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
"""What a service manager is started with; nothing of the tests' own environment reaches it."""

# The namespace sees its own control group as the root, and no controllers: nothing else is touched. It ends
# with the tests, however these end.
NAMESPACE = """
echo $$ > "$1/cgroup.procs"; shift
exec setpriv --pdeathsig KILL unshare --pid --fork --kill-child=KILL --mount --mount-proc --cgroup --ipc bash -ec '
mount --make-rprivate /
mount -t tmpfs run /run
mkdir -p /run/systemd/system
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
"$@" &
wait -n || true
' namespace "$@"
"""


class ControlGroup:
    """A control group for one namespace, removed with all that it holds."""

    def __init__(self) -> None:
        parent = _CGROUPS / "unified" if (_CGROUPS / "unified").is_dir() else _CGROUPS
        self.path = parent / f"outlast-test-{uuid.uuid4().hex[:12]}"
        self.path.mkdir()

    def remove(self) -> None:
        """Remove it once nothing lives in it."""
        wait_until(self._removed, PATIENCE, f"the end of what lives in {self.path}")

    def _removed(self) -> bool:
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):  # busy yet
                os.rmdir(folder)
        return not self.path.exists()


class Namespace:
    """A command in namespaces of its own; when it ends, or is closed, everything in them ends at once."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str]) -> None:
        self._group = ControlGroup()
        try:
            with log.open("ab") as file:
                self._process = subprocess.Popen(
                    ["bash", "-c", NAMESPACE, "namespace", str(self._group.path), *command],
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.first = wait_until(self._first, PATIENCE, "the first process of a namespace")
        except BaseException:
            self.close()
            raise

    def _first(self) -> int | None:
        """The host's pid of the namespace's first process, once it is a shell of the namespace."""
        return next(iter(children(self._process.pid)), None)

    def close(self) -> None:
        """End everything in it, in one instant."""
        with contextlib.suppress(AttributeError):
            self._process.kill()
            self._process.wait()
        self._group.remove()


def ended(command: list[str], env: Mapping[str, str], seconds: float) -> Ended:
    """Run a command and wait for its end."""
    done = subprocess.run(
        command, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class UserManager:
    """`systemd --user`, as a person's login has it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="outlast-user-")
        self.home = Path(self._folder.name)
        self.log = self.home / "manager.log"
        self.env = {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": _RUNTIME,
            **ROOT_ENV,
        }
        made = f"mkdir -p -m 700 {_RUNTIME}; exec {SYSTEMD} --user --log-target=console"
        self.namespace = Namespace(["bash", "-c", made], self.log, self.env)
        try:
            wait_until(lambda: self.ctl("is-system-running").out == "running\n", PATIENCE, "the manager")
        except BaseException:
            self.close()
            raise

    @property
    def units(self) -> Path:
        return self.home / ".config/systemd/user"

    def enter(self, *command: str, seconds: float = PATIENCE) -> Ended:
        """Run a command beside the manager's services, and wait for it."""
        return ended([*self.entering, *command], self.env, seconds)

    @property
    def entering(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self.namespace.first), "--mount", "--pid", "--cgroup")

    def outlast(self, *words: str, seconds: float = PATIENCE) -> Ended:
        """An `outlast` command beside the manager's services."""
        return self.enter(OUTLAST, *words, seconds=seconds)

    def ctl(self, *words: str, seconds: float = PATIENCE) -> Ended:
        """`systemctl --user`."""
        return self.enter("systemctl", "--user", *words, seconds=seconds)

    def show(self, unit: str) -> dict[str, str]:
        """What the manager knows of a unit."""
        lines = self.ctl("show", unit).out.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def until(self, unit: str, seconds: float = PATIENCE, **wanted: str) -> dict[str, str]:
        """Wait until the unit's properties are these."""

        def look() -> dict[str, str] | None:
            found = self.show(unit)
            return found if all(found.get(key) == value for key, value in wanted.items()) else None

        try:
            return wait_until(look, seconds, f"{unit} to be {wanted}")
        except TimeoutError as late:
            found = {key: self.show(unit).get(key) for key in (*wanted, "SubState", "Result", "StatusText")}
            raise AssertionError(f"{late}\nit is {found}\n{self.log.read_text()[-3000:]}") from None

    def signal(self, unit: str, number: signal.Signals) -> None:
        """Signal the unit's main process alone."""
        sent = self.ctl("kill", "--kill-who=main", f"--signal={number.name}", unit)
        assert sent.code == 0, sent.err

    def drop_in(self, unit: str, text: str) -> None:
        """What a person would change of a unit."""
        folder = self.units / f"{unit}.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "test.conf").write_text(text)
        self.ctl("daemon-reload")

    def close(self) -> None:
        self.namespace.close()
        self._folder.cleanup()
