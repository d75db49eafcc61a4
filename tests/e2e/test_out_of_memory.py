"""A control group whose memory is too small: a kill is told as the kernel's, and saves take less then."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import MakeRun
from tests.realparts import needs

from outlast_jobs.contract import Env, ExitCode

_LIMIT = 96 << 20
_GREEDY = """
import os, sys
print("told", os.environ.get("OUTLAST_NO_COPY"), flush=True)
if sys.argv[1] == "attempt 1" and os.environ["OUTLAST_ATTEMPT"] != "1":
    sys.exit(0)
taken = []
while True:
    taken.append(bytearray(b"x") * (1 << 20))
"""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """A control group of little memory, and no swap."""
    made = Path("/sys/fs/cgroup/memory", f"outlast-{os.getpid()}-{tmp_path.name}")
    made.mkdir()
    try:
        (made / "memory.limit_in_bytes").write_text(str(_LIMIT))
        yield made
    finally:
        with contextlib.suppress(OSError):
            made.rmdir()


@needs("memory control groups")
def test_a_worker_that_the_kernel_kills_for_memory_is_told_so(make_run: MakeRun, group: Path) -> None:
    """The reason names the kernel, the next attempt is to copy nothing, and the supervisor lives and goes on."""
    run = make_run({"command": ["{python}", "-c", _GREEDY, "attempt 1"], "restart": {"backoff": "1ms..1ms"}})
    enter = ("sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group))
    supervisor = run.start(wrapper=enter)
    assert supervisor.wait() == ExitCode.DONE, run.report()
    assert (
        "attempt 1 ended at step 0: killed by SIGKILL, which was not ours; the kernel was out of memory"
        in supervisor.output
    )
    assert Env.NO_COPY in _GREEDY
    assert ["told None" in run.log(1), "told 1" in run.log(2)] == [True, True], run.report()
    run.nothing_left()
