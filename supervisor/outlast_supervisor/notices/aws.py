"""Amazon EC2: the interruption notice and the rebalance recommendation of a Spot Instance.

After "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "Use the Instance
Metadata Service to access instance metadata" (IMDSv2) of the Amazon EC2 User Guide.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from .fetch import Answer, Service
from .words import Found, Save, Unreadable, clipped, end

NAME = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # the variable of Amazon's own clients
BASE = "http://169.254.169.254"
EVERY = 5.0  # seconds, as the guide recommends
LEAST = 120.0  # seconds from the notice to the end
_TOKEN_SECONDS = 21600
_ACTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Aws:
    """Asks with a session token, which is renewed when the service no longer knows it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._token = ""

    def spot(self) -> Found:
        """The end of this instance, where it is announced."""
        answer = self._get(_ACTION)
        return read_action(answer, answer.date if answer.date is not None else time.time())

    def rebalance(self) -> Found:
        """That the risk of an interruption is raised."""
        return read_rebalance(self._get(_REBALANCE))

    def _get(self, path: str) -> Answer:
        answer: Answer | None = None
        for _ in range(2):
            if not self._token:
                self._token = self._fresh_token()
            answer = self._service.ask(path, {"X-aws-ec2-metadata-token": self._token})
            if answer.status != 401:
                return answer
            self._token = ""  # it ran out, or the instance was stopped and started
        raise Unreadable(f"{path}: the service refuses a token that it has just given")

    def _fresh_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS), "Content-Length": "0"}
        answer = self._service.ask("/latest/api/token", headers, method="PUT")
        if (
            answer.status != 200
            or not answer.text.isprintable()
            or not answer.text.isascii()
            or not answer.text
        ):
            raise Unreadable(
                f"no session token (status {answer.status}): are metadata enabled for this instance?"
            )
        return answer.text


def read_action(answer: Answer, now: float) -> Found:
    """What ``spot/instance-action`` says; it is not there (404) as long as nothing is announced."""
    if answer.status == 404:
        return ()
    found = _json(answer, "spot/instance-action")
    action = clipped(found.get("action") or "an unknown action")
    key = clipped(f"{action} {found.get('time')}")
    return (end(key, action, found.get("time"), now, LEAST),)


def read_rebalance(answer: Answer) -> tuple[Save, ...]:
    """What ``events/recommendations/rebalance`` says; it is not there (404) without a recommendation."""
    if answer.status == 404:
        return ()
    found = _json(answer, "events/recommendations/rebalance")
    return (Save(clipped(found.get("noticeTime")), "an interruption is likelier than usual"),)


def _json(answer: Answer, what: str) -> Mapping[str, Any]:
    if answer.status != 200:
        raise Unreadable(f"{what}: status {answer.status}")
    try:
        found = json.loads(answer.body)
    except ValueError:
        raise Unreadable(f"{what}: an answer that is no JSON") from None
    if not isinstance(found, dict):
        raise Unreadable(f"{what}: an answer that is no JSON object")
    return found
