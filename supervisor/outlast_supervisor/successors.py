"""Who becomes the next worker: the standby, the process that was forked ahead, or else a new one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.jobfile import Job

from . import spawn
from .prefork import Answers, Prefork
from .standby import Standby


class Successors:
    """The processes that wait to become the worker, as one. All calls come from the loop's own thread."""

    def __init__(
        self,
        attend: Callable[[int, Callable[[], None]], None],
        neglect: Callable[[int], None],
        tell: Callable[[str, str], None],
        run_id: str,
    ) -> None:
        self._tell = tell
        self._standby = Standby(attend, neglect, tell, run_id)
        self._prefork = Prefork(attend, neglect, tell)

    # -- what is known -------------------------------------------------------------------------------------

    def theirs(self, pid: int) -> bool:
        """Whether a process waits to become the worker: then it is nothing that an attempt left."""
        return self._prefork.theirs(pid) or self._standby.theirs(pid)

    @property
    def pending(self) -> bool:
        """Whether one still lives."""
        return self._prefork.pending or self._standby.pending

    @property
    def ahead(self) -> float:
        """Seconds before its exec at which a worker is to be started; a standby takes its place within a moment."""
        return 0.0 if self._standby.ready else spawn.FORK_AHEAD

    def view(self) -> dict[str, Any] | None:
        """What the status says of the standby."""
        return self._standby.view()

    def next_due(self) -> float | None:
        """When ``tick`` has something to do."""
        dues = [self._prefork.next_due(), self._standby.next_due()]
        return min((due for due in dues if due is not None), default=None)

    # -- making and ending ---------------------------------------------------------------------------------

    def attached(self, job: Job, now: float) -> None:
        """A worker has attached: have a standby for its successor, of the job as it is now."""
        self._standby.want(job, now)

    def tick(self, now: float, running: bool) -> None:
        """What is due by the clock; ``running``: there is a worker, beside which one is forked ahead."""
        self._standby.tick(now)
        self._prefork.tick(now, running)

    def ended(self, pid: int, code: int) -> bool:
        """A child of the supervisor ended; whether it was one of these, and not the worker by then."""
        return self._prefork.ended(pid, code) or self._standby.ended(pid, code)

    def close(self) -> None:
        """No more of them: the supervisor ends."""
        self._prefork.close()
        self._standby.close()

    # -- use -----------------------------------------------------------------------------------------------

    def start(
        self,
        order: spawn.Order,
        job: Job,
        log_fd: int,
        went: Callable[[ProcessIdentity], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Start the worker; one of both is called, now or later. The order's descriptors stay open until then."""

        def anew(why: str) -> None:
            self._tell(f"{why}: forking a new process", "debug")
            try:
                worker = spawn.launch(order, log_fd)
            except (OSError, ValueError, subprocess.SubprocessError) as failure:
                failed(failure)
            else:
                went(worker)

        def forked(why: str) -> None:
            if why:
                self._tell(f"the standby was of no use ({why}): starting a new process", "debug")
            if not self._prefork.take(order, log_fd, Answers(went, failed, anew)):
                anew("none was forked ahead")

        if not self._standby.take(order, job, log_fd, went, forked):
            forked("")
