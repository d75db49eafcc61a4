"""The child that asks: real requests to a service on loopback, good and bad, and lines on a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.notices.metadata import (
    ACTION,
    EVENTS,
    MAINTENANCE,
    OWN_NAME,
    PREEMPTED,
    REBALANCE,
    Metadata,
    event,
    iso,
    metadata,
)
from tests.waiting import wait_until

from outlast_supervisor.notices.fetch import LARGEST, Service
from outlast_supervisor.notices.words import Told, Unreadable, decode

PATIENCE = 60.0


class Child:
    """A watch and all that it said."""

    def __init__(self, cloud: str, service: Metadata) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "outlast_supervisor.notices.watch", str(os.getpid()), cloud],
            stdout=subprocess.PIPE,
            env={**os.environ, **service.env},
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.told: list[Told] = []
        self._rest = b""

    def until(self, condition: Callable[[Told], bool], what: str) -> Told:
        """Wait for a line; each is waited for once."""

        def look() -> Told | None:
            assert self.process.stdout is not None
            *lines, self._rest = (self._rest + (self.process.stdout.read() or b"")).split(b"\n")
            self.told += [told for line in lines if (told := decode(line))]
            found = next((told for told in self.told if condition(told)), None)
            if found is not None:
                self.told.remove(found)
            return found

        found = wait_until(look, PATIENCE, f"{what}; told: {self.told}")
        assert found is not None
        return found

    def kind(self, kind: str, source: str = "") -> Told:
        return self.until(lambda t: t.kind == kind and source in t.source, f"{kind} of {source}")


@contextmanager
def watching(cloud: str, service: Metadata) -> Iterator[Child]:
    child = Child(cloud, service)
    try:
        yield child
    finally:
        child.process.kill()
        child.process.communicate()


@pytest.fixture
def service() -> Iterator[Metadata]:
    with metadata() as made:
        yield made


def asked_again(service: Metadata, path: str, times: int = 3) -> None:
    """Wait until the child looked so many times more, which it does whatever it heard."""
    before = service.count(path)
    wait_until(lambda: service.count(path) >= before + times, PATIENCE, f"requests of {path}")


def test_aws_from_nothing_to_a_notice_and_back(service: Metadata) -> None:
    """Nothing (404), a recommendation, a notice with its time, another time, and taken back; with a token always."""
    with watching("aws", service) as child:
        asked_again(service, ACTION)
        service.say(REBALANCE, {"noticeTime": iso(0)})
        assert "rebalance" in child.kind("save").source
        service.say(ACTION, {"action": "terminate", "time": iso(120)})
        end = child.kind("end")
        assert (end.text, end.guessed) == ("terminate", False)
        assert end.at - time.monotonic() == pytest.approx(120, abs=30)
        service.say(ACTION, {"action": "stop", "time": iso(1000)})
        assert child.kind("end").text == "stop"
        service.say(ACTION, None)
        child.kind("none", "spot")
        assert child.told == []
    assert service.count("/latest/api/token", "PUT") == 1


def test_a_token_that_ran_out_is_renewed(service: Metadata) -> None:
    """A 401 brings a new token in the same look, and no word of trouble."""
    with watching("aws", service) as child:
        asked_again(service, ACTION)
        service.forget_tokens()
        service.say(ACTION, {"action": "terminate", "time": iso(120)})
        assert child.kind("end").text == "terminate"
        assert child.told == []
    assert service.count("/latest/api/token", "PUT") == 2


@pytest.mark.parametrize("mode", ["garbage", "no json", "other json", "huge", "redirect", "error"])
def test_bad_answers_neither_end_the_watch_nor_the_notice(service: Metadata, mode: str) -> None:
    """They are told as trouble after some looks; a notice stands; redirects are not followed; then all is well."""
    service.say(ACTION, {"action": "terminate", "time": iso(120)})
    with watching("aws", service) as child:
        child.kind("end")
        service.misbehave(mode)
        assert child.kind("trouble", "spot").text
        service.misbehave("")
        child.kind("well", "spot")
        service.say(ACTION, None)
        child.kind("none")
        assert {told.kind for told in child.told} <= {"trouble", "well"}
    assert not [where for _, where, _ in service.asked if "moved" in where]


def test_a_service_that_is_not_there_yet(service: Metadata) -> None:
    """Down, then up: told as trouble, then heard."""
    service.down()
    with watching("gce", service) as child:
        assert "refused" in child.kind("trouble", "preemption").text
        service.up()
        child.kind("well", "preemption")
        service.say(PREEMPTED, "TRUE")
        child.kind("end")


def test_gce_waits_for_changes(service: Metadata) -> None:
    """Each request but the first is held until the value changes, and what changed is told at once."""
    with watching("gce", service) as child:
        wait_until(lambda: service.count(PREEMPTED) >= 2, PATIENCE, "a waiting request")
        service.say(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
        assert "another host" in child.kind("save", "maintenance").text
        service.say(PREEMPTED, "TRUE")
        end = child.kind("end", "preemption")
        assert end.guessed
        assert 0 < end.at - time.monotonic() <= 30
        service.say(PREEMPTED, "FALSE")
        child.kind("none", "preemption")
    held = [where for _, where, _ in service.asked if where.startswith(PREEMPTED)]
    assert "?" not in held[0]
    assert all("wait_for_change=true" in where and "last_etag=" in where for where in held[1:])
    assert len(held) <= 5  # three values, and none asked for in between


def test_azure_tells_own_events_alone(service: Metadata) -> None:
    """Of a group's events those of this VM; nothing is ever sent that would acknowledge one."""
    service.say(EVENTS, {"DocumentIncarnation": 1, "Events": [event("Preempt", 30, Resources=["vm-2"])]})
    with watching("azure", service) as child:
        asked_again(service, EVENTS)
        mine = event("Preempt", 30)
        service.say(EVENTS, {"DocumentIncarnation": 2, "Events": [mine, event("Freeze", 900)]})
        assert "Preempt" in child.kind("end").text
        assert "Freeze" in child.kind("save").text
        service.say(EVENTS, {"DocumentIncarnation": 3, "Events": []})
        child.kind("none")
        assert child.told == []
    assert service.count(OWN_NAME) == 1
    assert {how for how, _, _ in service.asked} == {"GET"}


@pytest.mark.parametrize("mode", ["hang", "drip"])
def test_no_answer_holds_longer_than_the_patience(service: Metadata, mode: str) -> None:
    """Silence and single bytes are given up in time."""
    service.misbehave(mode)
    began = time.monotonic()
    with pytest.raises(Unreadable, match="no answer in"):
        Service(service.base).ask("/x", {}, patience=0.3)
    assert time.monotonic() - began < PATIENCE / 2


def test_what_is_no_address_or_too_large_is_refused(service: Metadata) -> None:
    """Other schemes, wrong ports, endless answers."""
    service.misbehave("huge")
    with pytest.raises(Unreadable, match=str(LARGEST)):
        Service(service.base).ask("/x", {})
    for base in (
        "https://127.0.0.1",
        "file:///etc/passwd",
        "127.0.0.1:80",
        "http://[x",
        "http://h:99999",
        "",
    ):
        with pytest.raises(Unreadable):
            Service(base).ask("/x", {})


def test_the_child_heeds_no_signal_of_the_job_and_dies_with_its_parent(service: Metadata) -> None:
    """TERM, INT, HUP and USR1 sent to everybody leave it; the death of who started it does not."""
    start = (
        "import os, subprocess, sys;"
        "p = subprocess.Popen([sys.executable, '-P', '-m', 'outlast_supervisor.notices.watch',"
        " str(os.getpid()), 'azure'], stdout=subprocess.DEVNULL); print(p.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", start],
        env={**os.environ, **service.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        wait_until(lambda: service.count(EVENTS) > 0, PATIENCE, "a request")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(pid, number)
        asked_again(service, EVENTS)
        parent.kill()
        wait_until(lambda: ended(pid), PATIENCE, "the child's end")
    finally:
        parent.kill()
        parent.communicate()


def ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b") ", 1)[1][:1] in (b"Z", b"X")
    except OSError:
        return True
