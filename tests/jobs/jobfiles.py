"""Job files for the tests."""

from __future__ import annotations

from pathlib import Path

from outlast_jobs.jobfile import (
    Job,
    load_job,
)

WHOLE = """\
name: bytelm                      # also the run's name
command: [python, train.py, --steps, "2000"]
workdir: .                        # relative to this file
env: {OMP_NUM_THREADS: "1"}
run_dir: runs/bytelm
signals: outlast                  # or native
save:    {every_steps: 200, every_seconds: 600}      # or: every: auto, between: 30s..30m
keep:    {last: 3, every_steps: 1000, max_bytes: 20GiB}
start_from: ../pretrained/step-000090000.a0003       # until an own generation exists
restart: {without_progress: 5, backoff: 1s..60s, never_on: [2], free_on: [137]}
stop:    {grace: 30s, on_usr1: auto, time_limit: 7d}
hang:    {min: 600s}
identity: warn
audit:   warn
sick:    stop
logs:    {max_bytes: 1GiB}
hooks:   {given_up: "mail -s '$OUTLAST_RUN gave up' me", unprotected: "…", hung: "…", done: "…"}
notices: [aws, gce]
slurm:   {time: "04:00:00", warn: 120s, requeue: auto, options: {partition: gpu, gres: "gpu:1"}}
daemon:  {priority: 5, slots: 2}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def loaded(folder: Path, text: str) -> Job:
    return load_job(written(folder, f"name: x\ncommand: [python, train.py]\n{text}"))
