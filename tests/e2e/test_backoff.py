"""A backoff lasts as long as it says, and no longer than what a start needs."""

from __future__ import annotations

from tests.e2e.conftest import MakeRun
from tests.e2e.harness import Run

BACKOFF = 0.3
# each writes when it was there, and when it was about to end
_WORKER = "echo $EPOCHREALTIME >> born; echo $EPOCHREALTIME >> died; exit 3"


def _instants(run: Run, name: str) -> list[float]:
    return [float(line) for line in (run.folder / name).read_text().splitlines()]


def test_no_worker_starts_before_its_backoff_is_over(make_run: MakeRun) -> None:
    """From the death of a worker to the start of the next one it is never less than the backoff."""
    restart = {"backoff": f"{BACKOFF}s..{BACKOFF}s", "without_progress": 5, "waiting": 0}
    run = make_run({"command": ["bash", "-c", _WORKER], "signals": "native", "restart": restart})
    assert run.start().wait() == 70, run.report()
    born, died = _instants(run, "born"), _instants(run, "died")
    assert len(born) == len(died) == 5
    for death, birth in zip(died, born[1:], strict=False):
        assert birth - death >= BACKOFF
    run.nothing_left()
