"""`outlast cron --install` and `--remove` with the real crontab program: ours comes and goes, all else stays."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from tests.cron.machine import Machine
from tests.e2e.harness import OUTLAST, PATIENCE
from tests.realparts import needs
from tests.waiting import wait_until

from outlast_supervisor.schedulers.cron import LONGEST

pytestmark = needs("cron", "namespaces")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make_job(tmp_path / "rings")


def make_job(folder: Path, more: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(f'name: rings\ncommand: ["{{python}}", -V]\n{more}')
    return folder / "job.yaml"


THEIRS = {
    "none": None,
    "empty": b"",
    "comments": b"# mine\n\n   # and \t this\n",
    "variables": b"MAILTO=me@example.org\nPATH=/opt/bin:/bin\n*/7 3 * * 1-5 date \\% > /dev/null % in\n",
    "bytes": b"# caf\xc3\xa9 \xff\xfe\n@daily echo '\xe2\x98\x83'\n\n\n",
    "carriage returns": b"# an editor's\r\n@daily printf 'a\\r\\n'\r\n",
    "alike": b"# >>> outlast cron\n# <<< outlast cron <<<\n# >>> outlast cron /elsewhere/job.yaml >>>\n",
}


@pytest.mark.parametrize("name", THEIRS)
def test_what_is_not_ours_stays_byte_for_byte(machine: Machine, job: Path, name: str) -> None:
    """Installing adds our lines at the end and removing takes them out; every other byte is as it was."""
    theirs = THEIRS[name]
    if theirs is not None:
        machine.set_crontab(theirs)
    added = machine.cron(job, "--install")
    assert added.code == 0, added.err
    printed = machine.cron(job, "--quiet")
    assert machine.crontab() == (theirs or b"") + printed.out.encode()
    removed = machine.cron(job, "--remove")
    assert removed.code == 0, removed.err
    assert machine.crontab() == (theirs or None)


def test_a_last_line_without_an_end_is_kept_whole(machine: Machine, job: Path) -> None:
    """A crontab without a line break at its end, which the program would refuse, gets one and keeps its line."""
    spool = machine.folder / "spool/crontabs/root"
    spool.write_bytes(b"@daily date")
    shutil.chown(spool, group="crontab")
    spool.chmod(0o600)
    for arguments in (["--install"], ["--remove"]):
        assert machine.cron(job, *arguments).code == 0
        assert (machine.crontab() or b"").startswith(b"@daily date\n")
    assert machine.crontab() == b"@daily date\n"


def test_installing_again_changes_nothing_or_what_is_asked(machine: Machine, job: Path) -> None:
    """The same lines are not written again; other ones take their place, in the middle of what is not ours."""
    machine.set_crontab(b"# above\n")
    assert "at each boot and every 5m" in machine.cron(job, "--install").err
    machine.set_crontab((machine.crontab() or b"") + b"# below\n")
    spool = machine.folder / "spool/crontabs/root"
    before = spool.stat().st_ino
    assert "already" in machine.cron(job, "--install").err
    assert spool.stat().st_ino == before
    assert machine.cron(job, "--install", "--every", "1h").code == 0
    lines = (machine.crontab() or b"").decode().splitlines()
    assert (lines[0], lines[-1]) == ("# above", "# below")
    assert [line.split(" exec ")[0] for line in lines if " exec " in line] == ["@reboot", "0 * * * *"]


def test_jobs_stand_side_by_side(machine: Machine, tmp_path: Path) -> None:
    """Each job, and each run directory of one, has its own lines; one goes without its file, and the others stay."""
    first, second = make_job(tmp_path / "a b"), make_job(tmp_path / "a")
    other = ("--run-dir", tmp_path / "elsewhere")
    for arguments in ([first], [second], [second, *other]):
        assert machine.cron(*arguments, "--install").code == 0
    printed = {
        arguments: machine.cron(*arguments, "--quiet").out.encode()
        for arguments in ((first,), (second,), (second, *other))
    }
    assert machine.crontab() == b"".join(printed.values())
    shutil.rmtree(second.parent)
    assert machine.cron(second.parent, "--remove").code == 0
    assert machine.crontab() == printed[(first,)] + printed[(second, *other)]
    assert machine.cron(second, "--remove", *other).code == 0
    assert "nothing to take out" in machine.cron(second, "--remove").err
    assert machine.crontab() == printed[(first,)]


def test_a_shipped_job_runs_where_it_was_installed(machine: Machine, tmp_path: Path) -> None:
    """The run directory of a job that ships with outlast is that of the folder in which it was installed."""
    assert machine.run(OUTLAST, "cron", "toy", "--install", cwd=tmp_path).code == 0
    lines = [line for line in (machine.crontab() or b"").decode().splitlines() if " exec " in line]
    assert len(lines) == 2
    assert all(f"/toy/job.yaml --run-dir {tmp_path}/runs/toy --quiet" in line for line in lines)
    assert machine.run(OUTLAST, "cron", "toy", "--remove", cwd=tmp_path).code == 0
    assert machine.crontab() is None


# A crontab program after whose first write somebody else's older copy is written over it.
_OVERWRITTEN = """#!/bin/sh
/usr/bin/crontab "$@" || exit
if [ "$1" = - ] && [ ! -e {once} ]; then
  touch {once}
  echo '# theirs' | /usr/bin/crontab -
fi
"""
# One that is slow to write the lines of job 0: whoever does not wait is through before, and overwritten.
_SLOW = """#!/bin/sh
[ "$1" = - ] || exec /usr/bin/crontab "$@"
cat >{once}.$$
if grep -q job-0 {once}.$$ && [ ! -e {once} ]; then
  touch {once}
  sleep 1
fi
exec /usr/bin/crontab - <{once}.$$
"""
_BROKEN = """#!/bin/sh
echo "$@" >>{once}
echo "crontab: no room" >&2
exit 1
"""


def program(machine: Machine, tmp_path: Path, text: str) -> Path:
    """Put a program of the name "crontab" before the real one; what it leaves is the file that is returned."""
    once = tmp_path / "once"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/crontab").write_text(text.format(once=once))
    (tmp_path / "bin/crontab").chmod(0o755)
    machine.path = f"{tmp_path / 'bin'}:{machine.path}"
    return once


def test_edits_at_one_moment_all_last(machine: Machine, tmp_path: Path) -> None:
    """Of jobs installed at one moment each is in the crontab at the end, however slow one of them is."""
    once = program(machine, tmp_path, _SLOW)
    jobs = [make_job(tmp_path / f"job-{number}") for number in range(3)]
    threads = [threading.Thread(target=machine.cron, args=(job, "--install")) for job in jobs]
    threads[0].start()
    wait_until(once.exists, PATIENCE, "the slow one")
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (machine.crontab() or b"").decode().splitlines()
    assert sorted(line for line in lines if line.startswith("# >>>")) == [
        f"# >>> outlast cron {job} >>>" for job in jobs
    ]


def test_what_somebody_overwrites_is_written_again(machine: Machine, job: Path, tmp_path: Path) -> None:
    """An edit that is lost to another program's is seen by reading back, and done again on what is there now."""
    once = program(machine, tmp_path, _OVERWRITTEN)
    assert machine.cron(job, "--install").code == 0
    assert once.exists()
    lines = (machine.crontab() or b"").decode().splitlines()
    assert lines[:2] == ["# theirs", f"# >>> outlast cron {job} >>>"]


def test_what_cannot_be_read_is_not_overwritten(machine: Machine, job: Path, tmp_path: Path) -> None:
    """A crontab that cannot be read is not taken for an empty one: exit 1, with what the program said."""
    once = program(machine, tmp_path, _BROKEN)
    done = machine.cron(job, "--install")
    assert done.code == 1
    assert "no room" in done.err
    assert once.read_text() == "-l\n"


def test_a_block_without_its_end_is_left_to_a_person(machine: Machine, job: Path) -> None:
    """Where the line that ends ours is gone, nothing is guessed: nothing changes, and the message says what to mend."""
    broken = f"# >>> outlast cron {job} >>>\n@daily date\n".encode()
    machine.set_crontab(broken)
    for how in ("--install", "--remove"):
        done = machine.cron(job, how)
        assert done.code == 64
        assert "crontab -e" in done.err
    assert machine.crontab() == broken


def test_cron_takes_the_longest_line_and_we_refuse_longer_ones(machine: Machine, tmp_path: Path) -> None:
    """A command as long as the limit is taken by crontab; one more byte is refused, with the cure, and no change."""
    machine.path = "/usr/bin:/bin"
    folder = tmp_path / ("x" * 200)
    job = make_job(folder, 'env: {PATH: "/bin"}\n')
    line = machine.cron(job, "--quiet").out.splitlines()[1].removeprefix("@reboot ")
    spare = LONGEST - len(line) - len(" --run-dir /")
    deep = "/" + "/".join(["y" * 200] * (spare // 201) + ["y" * (spare % 201)])
    assert machine.cron(job, "--install", "--run-dir", deep).code == 0
    installed = machine.crontab()
    longest = max(len(line) for line in (installed or b"").splitlines() if line.startswith(b"@reboot "))
    assert longest == LONGEST + len("@reboot ")
    refused = machine.cron(job, "--install", "--run-dir", deep + "y")
    assert refused.code == 64
    assert "at most 998 bytes, and this one has 999" in refused.err
    assert machine.crontab() == installed


def test_where_no_mail_is_sent_it_is_told(machine: Machine, job: Path) -> None:
    """Of the MAILTOs the last above our lines counts: an empty one loses what they say, unless it goes to a file."""
    for text, lost in (
        ('MAILTO=""\n', True),
        (" MAILTO = ''\n* * * * * true\n", True),
        ('MAILTO=""\nMAILTO=me\n', False),
        ("* * * * * true # MAILTO=\n", False),
    ):
        machine.set_crontab(text.encode())
        for _ in ("installed", "there already"):
            done = machine.cron(job, "--install")
            assert (done.code, "MAILTO is empty" in done.err) == (0, lost), (text, done.err)
        assert "MAILTO is" not in machine.cron(job, "--install", "--log", job.parent / "log").err


def test_a_machine_without_cron_is_told_of(job: Path, tmp_path: Path) -> None:
    """Without the program the lines are printed all the same, and --install says what is missing."""
    done = subprocess.run(
        [OUTLAST, "cron", str(job), "--install"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "install cron" in done.stderr
