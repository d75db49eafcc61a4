"""Noticing that the supervisor died: the socket refuses *and* the recorded process is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity
from outlast_worker.notify import Notifier

PERIOD = 1.0
"""Seconds between two looks; each costs one read in /proc."""


def supervisor_gone(identity: ProcessIdentity | None, channel_works: Callable[[], bool]) -> bool:
    """Whether nobody supervises any more. Either sign alone proves nothing.

    A socket may vanish with a cleaned /tmp while the supervisor lives, and a supervisor outside our pid
    namespace looks dead while it listens.
    """
    if identity is None or identity.alive():
        return False
    return not channel_works()


class Guardian:
    """Looks at most once a `PERIOD`; once gone, gone for good."""

    def __init__(
        self,
        identity: ProcessIdentity | None,
        notifier: Notifier,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._notifier = notifier
        self._clock = clock
        self._next = clock()
        self._gone = False

    @classmethod
    def from_env(cls, notifier: Notifier, environ: Mapping[str, str] = os.environ) -> Guardian:
        """The guardian over the supervisor that the environment names; an unreadable name is nobody's."""
        text = environ.get(Env.SUPERVISOR, "")
        try:
            identity = ProcessIdentity.parse(text) if text else None
        except ValueError:
            identity = None
        return cls(identity, notifier)

    def gone(self) -> bool:
        """Whether the supervisor is gone, as seen at the last look."""
        now = self._clock()
        if not self._gone and now >= self._next:
            self._next = now + PERIOD
            self._gone = supervisor_gone(self._identity, self._notifier.probe)
        return self._gone
