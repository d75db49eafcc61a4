"""Google Compute Engine: the preemption of a Spot VM and the maintenance of its host.

After "Spot VMs" (preemption process), "Query metadata server for maintenance event notices" and "View and query
VM metadata" (waiting for changes) of the Compute Engine documentation.
"""

from __future__ import annotations

from urllib.parse import quote

from .fetch import PATIENCE, Answer, Service
from .words import End, Found, Save, Unreadable, clipped

NAME = "GCE_METADATA_HOST"  # the variable of Google's own clients: host and port
BASE = "http://169.254.169.254"
EVERY = 1.0  # seconds between two requests; the service holds each until something changes
LEAST = 30.0  # seconds from the preemption notice to the end
HELD = 60  # seconds for which a request is held
_HEADERS = {"Metadata-Flavor": "Google"}


class Gce:
    """Waits for one value to change: asks at once the first time, and then only for what is newer."""

    def __init__(self, service: Service, what: str) -> None:
        self._service = service
        self._what = what  # preempted, maintenance-event
        self._etag = ""

    def look(self) -> Found:
        """What the value says now; returns when it changed, or after a minute."""
        path, patience = f"/computeMetadata/v1/instance/{self._what}", PATIENCE
        if self._etag:
            path += f"?wait_for_change=true&last_etag={quote(self._etag, safe='')}&timeout_sec={HELD}"
            patience = HELD + 2 * PATIENCE
        self._etag = ""  # after a failure the first question is for what is true now
        answer = self._service.ask(path, _HEADERS, patience=patience)
        found = read_value(self._what, answer)
        self._etag = answer.etag
        return found


def read_value(what: str, answer: Answer) -> Found:
    """What ``instance/preempted`` or ``instance/maintenance-event`` says."""
    if answer.status != 200:
        raise Unreadable(f"instance/{what}: status {answer.status}")
    value = answer.text
    match what, value:
        case ("preempted", "FALSE") | ("maintenance-event", "NONE"):
            return ()
        case ("preempted", "TRUE"):
            return (End("preempted", "preempted", LEAST, guessed=True),)
        case ("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE"):
            return (Save(value, "it is about to be moved to another host"),)
        case ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"):
            # a minute ahead, an hour with GPUs, and it is not said which: the machine's own shutdown ends us
            return (Save(value, "it will be shut down for its host's maintenance"),)
    raise Unreadable(f'instance/{what}: "{clipped(value)[:60]}" is nothing that is known')
