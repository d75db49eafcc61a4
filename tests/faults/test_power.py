"""Power that is lost with unwritten data: whatever was acknowledged is on disk, and the run goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.disk import Disk
from tests.faults.saving import Cut, Saving, undisturbed
from tests.faults.scale import chance, scaled, told
from tests.realparts import needs

pytestmark = needs("loopback disks", "namespaces")

CUTS = scaled(4, 100)


@pytest.mark.timeout(1800)
def test_what_was_acknowledged_outlives_every_cut(tmp_path: Path, disk: Disk) -> None:
    """Whenever the power is cut under a saving worker and its supervisor, each sealed generation and each record that
    was acknowledged is there, all that has a name is whole, and the next start goes on from the newest."""
    saving = Saving(tmp_path, disk)
    instants = chance(f"power/{disk.kind}")
    try:
        for _ in range(CUTS):
            when = saving.cut_at(instants)
            try:
                saving.hold()
            except Cut as missing:
                raise AssertionError(f"cut {saving.cuts}, {when}: {missing}\n{saving.run.report()}") from None
        saving.enough.touch()
        last = saving.start()
        assert last.wait() == 0, saving.run.report()
        saving.hold()
        newest = saving.run.verified()[0].index
        assert newest is not None
        assert newest.final
        assert newest.state_sha256 == undisturbed(newest.step)
        assert [line["step"] for line in saving.run.history()] == list(range(1, newest.step + 1))
        saving.run.nothing_left()
    finally:
        saving.run.close()
    sealed, written = len(saving.told("sealed")), sum(len(one["lines"]) for one in saving.told("journal"))
    told(f"power cuts on {disk.kind}, with {sealed} generations and {written} records acknowledged", CUTS)
