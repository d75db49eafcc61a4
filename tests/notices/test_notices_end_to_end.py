"""A real supervisor on a machine whose cloud speaks: what is announced means what a warning means."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun, make_run
from tests.e2e.harness import PATIENCE, Run, all_pids, children, gone
from tests.notices.metadata import ACTION, EVENTS, PREEMPTED, REBALANCE, Metadata, event, iso, metadata
from tests.waiting import wait_until

from outlast_supervisor.notices.watchers import EARLY

__all__ = ["make_run"]
WORKER = Path(__file__).with_name("by_hand.py")


@pytest.fixture
def service() -> Iterator[Metadata]:
    with metadata() as made:
        yield made


def job(*clouds: str, total: int = 10**6, **more: Any) -> dict[str, Any]:
    return {
        "command": ["{python}", str(WORKER), str(total), "0.02"],
        "notices": list(clouds),
        "save": {"every_steps": 10**7},
        **more,
    }


def watcher(pid: int) -> int | None:
    """The child of a supervisor that asks the cloud."""
    for child in children(pid):
        try:
            if b"outlast_supervisor.notices.watch" in Path(f"/proc/{child}/cmdline").read_bytes():
                return None if gone(child) else child
        except OSError:
            continue
    return None


def until_ready(run: Run) -> None:
    run.until_status(lambda s: (s["step"] or 0) >= 5, "some steps")


@pytest.mark.parametrize("cloud", ["aws", "gce", "azure"])
def test_a_notice_saves_and_ends_before_the_machine_does(
    make_run: MakeRun, service: Metadata, cloud: str
) -> None:
    """Without any signal: trained on, saved at the last boundary, exit 75 before the end; the next start goes on."""
    run = make_run(job(cloud), env=service.env)
    supervisor = run.start()
    until_ready(run)
    end = time.time() + 8
    match cloud:
        case "aws":
            service.say(ACTION, {"action": "terminate", "time": iso(8)})
        case "gce":
            end = time.time() + 30
            # not measured yet: half a minute is too near
            run.write_job({**job(cloud), "stop": {"grace": "58s"}})
            supervisor.send(signal.SIGHUP)
            service.say(PREEMPTED, "TRUE")
        case "azure":
            service.say(EVENTS, {"Events": [event("Preempt", 8)]})
    assert supervisor.wait() == 75, run.report()
    assert time.time() < end, run.report()
    [newest] = run.verified()
    assert newest.index is not None
    [deadline] = run.records("deadline")
    assert deadline.data["at"] == pytest.approx(end - EARLY, abs=5)
    assert "the deadline" in run.records("notice")[-1].data["signal"]
    run.nothing_left()
    service.values.update({ACTION: None, PREEMPTED: "FALSE", EVENTS: {"Events": []}})
    run.write_job(job(cloud, total=newest.index.step + 5))
    assert run.start().wait() == 0, run.report()


def test_it_trains_on_until_a_save_just_fits(make_run: MakeRun, service: Metadata) -> None:
    """Where steps and saves are known to be short, nothing is given away; and some seconds are left to leave."""
    run = make_run(job("aws"), env=service.env)
    supervisor = run.start()
    until_ready(run)
    supervisor.send(signal.SIGUSR1)
    run.until(lambda: len(run.records("sealed")) == 1, "a save that shows how long one takes")
    end = time.time() + 10
    service.say(ACTION, {"action": "terminate", "time": iso(10)})
    known = run.until(lambda: run.records("deadline"), "the end")[0]
    assert supervisor.wait() == 75, run.report()
    [told] = [r for r in run.records("notice") if "the deadline" in r.data["signal"]]
    assert known.wall < told.wall < end - 1, run.report()
    first, last = run.records("sealed")
    assert last.data["step"] > first.data["step"] + 5


def test_a_notice_that_is_taken_back_ends_nothing(make_run: MakeRun, service: Metadata) -> None:
    """The end is known, then no longer; the run trains past it in the same attempt and has nothing to leave for."""
    run = make_run(job("aws"), env=service.env)
    supervisor = run.start()
    until_ready(run)
    service.say(ACTION, {"action": "terminate", "time": iso(60)})
    run.until_status(lambda s: s["deadline"], "the end in the status")
    service.say(ACTION, None)
    run.until_status(lambda s: not s["deadline"], "no end in the status")
    step = run.until_status(lambda s: s["step"], "a step")["step"]
    run.until_status(lambda s: s["step"] >= step + 20, "more steps")
    assert supervisor.running()
    assert run.attempts() == [1]
    assert [r.data["at"] for r in run.records("deadline")][-1] is None


def test_risk_without_an_end_brings_one_save(make_run: MakeRun, service: Metadata) -> None:
    """A rebalance recommendation is answered by a save, once, also when the watch is started anew."""
    run = make_run(job("aws"), env=service.env)
    supervisor = run.start()
    until_ready(run)
    service.say(REBALANCE, {"noticeTime": iso(0)})
    run.until(lambda: len(run.verified()) == 1, "the save")
    pid = supervisor.until(lambda: watcher(supervisor.pid), "the watch")
    before = service.count(REBALANCE)
    os.kill(pid, signal.SIGKILL)
    run.until(lambda: service.count(REBALANCE) >= before + 3, "the next watch's looks")
    assert watcher(supervisor.pid) not in (None, pid)
    assert "starting it again" in supervisor.output
    service.say(ACTION, {"action": "terminate", "time": iso(1)})
    assert supervisor.wait() == 75, run.report()
    assert len(run.generations()) == 2


def test_the_watch_is_nobodys_leftover_and_dies_with_the_supervisor(
    make_run: MakeRun, service: Metadata
) -> None:
    """It outlives a crash of the worker, is not told of as left behind, and is gone after a KILL."""
    run = make_run(job("azure"), env=service.env)
    supervisor = run.start()
    until_ready(run)
    pid = supervisor.until(lambda: watcher(supervisor.pid), "the watch")
    os.kill(supervisor.worker(), signal.SIGKILL)
    run.until_status(lambda s: s["attempt"] == 2 and (s["step"] or 0) >= 2, "the next attempt")
    assert watcher(supervisor.pid) == pid
    assert "left:" not in supervisor.output
    supervisor.kill()
    wait_until(lambda: pid not in all_pids() or gone(pid), PATIENCE, "the watch's end")


def test_a_reload_begins_and_ends_the_watch(make_run: MakeRun, service: Metadata) -> None:
    """A cloud that is named later is listened to; one that is named no longer has its word taken back."""
    run = make_run(job(), env=service.env)
    supervisor = run.start()
    until_ready(run)
    assert watcher(supervisor.pid) is None
    service.say(ACTION, {"action": "terminate", "time": iso(300)})
    run.write_job(job("aws"))
    supervisor.send(signal.SIGHUP)
    run.until_status(lambda s: s["deadline"], "the end in the status")
    run.write_job(job())
    supervisor.send(signal.SIGHUP)
    run.until_status(lambda s: not s["deadline"], "no end in the status")
    supervisor.until(lambda: watcher(supervisor.pid) is None, "the watch's end")
