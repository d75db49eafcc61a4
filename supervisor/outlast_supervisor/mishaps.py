"""What went wrong in a helper: in words for people, and as the answer that a state waits for."""

from __future__ import annotations

from . import events as ev

_DOING = {
    "job": "record the job as it was resolved",
    "pruned": "delete what the policy drops, which is tried again after the next save",
    "event": "look at what the worker left",
    "quiet": "tidy up the run directory",
    "requests": "read what is asked of the run",
    "pinned": "pin or unpin a generation",
    "lease": "renew the lease of the run",
    "cleared": "look for what an earlier attempt left",
    "chosen": "choose what to resume from",
    "examined": "look at how the attempt ended",
    "reload": "read the job file again",
}


def told(tag: str, error: BaseException) -> str:
    """What could not be done, on what, and why; of what is no failing disk the kind of error as well."""
    if not isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    place = f' ("{error.filename}")' if error.filename else ""
    return f"cannot {_DOING.get(tag, tag)}: {error.strerror or error}{place}"


def failed_answer(tag: str, error: BaseException) -> ev.Event | None:
    """What stands for an answer whose helper failed; None where nobody waits for it."""
    match tag:
        case "cleared":
            return ev.LeftoversRemain(())
        case "chosen":
            return ev.ChooseFailed(told(tag, error), "")
        case "examined":
            return ev.Examined(None, False, 0, None, "")
    return None
