"""What several commands need: their common options, the exit codes at the end of help, and how to fail."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast_supervisor.quick.ends import Failed as Failed
from outlast_supervisor.quick.ends import our_errors
from outlast_supervisor.quick.ends import print_json as print_json

if TYPE_CHECKING:
    from outlast_jobs.jobfile import Job

Command = TypeVar("Command", bound=Callable[..., Any])

ABOUT_RUN = """\
RUN is a run directory, a job file, a folder with a job.yaml in it, or the name of a job or run; by default the run
at hand.

"""

EXIT_CODES = """\b
Exit codes:
  0    done, also if it was done before
  64   bad usage or job file
  65   no usable checkpoint, or an integrity failure
  69   another supervisor has the run
  70   held: given up or stopped by hand; do not requeue
  73   the run directory cannot be written
  75   not done; run it again
"""

ASK_CODES = """\b
Exit codes:
  0    answered: done
  1    answered: refused, or there is nobody to answer
  2    asked, and not answered in time
  64   bad usage or job file
  73   the run directory cannot be written
"""

CHECK_CODES = """\b
Exit codes:
  0    every generation is verified
  1    one is not, or there is none
  2    one could not be looked at
  64   bad usage or job file
"""

SHOW_CODES = """\b
Exit codes:
  0    shown
  64   bad usage or job file, or no such run
"""


def quiet_option(command: Command) -> Command:
    """`--quiet`: errors only."""
    return click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")(command)


def json_option(command: Command) -> Command:
    """`--json`: data for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def usage_errors(command: Command) -> Command:
    """Turn what is wrong with a job file or a value into a message and exit code 64."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with our_errors():
            return command(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def tells_waits(command: Command) -> Command:
    """Where the file system of what a command is to look at does not answer, say so: it can't be hurried."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        named = kwargs.get("runs") or kwargs.get("dirs") or kwargs.get("run") or "."
        names = (named,) if isinstance(named, str) else named
        from outlast_supervisor.answering import answering

        with answering(", ".join(f'"{name}"' for name in names)):
            return command(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def spare_adopted(job: Job, what: str) -> None:
    """Fail for a job whose script keeps its checkpoints outside the run: copies of the job would use the same."""
    if job.adopt is not None:
        raise Failed(
            f'{what} trains copies of the job, and their script would go on from, and write over, what matches "adopt" '
            f'({job.adopt.pattern!r}); take a copy of the job file without "adopt", whose script writes elsewhere'
        )


def exit_on_term() -> None:
    """Have SIGTERM end this command as an exception does: what stands in its ``finally`` is done."""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)


def say(text: str) -> None:
    """A message for people, on stderr."""
    print(text, file=sys.stderr, flush=True)
