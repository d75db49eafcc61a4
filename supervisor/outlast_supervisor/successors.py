"""Who becomes the next worker: the standby, or else a new process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.jobfile import Job

from . import spawn
from .standby import Standby


class Successors:
    """The standby, if the job has one, and the way around it. All calls come from the loop's own thread."""

    def __init__(
        self,
        attend: Callable[[int, Callable[[], None]], None],
        neglect: Callable[[int], None],
        tell: Callable[[str, str], None],
        run_id: str,
    ) -> None:
        self._tell = tell
        self._standby = Standby(attend, neglect, tell, run_id)

    # -- what is known -------------------------------------------------------------------------------------

    def theirs(self, pid: int) -> bool:
        """Whether a process waits to become the worker: then it is nothing that an attempt left."""
        return self._standby.theirs(pid)

    @property
    def pending(self) -> bool:
        """Whether one still lives."""
        return self._standby.pending

    @property
    def ahead(self) -> float:
        """Seconds before its exec at which a worker is to be started; a standby takes its place within a moment."""
        return 0.0 if self._standby.ready else spawn.FORK_AHEAD

    def view(self) -> dict[str, Any] | None:
        """What the status says of the standby."""
        return self._standby.view()

    def next_due(self) -> float | None:
        """When ``tick`` has something to do."""
        return self._standby.next_due()

    # -- making and ending ---------------------------------------------------------------------------------

    def attached(self, job: Job, now: float) -> None:
        """A worker has attached: have a standby for its successor, of the job as it is now."""
        self._standby.want(job, now)

    def tick(self, now: float) -> None:
        """What is due by the clock."""
        self._standby.tick(now)

    def ended(self, pid: int, code: int) -> bool:
        """A child of the supervisor ended; whether it was the standby, and not the worker by then."""
        return self._standby.ended(pid, code)

    def close(self) -> None:
        """No standby any more: the supervisor ends."""
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
            if why:
                self._tell(f"the standby was of no use ({why}): starting a new process", "debug")
            try:
                worker = spawn.launch(order, log_fd)
            except (OSError, ValueError, subprocess.SubprocessError) as failure:
                failed(failure)
            else:
                went(worker)

        if not self._standby.take(order, job, log_fd, went, anew):
            anew("")
