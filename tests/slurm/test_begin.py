"""The cluster itself. The first of these tests to run has all others begun."""

from __future__ import annotations

from tests.realparts import needs
from tests.slurm.site import Site

pytestmark = needs("slurm", "namespaces")


def test_nodes_are_like_hosts(site: Site) -> None:
    """Two nodes share nothing that tells processes apart: names, boots, and process numbers are each one's own."""
    cluster = site.cluster()
    told = [cluster.inside(node, "cat", "/proc/sys/kernel/random/boot_id") for node in ("n1", "n2")]
    assert told[0] != told[1]
    job = cluster.slurm("srun", "-N2", "-w", f"{cluster.nodes['n1']},{cluster.nodes['n2']}", "hostname")
    assert sorted(job.split()) == [cluster.nodes["n1"], cluster.nodes["n2"]]
    assert not set(cluster.pids("n1")) & set(cluster.pids("n2"))
