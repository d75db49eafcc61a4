"""What the supervisor says in the environment, read once; without it the same script simply trains."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outlast_jobs.contract import Env

if TYPE_CHECKING:
    from outlast_jobs.cadence import SavePolicy

RECORD_IDS = "OUTLAST_RECORD_IDS"
"""Set to 1, metrics list the ids of every step's samples instead of a digest of them."""


class RunContext(NamedTuple):
    """The run and the attempt that this process trains for."""

    run: Path
    run_id: str
    attempt: int
    checkpoints: Path
    resume: Path | None
    every_steps: int | None
    every_seconds: float | None
    strict: bool
    allow_rng_loss: bool
    config_sha256: str
    record_ids: bool
    rank: int
    link_unchanged: bool = False
    no_copy: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> RunContext | None:
        """The context, or None where no supervisor set one."""
        if not environ.get(Env.RUN):
            return None
        refuse_ranks(environ.get("WORLD_SIZE", "1"))
        steps, seconds = environ.get(Env.SAVE_EVERY_STEPS), environ.get(Env.SAVE_EVERY_SECONDS)
        run = Path(environ[Env.RUN])
        resume = environ.get(Env.RESUME)
        return cls(
            run=run,
            run_id=_needed(environ, Env.RUN_ID),
            attempt=int(_needed(environ, Env.ATTEMPT)),
            checkpoints=Path(environ.get(Env.CHECKPOINTS) or run / "checkpoints"),
            resume=Path(resume) if resume else None,
            every_steps=int(steps) if steps else None,
            every_seconds=float(seconds) if seconds else None,
            strict=environ.get(Env.IDENTITY) == "strict",
            allow_rng_loss=environ.get(Env.ALLOW_RNG_LOSS) == "1",
            config_sha256=environ.get(Env.CONFIG_SHA256, ""),
            record_ids=environ.get(RECORD_IDS) == "1",
            rank=int(environ.get("RANK") or 0),
            link_unchanged=environ.get(Env.LINK_UNCHANGED) == "1",
            no_copy=environ.get(Env.NO_COPY) == "1",
        )

    @property
    def own_resume(self) -> bool:
        """Whether the generation to resume from is this run's own, not one that the run starts from."""
        return self.resume is not None and self.resume.parent == self.checkpoints

    def policy(self, every_steps: int | None, every_seconds: float | None) -> SavePolicy:
        """The cadence: the job's word, and the script's where the job has none."""
        from outlast_jobs.cadence import SavePolicy  # here: a run without supervisor needs no msgspec

        return SavePolicy(
            every_steps=self.every_steps if self.every_steps is not None else every_steps,
            every_seconds=self.every_seconds if self.every_seconds is not None else every_seconds,
            restarted=self.attempt > 1,
        )


def refuse_ranks(world: str) -> None:
    """RuntimeError where a training has more ranks than one."""
    if world not in ("", "1"):
        raise RuntimeError(
            f"cannot supervise {world} ranks of one run: this version saves the state of a single rank; "
            f"run one process, or train without outlast"
        )


def _needed(environ: Mapping[str, str], key: str) -> str:
    value = environ.get(key)
    if not value:
        raise RuntimeError(
            f"cannot attach to the supervisor: {Env.RUN} is set but {key} is not; unset both or none"
        )
    return value
