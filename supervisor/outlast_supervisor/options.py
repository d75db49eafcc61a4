"""What `outlast run` was asked for, as the supervisor needs it."""

from __future__ import annotations

from msgspec import Struct

from outlast_jobs.jobfile import Job


class RunOptions(Struct, frozen=True):
    """One start of one job."""

    job: Job
    fresh: bool = False  # begin anew in a new run, keeping the old
    release: bool = False  # lift the hold of a person, or of giving up
    takeover: bool = False  # end a living supervisor of this host first
    quiet: bool = False
    allow_rng_loss: bool = False
    from_generation: str | None = None  # a generation's name, or a folder
    verbose: bool = False
    extra: tuple[str, ...] = ()  # arguments appended to the job's command, for when its file is read again
