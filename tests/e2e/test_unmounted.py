"""A start before the run's disk is mounted begins no second run in the empty folder below."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.e2e.bare import needs_mounts
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import OUTLAST

from outlast_jobs.contract import ExitCode
from outlast_jobs.filesystem import Filesystem
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.unmounted import missing_mount, without_its_disk

TABLE = """
# /dev/sdz /data/commented ext4
UUID=1 / ext4 defaults 0 1
UUID=2 none swap sw 0 0
UUID=3 /data/my\\040disk/ ext4 nofail 0 2
nas:/x /nas nfs noauto
UUID=4 /mounted xfs
UUID=5 /mounted/in xfs
broken
"""


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/data/my disk/runs/a", "/data/my disk"),
        ("/nas/a", "/nas"),
        ("/nasty/a", ""),
        ("/data/commented/a", ""),
        ("/mounted/a", ""),
        ("/mounted/in/a", "/mounted/in"),
        ("/nas/by hand/a", ""),
        ("/nas", "/nas"),
        ("/home/a", ""),
    ],
)
def test_only_a_mount_point_above_the_run_that_is_empty_is_missed(path: str, point: str) -> None:
    """Escapes of fstab are read; comments, other paths, and what is mounted there or further down miss nothing."""
    mount = next((point for point in ("/mounted", "/nas/by hand") if path.startswith(point)), "/")
    assert missing_mount(path, mount, TABLE) == point


def test_an_automount_that_brings_nothing_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server is not there yet, the kernel shows the automount itself; one that worked is covered."""
    kinds = {
        "autofs": Filesystem("autofs", tmp_path, True, False),
        "nfs4": Filesystem("nfs4", tmp_path, True, False),
    }
    for kind, found in kinds.items():
        monkeypatch.setattr("outlast_supervisor.unmounted.filesystem_kind", lambda path, found=found: found)
        told, _ = without_its_disk(RunDirectory(tmp_path / "run"))
        assert (f'what "{tmp_path}" mounts by itself is not mounted' in told) == (kind == "autofs")


@needs_mounts
def test_a_run_whose_disk_is_not_mounted_does_not_start_anew(make_run: MakeRun) -> None:
    """75 with the mount point, and nothing is written below it; mounted, or with --fresh, it starts."""
    run = make_run({"command": ["true"], "signals": "native", "run_dir": "disk/run"})
    disk = run.folder / "disk"
    disk.mkdir()
    table = run.folder / "fstab"
    table.write_text(f"tmpfs {disk} tmpfs nofail\n")
    wrapper = ["unshare", "-m", "sh", "-c", f'mount --bind "{table}" /etc/fstab && {{}} exec "$@"', "sh"]

    def under(before: str) -> list[str]:
        return [word.replace("{}", before) for word in wrapper]

    without = run.start(wrapper=under(""))
    assert without.wait() == ExitCode.SAVED
    assert f'"{disk}", which /etc/fstab names, is not mounted: run me again' in without.output
    asked = subprocess.run([*under(""), OUTLAST, "doctor", str(run.job_file)], capture_output=True, text=True)
    assert "failure   run         there is no run in" in asked.stdout
    assert list(disk.iterdir()) == []
    folder = run.folder / "folder of the same disk"
    folder.mkdir()
    for mount in ("-t tmpfs tmpfs", f'--bind "{folder}"'):
        mounted = run.start(wrapper=under(f'mount {mount} "{disk}" &&'))
        assert mounted.wait() == ExitCode.DONE, mounted.output
    assert list(disk.iterdir()) == []
    assert run.start("--fresh", wrapper=under("")).wait() == ExitCode.DONE
    assert run.start(wrapper=under("")).wait() == ExitCode.DONE, "a run that is there goes on"
