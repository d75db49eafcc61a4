"""What the library takes from its environment, and what it refuses to train under."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast_jobs.contract import Env
from outlast_worker.context import RunContext

GIVEN = {Env.RUN: "/run", Env.RUN_ID: "a" * 32, Env.ATTEMPT: "2"}


@pytest.mark.parametrize("world", ["2", "8", "x"])
def test_several_ranks_are_refused_before_anything_is_trained(world: str) -> None:
    """One rank's state is not the run's: with more of them, each is told so, in words, under a supervisor."""
    with pytest.raises(RuntimeError, match=f"cannot supervise {world} ranks"):
        RunContext.from_env({**GIVEN, "WORLD_SIZE": world})
    assert RunContext.from_env({"WORLD_SIZE": world}) is None, "without a supervisor it is not our affair"


@pytest.mark.parametrize("world", ["", "1"])
def test_one_rank_is_one_process(world: str) -> None:
    """What torchrun sets for a single rank is no difference."""
    given = RunContext.from_env({**GIVEN, "WORLD_SIZE": world, "RANK": "0"})
    assert given is not None
    assert (given.attempt, given.rank, given.checkpoints) == (2, 0, Path("/run/checkpoints"))


@pytest.mark.parametrize("name", [Env.RUN_ID, Env.ATTEMPT])
def test_what_a_supervisor_must_say_is_named(name: str) -> None:
    """Half an environment is an error with the name of what is missing, not another run."""
    with pytest.raises(RuntimeError, match=name):
        RunContext.from_env({key: value for key, value in GIVEN.items() if key != name})
