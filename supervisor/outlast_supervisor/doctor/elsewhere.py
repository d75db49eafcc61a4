"""Under cron, in a container, or in a plain shell: who says that the end comes, and who starts us again."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from outlast_jobs.jobfile import Job

from .lead import KILL_SLACK
from .line import Line, ok, warning
from .own import Own

_KEEPERS = ("tmux: server", "tmux", "screen", "SCREEN", "zellij")


def in_container(own: Own, job: Job) -> Iterator[Line]:
    """A pod, or another container: TERM to its first process, and a grace that cannot be seen from inside."""
    needed = job.stop.grace + KILL_SLACK
    place = "a Kubernetes pod" if own.env.get("KUBERNETES_SERVICE_HOST") else "a container"
    if own.pid != 1 and own.parent != 1:
        yield warning(
            "warning",
            f"{place}: SIGTERM goes to process 1, and outlast is not near it",
            "have outlast as the container's command; the manifest that this prints does: outlast k8s JOB",
        )
    yield warning(
        "warning",
        f"{place}: how long it waits after SIGTERM cannot be seen from inside; stop.grace needs {needed:g} s",
        f"terminationGracePeriodSeconds: {needed:.0f} or more (outlast k8s JOB), docker stop -t {needed:.0f}",
    )
    yield ok("requeue", f"{place}: started again by who runs it; 75 means that it should be")


def under_cron(own: Own) -> Iterator[Line]:
    """No warning but a shutdown's SIGTERM; started again by the next line that is due."""
    yield ok("warning", "cron: a shutdown sends SIGTERM, and nothing else is announced")
    yield ok("requeue", "cron: the next start goes on; while one runs the others end at once with 69")
    if not own.env.get("LANG"):
        yield ok("environment", f"cron's own: PATH={own.env.get('PATH', '')}, no LANG")


def in_shell(own: Own, job: Job) -> Iterator[Line]:
    """A person's shell, or what a script started."""
    hup = signal.SIGHUP in own.ignored
    kept = any(name in _KEEPERS for name in own.above)
    if own.terminal and not hup and not kept:
        yield warning(
            "warning",
            "a terminal: when it is closed the run saves and ends, with 75",
            "start it in tmux, with nohup, or by: outlast cron JOB, outlast systemd JOB",
        )
    else:
        keeper = next((name for name in own.above if name in _KEEPERS), "")
        why = (
            "SIGHUP is ignored, as by nohup"
            if hup
            else f"{keeper} keeps it when the terminal is closed"
            if keeper
            else "no terminal can be closed over it"
        )
        what = "is passed on to the script" if job.adopt is not None else "saves and ends"
        yield ok("warning", f"no scheduler: SIGTERM {what}; {why}")
    if signal.SIGINT in own.ignored:
        yield ok("warning", "SIGINT is ignored here, as behind a shell's &: end it with outlast stop")
    yield warning(
        "requeue",
        "no scheduler: after a stop, a crash of this process or a reboot nobody starts it again",
        "outlast cron JOB, outlast systemd JOB or outlast slurm JOB",
    )
