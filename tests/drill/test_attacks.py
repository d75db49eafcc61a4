"""The catalogue of attacks: what its names mean, and the order of a drill."""

from __future__ import annotations

import pytest

from outlast_supervisor.drill import attacks
from outlast_supervisor.drill.model import Act, Target


def test_every_attack_has_a_name_of_its_own() -> None:
    """No two attacks are called the same, each point has one at least, and each signal meets each target."""
    every = attacks.catalogue()
    assert len({attack.name for attack in every}) == len(every)
    assert {attack.point for attack in every} == set(attacks.POINTS)
    signals = (Act.TERM, Act.USR1, Act.KILL, Act.STOP)
    struck = {(a.act, a.target) for a in every}
    assert {(s, t) for s in signals for t in (Target.TRAINER, Target.GROUP, Target.SUPERVISOR)} <= struck


def test_each_part_of_a_save_is_struck_by_each_signal() -> None:
    """A kill comes at each part of a save, to the trainer, its group, the supervisor, and all at once."""
    names = {attack.name for attack in attacks.catalogue()}
    for point in attacks.SAVING:
        for target in (Target.TRAINER, Target.GROUP, Target.SUPERVISOR, Target.RUN):
            assert f"{point}/KILL/{target}" in names


def test_names_and_classes_choose() -> None:
    """A whole name means one attack; a point, an act, a target or a class all of its kind; none means all."""
    assert [a.name for a in attacks.chosen(["rename/KILL/run"])] == ["rename/KILL/run"]
    assert {a.point for a in attacks.chosen(["saving"])} == set(attacks.SAVING)
    assert {a.act for a in attacks.chosen(["HANG"])} == {Act.HANG}
    assert {a.target for a in attacks.chosen(["supervisor"])} == {Target.SUPERVISOR}
    assert {a.name.rpartition("/")[0] for a in attacks.chosen(["step/KILL"])} == {"step/KILL"}
    assert attacks.chosen([]) == attacks.catalogue()
    for name in attacks.names():
        assert attacks.chosen([name])


def test_a_name_that_means_nothing_is_refused() -> None:
    """An unknown name is an error that names the nearest one."""
    with pytest.raises(attacks.UnknownAttack, match=r'there is no attack "steps".*did you mean "step"'):
        attacks.chosen(["KILL", "steps"])


def test_the_seed_makes_the_order() -> None:
    """The same seed gives the same order, another one another; nothing is left out and nothing doubled."""
    every = attacks.catalogue()
    once = attacks.order(every, 3)
    assert once == attacks.order(every, 3)
    assert once != attacks.order(every, 4)
    assert sorted(a.name for a in once) == sorted(a.name for a in every)


def test_a_short_drill_sees_each_point() -> None:
    """Each point comes once before any comes again, so that a drill cut short has seen them all; hangs are last."""
    once = attacks.order(attacks.catalogue(), 5)
    assert {a.point for a in once[: len(attacks.POINTS)]} == set(attacks.POINTS)
    hangs = [n for n, a in enumerate(once) if a.act is Act.HANG]
    assert hangs == list(range(len(once) - len(hangs), len(once)))
