"""Forks a process for each operation that stdin asks for, [FOLDER, ARGUMENTS…] as JSON, and says how each ended.

With an argument the product is broken first, as broken.py does for that operation.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from tests.faults import marks
from tests.faults.scripts.operate import OPERATIONS

from outlast_jobs.rundir import RunDirectory


def carry_out(folder: str, operation: str, path: str, run_id: str) -> None:
    """In the child: what it says goes into files."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ[marks.PLACE] = f"{folder}/place"
    marks.alone()
    code = 1
    try:
        OPERATIONS[operation](RunDirectory(Path(path)), run_id)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if len(sys.argv) > 1:
    from tests.faults.scripts.broken import BROKEN

    BROKEN[sys.argv[1]]()
for line in iter(sys.stdin.readline, ""):
    if (child := os.fork()) == 0:
        carry_out(*json.loads(line))
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
