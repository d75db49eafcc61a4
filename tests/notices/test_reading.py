"""What an answer of a metadata service means: golden tables of each vendor's documented answers and of others."""

from __future__ import annotations

import json
import time

import pytest
from tests.notices.metadata import event, iso

from outlast_supervisor.notices import aws, azure, gce
from outlast_supervisor.notices.fetch import Answer
from outlast_supervisor.notices.words import End, Found, Save, Told, Unreadable, decode, encode, instant, news

NOW = 1505722800.0  # 2017-09-18T08:20:00Z


def answer(body: object = b"", status: int = 200) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, data, NOW, "e")


def test_aws_tells_what_and_when() -> None:
    """An instance-action is an end at its time, seen from the service's own clock; 404 is none."""
    said = {"action": "terminate", "time": "2017-09-18T08:22:00Z"}
    [found] = aws.read_action(answer(said), NOW)
    assert found == End("terminate 2017-09-18T08:22:00Z", "terminate", 120.0)
    assert aws.read_action(answer(status=404), NOW) == ()


@pytest.mark.parametrize("when", [None, "soon", 5, "", [1], "9" * 400])
def test_an_end_without_a_readable_time_is_one_in_the_shortest_time(when: object) -> None:
    """What is announced for an unknown time may come as early as the vendor says that it can."""
    [found] = aws.read_action(answer({"action": "stop", "time": when}), NOW)
    assert isinstance(found, End)
    assert (found.left, found.guessed) == (aws.LEAST, True)


def test_a_rebalance_recommendation_is_worth_a_save() -> None:
    """It names no end: a save, once for each time that it is made."""
    [found] = aws.read_rebalance(answer({"noticeTime": "2020-10-27T08:22:00Z"}))
    assert isinstance(found, Save)
    assert found.key == "2020-10-27T08:22:00Z"
    assert aws.read_rebalance(answer(status=404)) == ()


@pytest.mark.parametrize(
    ("what", "value", "means"),
    [
        ("preempted", "FALSE", None),
        ("preempted", "TRUE", End),
        ("maintenance-event", "NONE", None),
        ("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE", Save),
        ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", Save),
    ],
)
def test_gce_values(what: str, value: str, means: type | None) -> None:
    """A preemption is an end 30 s from now; a maintenance names no end."""
    found = gce.read_value(what, answer(value.encode()))
    assert [type(item) for item in found] == ([] if means is None else [means])
    assert all(item.left == 30.0 for item in found if isinstance(item, End))


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_azure_events_that_end(kind: str) -> None:
    """They end the VM at NotBefore; one that has begun ends it now."""
    [found] = azure.read_events([event(kind, 300)], "vm-1", time.time())
    assert isinstance(found, End)
    assert found.left == pytest.approx(300, abs=5)
    [begun] = azure.read_events([event(kind, None)], "vm-1", time.time())
    assert isinstance(begun, End)
    assert begun.left == 0.0


def test_an_azure_freeze_is_worth_a_save() -> None:
    """A VM that stands still for some seconds keeps its memory: a save before it, and nothing once it began."""
    [found] = azure.read_events([event("Freeze", 300)], "vm-1", time.time())
    assert isinstance(found, Save)
    assert azure.read_events([event("Freeze", None)], "vm-1", time.time()) == ()


def test_events_of_other_machines_are_not_ours() -> None:
    """Azure tells the events of a whole group to each of its VMs; all count only where our name is unknown."""
    others = [event("Preempt", 30, Resources=["vm-2", "VM-10"])]
    assert azure.read_events(others, "vm-1", time.time()) == ()
    assert len(azure.read_events(others, "vm-10", time.time())) == 1
    assert len(azure.read_events(others, "", time.time())) == 1
    assert azure.read_events([event("Preempt", 30, EventStatus="Canceled")], "vm-1", time.time()) == ()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[]", b"7", b'"x"', b'{"Events": {}}', b"null"])
def test_an_answer_that_says_nothing_is_not_the_word_that_nothing_comes(body: bytes) -> None:
    """Garbage, errors and refusals leave what was known as it is."""
    readers = (
        lambda a: aws.read_action(a, NOW),
        aws.read_rebalance,
        lambda a: gce.read_value("preempted", a),
        azure._scheduled,
    )
    for read in readers:
        if not (body == b'{"Events": {}}' and read in readers[:2]):
            with pytest.raises(Unreadable):
                read(answer(body))
        for status in (301, 302, 400, 401, 403, 500, 503):
            with pytest.raises(Unreadable):
                read(answer(b"{}", status))


def test_what_is_news() -> None:
    """Each announcement is told once, a new one again, the nearest of several ends, and that it was taken back."""
    first, later = End("a", "a", 50.0), End("b", "b", 20.0)
    save = Save("s", "s")
    looks: list[tuple[Found, list[tuple[str, str, float]]]] = [
        ((), []),
        ((first,), [("end", "a", 150.0)]),
        ((first, save), [("save", "s", 0.0)]),
        ((first, save, later), [("end", "b", 120.0)]),
        ((first, save), [("end", "a", 150.0)]),
        ((save,), [("none", "", 0.0)]),
        ((), []),
        ((save,), [("save", "s", 0.0)]),
    ]
    before: Found = ()
    for found, told in looks:
        assert [(t.kind, t.key, t.at) for t in news("x", before, found, 100.0)] == told
        before = found


def test_the_line_comes_back() -> None:
    """What is written is what is read; other lines say nothing."""
    told = Told("end", "x", "terminate", "k", 5.5, True)
    assert decode(encode(told).strip()) == told
    assert [decode(line) for line in (b"", b"{}", b"\xff", b"[1]", b'{"kind":"no","source":"x"}')] == [
        None
    ] * 5


def test_times_of_both_kinds() -> None:
    """ISO 8601 and the form of HTTP headers, UTC where no zone is named; the rest is no time."""
    assert instant("2017-09-18T08:20:00Z") == instant("2017-09-18T08:20:00") == NOW
    assert instant("Mon, 18 Sep 2017 08:20:00 GMT") == NOW
    before = time.time()
    assert before + 59 <= (instant(iso(60)) or 0) <= time.time() + 61
    assert [
        instant(text) for text in ("", "x", None, 5, "Mon, 99 Sep 2017", "0001-01-01T00:00:00+23:59")
    ] == [None] * 5 + [instant("0001-01-01T00:00:00+23:59")]
