"""What a cluster does to jobs: it takes nodes for others, and loses nodes, the network, and its controller."""

from __future__ import annotations

import os
import signal

import pytest
from tests.realparts import needs
from tests.slurm.site import Site, Submitted, counting

pytestmark = needs("slurm", "namespaces")


def whole(submitted: Submitted) -> list[int]:
    """Let the count end, and hold it against one that nothing disturbed; the attempts by which it came there."""
    submitted.enough()
    submitted.ends()
    run = submitted.run
    run.nothing_left()
    newest = run.verified()[0].index
    assert newest is not None
    assert newest.final
    assert newest.state_sha256 == undisturbed(newest.step)
    assert len(run.verified()) == len(run.generations()), "every generation is whole"
    return run.attempts()


def undisturbed(steps: int) -> str:
    import hashlib

    digest = ""
    for step in range(1, steps + 1):
        digest = hashlib.sha256(f"{digest} {step}".encode()).hexdigest()
    return hashlib.sha256(digest.encode()).hexdigest()


@pytest.mark.parametrize("kind", ["announced", "plain"])
def test_preemption(site: Site, kind: str) -> None:
    """A preempted job loses no step, makes room, and goes on when the other is done; with the site's warning
    and without."""
    cluster = "main" if kind == "announced" else "plain"
    low = site.submit(
        f"preempted-{kind}", counting(), "-o", "partition=low", "-o", "exclusive", cluster=cluster
    )
    low.until_counted(20)
    high = low.cluster.slurm(
        "sbatch", "--parsable", "-p", "high", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2"
    )
    low.until_restart(1)
    told = str(low.run.records("notice")[0].data["signal"])
    assert told.startswith("SIGUSR1" if kind == "announced" else "SIGTERM"), "how it learnt of it"
    assert low.cluster.state(high) == "COMPLETED", "the other job was not let in"
    low.until_counted(1, attempt=2)
    first = [step for step, attempt, _ in low.counted() if attempt == 1]
    second = [step for step, attempt, _ in low.counted() if attempt == 2]
    assert second[0] == first[-1] + 1, "no step is lost and none is done twice"
    assert whole(low) == [1, 2]


def test_power_cut(site: Site) -> None:
    """A node that loses power costs what was trained since the newest seal; rebooted, it goes on from there."""
    submitted = site.submit("power", counting("--every", 10), "-o", "partition=reboot")
    cluster, run = submitted.cluster, submitted.run
    submitted.until_counted(25)
    cluster.cut_power("k1")
    run.nothing_left()
    sealed = run.verified()[0].step
    cluster.slurm("scontrol", "update", f"nodename={cluster.nodes['k1']}", "state=down", "reason=power")
    cluster.start_node("k1")
    submitted.until_counted(1, attempt=2)
    lives = {record.boot for record in run.records("supervisor_started")}
    assert len(lives) == 2, "the node has booted"
    steps = [step for step, attempt, _ in submitted.counted() if attempt == 2]
    assert steps[0] == (sealed or 0) + 1
    assert whole(submitted) == [1, 2]


def lose(submitted: Submitted, node: str) -> None:
    """The network loses a node; Slurm queues its job again, while what runs there goes on."""
    cluster = submitted.cluster
    cluster.cut_off(node)
    cluster.slurm("scontrol", "update", f"nodename={cluster.nodes[node]}", "state=down", "reason=lost")


def test_a_second_copy_waits(site: Site) -> None:
    """While a lost node trains on and its lock is seen, the second copy waits; it goes on when the first is gone."""
    submitted = site.submit("split", counting("--every", 5), "-o", "partition=split")
    submitted.until_counted(20)
    lose(submitted, "s1")
    submitted.until(lambda: "waits for its end" in submitted.output, "the second copy to wait")
    so_far = submitted.counted()[-1][0]
    submitted.until_counted(so_far + 20, attempt=1)
    assert submitted.run.attempts() == [1]
    submitted.cluster.join_again("s1")
    submitted.until_counted(1, attempt=2)
    hosts = [host for _, _, host in submitted.counted()]
    first, second = (submitted.cluster.nodes[node] for node in ("s1", "s2"))
    assert hosts == sorted(hosts, key=[first, second].index), "never both at once"
    assert whole(submitted) == [1, 2]


def test_of_two_copies_one_writes(site: Site) -> None:
    """Where no lock reaches from a lost node to the others, the first copy seals nothing more and ends as soon as
    the second one begins."""
    run = site.make("torn", counting("--every", 5))
    cluster = site.cluster()
    place = run.directory.path
    place.mkdir()
    for name in ("lock", "alive", "lease"):
        for file in (place / name, run.folder / f"{name}-of-t1"):
            file.touch()
        cluster.inside("t1", "mount", "--bind", str(run.folder / f"{name}-of-t1"), str(place / name))
    submitted = site.submit_run(run, "-o", "partition=torn")
    submitted.until_counted(20)
    lose(submitted, "t1")
    submitted.until_counted(1, attempt=2)
    attached = next(r.wall for r in run.records("attempt_attached") if r.data["attempt"] == 2)
    submitted.until(lambda: not cluster.counting_on("t1"), "the end of the first copy")
    assert {host for _, attempt, host in submitted.counted() if attempt == 1} == {cluster.nodes["t1"]}
    assert {host for _, attempt, host in submitted.counted() if attempt == 2} == {cluster.nodes["t2"]}
    late = [f.name for f in run.verified() if f.index and f.attempt == 1 and f.index.saved_at > attached]
    assert not late, "the first copy sealed what the second one had taken over"
    assert "fenced" in run.log(1)
    assert submitted.restarts() == 1, "the first copy did not queue the job again from under the second"
    assert whole(submitted) == [1, 2]


def test_the_controller_is_away(site: Site) -> None:
    """A job whose time is up while the controller is away waits for it, saved, and is queued again when it is back."""
    submitted = site.submit("lonely", counting(slurm={"warn": "120s"}), cluster="lonely")
    cluster, run = submitted.cluster, submitted.run
    submitted.until_counted(20)
    submitted.ends_in(100)
    submitted.warn()
    submitted.until(lambda: len(run.records("deadline")) > 1, "the end that has moved")
    cluster.stop_controller()
    counted = submitted.counted()[-1][0]
    submitted.until_counted(counted + 20, attempt=1)
    pid = submitted.supervisor()
    os.kill(pid, signal.SIGTERM)  # as slurmd does when the time is up
    submitted.until(lambda: "not queued again yet" in submitted.output, "the controller to be missed")
    assert run.verified()
    cluster.start_controller()
    submitted.until_counted(1, attempt=2)
    assert submitted.restarts() == 1
    assert whole(submitted) == [1, 2]
