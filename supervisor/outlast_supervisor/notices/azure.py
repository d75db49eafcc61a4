"""Microsoft Azure: Scheduled Events, which tell evictions, deletions, reboots and standstills of a VM.

After "Azure Metadata Service: Scheduled Events for Linux VMs" and "Azure Instance Metadata Service" of the Azure
Virtual Machines documentation. Nothing is ever acknowledged: that would bring the event on at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from .fetch import PATIENCE, Answer, Service
from .words import End, Found, Save, Unreadable, clipped, end

NAME = "OUTLAST_AZURE_METADATA"
BASE = "http://169.254.169.254"
EVERY = 1.0  # seconds, as the documentation recommends: an eviction is told 30 s ahead
LEAST = 30.0
_HEADERS = {"Metadata": "true"}
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_OWN_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_FIRST_PATIENCE = 120.0  # seconds: the first question of all switches the service on for this VM
_ENDS = ("Preempt", "Terminate", "Reboot", "Redeploy")
_PAST = ("Completed", "Canceled")


class Azure:
    """Asks for the events of the VM's whole group and picks out its own."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._name = ""
        self._first = True

    def events(self) -> Found:
        """What is scheduled for this VM."""
        answer = self._service.ask(_EVENTS, _HEADERS, patience=_FIRST_PATIENCE if self._first else PATIENCE)
        self._first = False
        now = answer.date if answer.date is not None else time.time()
        scheduled = _scheduled(answer)
        if scheduled and not self._name:
            self._name = self._own_name()
        return read_events(scheduled, self._name, now)

    def _own_name(self) -> str:
        try:
            answer = self._service.ask(_OWN_NAME, _HEADERS)
        except Unreadable:
            return ""
        return answer.text if answer.status == 200 else ""


def read_events(scheduled: list[Mapping[str, Any]], name: str, now: float) -> Found:
    """Of the events of a group those that hit the VM of this name; all where its name is not known."""
    found: list[End | Save] = []
    for event in scheduled:
        resources = event.get("Resources")
        theirs = [str(r).lower() for r in resources] if isinstance(resources, list) else []
        if event.get("EventStatus") in _PAST or (name and theirs and name.lower() not in theirs):
            continue
        kind = event.get("EventType")
        key = clipped(f"{event.get('EventId')} {kind} {event.get('NotBefore')}")
        text = clipped(f"{kind} {event.get('Description') or ''}")
        started = event.get("EventStatus") == "Started"
        if kind in _ENDS:
            found.append(
                End(key, text, 0.0) if started else end(key, text, event.get("NotBefore"), now, LEAST)
            )
        elif kind == "Freeze" and not started:
            found.append(Save(key, f"{text} (it will stand still for some seconds)"))
    return tuple(found)


def _scheduled(answer: Answer) -> list[Mapping[str, Any]]:
    if answer.status != 200:
        raise Unreadable(f"scheduledevents: status {answer.status}")
    try:
        document = json.loads(answer.body)
    except ValueError:
        raise Unreadable("scheduledevents: an answer that is no JSON") from None
    events = document.get("Events") if isinstance(document, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise Unreadable("scheduledevents: an answer without a list of events")
    return events
