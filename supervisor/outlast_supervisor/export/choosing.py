"""Which generation is exported: the newest that a restart could take and that is healthy, or the one named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from outlast_jobs import verify
from outlast_jobs.errors import Unreadable
from outlast_jobs.generation import GenerationName
from outlast_jobs.look import Finding, Verdict
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sidecar import scan_files
from outlast_supervisor.namesake import former_job
from outlast_supervisor.quick.ends import Failed

UNUSABLE = 65
_GONE_AT_MOST = 20  # generations that go away under our hands until it is better said than tried again
_SHOWN = 5

PassedOver = Callable[[str, str], None]
"""Told a generation and why it was not taken."""


class Candidates:
    """The healthy generations of a run, newest first; ``reject`` those whose bytes turn out bad."""

    def __init__(self, run: RunDirectory, run_id: str | None, passed_over: PassedOver) -> None:
        self._run = run
        self._run_id = run_id
        self._told = passed_over
        self._rejected: dict[str, str] = {}
        self._gone = 0

    def __iter__(self) -> Iterator[Finding]:
        """Looks anew for each, since a run that goes on seals and prunes. Failed (65) where none is left."""
        while True:
            choice = self._choose()
            gone = self._gone
            for finding in choice.tried:
                if finding is not choice.chosen:
                    self.reject(finding, _why(finding))
            if choice.chosen is not None:
                yield choice.chosen
            elif gone == self._gone:
                raise Failed(self._nothing(choice), UNUSABLE)

    def _choose(self) -> verify.Choice:
        try:
            return verify.newest_usable(
                self._run.checkpoints,
                self._run_id,
                {},
                skip=self._rejected,
                full=False,  # the copying hashes
                healthy_only=True,
            )
        except FileNotFoundError:
            raise Failed(
                f'"{self._run.checkpoints}" is missing; is its disk mounted here?', UNUSABLE
            ) from None
        except Unreadable as error:
            raise Failed(str(error), UNUSABLE) from error

    def reject(self, finding: Finding, why: str) -> None:
        """Not this one, and why."""
        if not os.path.lexists(finding.path):
            why = "it went away while it was read: the run has pruned it"
            self._gone += 1
        self._rejected[finding.path.name] = why
        self._told(finding.path.name, why)
        if self._gone > _GONE_AT_MOST:
            cure = "keep one with: outlast pin RUN, and name it with --generation"
            raise Failed(f'"{self._run.path}" prunes faster than it can be read; {cure}', UNUSABLE)

    def _nothing(self, choice: verify.Choice) -> str:
        place = f'"{self._run.checkpoints}"'
        if choice.from_zero:
            return f"no generation in {place}{_without_library(self._run)}"
        lines = [f"{name}: {why}" for name, why in self._rejected.items()]
        lines += [f"{path.name} was set aside before" for path in choice.set_aside]
        shown = lines[:_SHOWN] + ([f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])
        cure = "look with: outlast verify; an unhealthy one is exported when it is named with --generation"
        return f"no generation in {place} is whole and healthy; {cure}; found: {'; '.join(shown)}"


def named(run: RunDirectory, run_id: str | None, name: str) -> Finding:
    """The generation that a person named, healthy or not; Failed where it is not whole."""
    if GenerationName.parse(name) is None:
        raise Failed(
            f'"{name}" is no name of a generation, as "step-000000500.a0001" is; see: outlast verify'
        )
    finding = verify.look(run.checkpoints / name, run_id, full=False)
    if finding.verdict is not Verdict.VERIFIED:
        raise Failed(f"{name} is {finding.verdict}: {finding.reason}", UNUSABLE)
    return finding


def _why(finding: Finding) -> str:
    if finding.verdict is Verdict.VERIFIED:
        return "not healthy: its loss or a part of it was not finite"
    return f"{finding.verdict}: {finding.reason}"


def _without_library(run: RunDirectory) -> str:
    """Why there may be none, and what to do."""
    job = former_job(run)
    if job is not None and job.adopt is not None:
        return f": its script saves by itself what matches {job.adopt.pattern!r}; see outlast verify, and copy one"
    single = []
    for folder in (run.checkpoints, run.path):
        with contextlib.suppress(OSError):
            single += scan_files(folder)
    if single:
        return (
            f": its script saves single files by itself ({single[0].name}), which are whole with their .sha256 "
            "and load with torch.load; check them with: outlast verify, and copy both"
        )
    return (
        " yet; wait for the first save, or ask for it with: outlast save. A script without outlast_worker.Checkpointer "
        "saves where outlast does not look"
    )
