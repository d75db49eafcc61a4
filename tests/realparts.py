"""Real schedulers and kernels that some tests need: where one is missing its tests are skipped by name, and told."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

import pytest

REASON = "not on this machine: "
_PROGRAMS: dict[str, tuple[str, ...]] = {
    "slurm": (
        *("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel"),
        "/sys/fs/cgroup/freezer/cgroup.procs",  # version 1, which the tests' cluster is set up for
    ),
    "cron": ("cron", "unshare"),
    "systemd": ("/lib/systemd/systemd", "systemctl", "systemd-analyze", "unshare"),
    "container": ("systemd-nspawn",),
    "namespaces": ("unshare", "nsenter"),
    "faketime": ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",),
    "loopback disks": ("losetup", "mkfs.ext4", "mkfs.xfs", "mount"),
    "strace": ("strace",),
    "memory control groups": ("/sys/fs/cgroup/memory/cgroup.procs",),  # version 1
    "fuse": ("fusermount3", "/dev/fuse"),
}
_TRIES: dict[
    str, tuple[str, ...]
] = {  # a program may be there, and what it does be forbidden, as in a container
    "slurm": ("test", "-w", "/sys/fs/cgroup/freezer"),
    "strace": ("strace", "-qq", "-o", "/dev/null", "true"),
    "namespaces": ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--uts", "--ipc", "true"),
    "loopback disks": ("losetup", "--find"),
    "memory control groups": ("test", "-w", "/sys/fs/cgroup/memory"),
}
_PLACES = "/usr/sbin:/sbin:/usr/local/sbin"


def missing(*parts: str) -> str:
    """What this machine lacks of these parts, in words; empty where all are there."""
    if os.geteuid() != 0:
        return "root"
    path = os.environ.get("PATH", os.defpath) + ":" + _PLACES
    lacking = [
        f"{part} ({program})"
        for part in parts
        for program in _PROGRAMS[part]
        if shutil.which(program, path=path) is None and not os.path.exists(program)
    ]
    lacking += [f"{part} (not allowed)" for part in parts if not lacking and not _allowed(part)]
    return ", ".join(lacking)


@functools.cache
def _allowed(part: str) -> bool:
    tried = _TRIES.get(part)
    return tried is None or subprocess.run(tried, capture_output=True, timeout=30).returncode == 0


def needs(*parts: str) -> pytest.MarkDecorator:
    """Marks tests that need real parts: `pytestmark = needs("slurm")`."""
    lacking = missing(*parts)
    return pytest.mark.skipif(bool(lacking), reason=f"{REASON}{lacking}")
