"""Slurm's command-line tools as far as `outlast run` asks them: programs on PATH that answer like the real ones.

What they say is in files of a folder, so a test changes it while a supervisor runs; what they were asked is there too.
Words, exit codes and messages are those of Slurm 22.05.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.waiting import whole_lines

_HEAD = """#!/bin/sh
control='CONTROL'
say() { IFS= read -r found <"$control/$1" 2>/dev/null || :; printf '%s' "$found"; }
tool=${0##*/}
echo "$tool $*" >>"$control/calls"
case $(say "mode-$tool")$(say "mode-$1") in
  hang) exec SLEEP 600 ;;
  hang-in-child) SLEEP 600; exit 0 ;;
  slow) SLEEP 0.7 ;;
  down) echo "$tool: error: Unable to contact slurm controller (connect failure)" >&2; exit 1 ;;
  refused) echo "Requested operation is presently disabled for job $2" >&2; exit 1 ;;
  interactive) echo "Only batch jobs are accepted or processed for job $2" >&2; exit 1 ;;
  garbage) echo "\\033[2J <html>"; echo "moo moo moo"; exit 0 ;;
  killed) kill -TERM $$ ;;
esac
"""
_SQUEUE = """
case $SLURM_TIME_FORMAT in %s) ;; *) echo 2026-11-29T19:52:28 RUNNING; exit 0 ;; esac
echo "$(say end) $(say state)"
"""
_SCONTROL = """
case $1 in
  show) cat <<END
JobId=7 JobName=a Requeue=1 Restarts=9 BatchFlag=0
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=$(say state) Reason=$(say reason) Dependency=(null)
   Requeue=1 Restarts=$(say restarts) BatchFlag=$(say batch) Reboot=0 ExitCode=0:0
   RunTime=00:00:03 TimeLimit=00:10:00 TimeMin=N/A
   PreemptEligibleTime=1795981663 PreemptTime=$(say preempted)
END
  ;;
  write) printf '#!/bin/sh\\n#SBATCH --signal=B:USR1@120\\nexec outlast run job.yaml\\n' ;;
  requeue)
    if [ "$(say restarts)" != 0 ]; then
      echo "Job is pending execution for job $2" >&2
      exit 1
    fi
    cat "$(say journal)"/*.jsonl >"$control/journal-then" 2>/dev/null
    echo 1 >"$control/restarts"
    echo COMPLETING >"$control/state"
    pid=$(say pid)
    if [ -n "$pid" ]; then kill -CONT "$pid"; kill -TERM "$pid"; fi
    ;;
esac
"""
_SBATCH = """
cat >"$control/submitted"
echo "${SLURM_JOB_ID-none} ${SLURM_CPUS_PER_TASK-none} ${OUTLAST_RUN-none}" >"$control/submitted-env"
echo 8
"""


class FakeSlurm:
    """One job of a cluster that has only its tools."""

    def __init__(self, folder: Path) -> None:
        self.control, self.bin = folder / "control", folder / "bin"
        self.control.mkdir(parents=True)
        self.bin.mkdir()
        (self.bin / "cat").symlink_to(shutil.which("cat") or "/bin/cat")
        for name, body in (("squeue", _SQUEUE), ("scontrol", _SCONTROL), ("sbatch", _SBATCH)):
            text = _HEAD + body
            text = text.replace("CONTROL", str(self.control)).replace(
                "SLEEP", shutil.which("sleep") or "sleep"
            )
            tool = self.bin / name
            tool.write_text(text)
            tool.chmod(0o755)
        for name, value in _FIRST.items():
            self.say(name, value)
        (self.control / "calls").touch()

    def env(self, **more: str) -> dict[str, str]:
        """The environment of the batch script."""
        inside = {
            "SLURM_JOB_ID": "7",
            "SLURM_TASK_PID": "1",
            "SLURM_CPUS_PER_TASK": "2",
            "PATH": str(self.bin),
        }
        return {**inside, **more}

    def say(self, name: str, value: object) -> None:
        """Change what the tools answer, in one step."""
        new = self.control / f".{name}"
        new.write_text(f"{value}\n")
        os.replace(new, self.control / name)

    def mode(self, tool: str, value: str) -> None:
        """How a tool, or an action of scontrol, behaves: a word of _HEAD; empty: well."""
        self.say(f"mode-{tool}", value)

    def remove(self, *tools: str) -> None:
        for tool in tools:
            (self.bin / tool).unlink()

    def calls(self, beginning: str = "") -> list[str]:
        """What the tools were asked, in order."""
        lines = whole_lines(self.control / "calls")
        return [line for line in lines if line.startswith(beginning)]


_FIRST = {
    "end": "NONE",
    "state": "RUNNING",
    "reason": "None",
    "restarts": "0",
    "batch": "1",
    "preempted": "None",
    "pid": "",
    "journal": "/nowhere",
}
