"""The names of everything a journal can record, each with the data it carries."""

from __future__ import annotations

# A supervisor's life
SUPERVISOR_STARTED = "supervisor_started"  # identity, version, job_digest, command_digest, code_digest
SUPERVISOR_STOPPED = "supervisor_stopped"  # code, reason; absent where the supervisor was killed
LEFTOVERS_ENDED = "leftovers_ended"  # pids, how: what was left of an earlier attempt
JOB_CHANGED = "job_changed"  # changes: list of sentences; the digests, where the job was read

# An attempt
ATTEMPT_STARTED = "attempt_started"  # attempt, resume, step, cause, why, host
ATTEMPT_ATTACHED = "attempt_attached"  # attempt, pid, rank, restored
ATTEMPT_ENDED = "attempt_ended"  # attempt, outcome, reason, code, signal, step, by, counters, next, signature

# Generations
SEALED = "sealed"  # generation, step, bytes, seconds, cost where the training went on meanwhile
SAVE_FINISHED = "save_finished"  # attempt, generation, ok, reason, seconds: after the death of its worker
VERIFIED = "verified"  # generation, stats {file: [inode, ctime_ns, size]}, healthy
QUARANTINED = "quarantined"  # generation, verdict, reason
PASSED_OVER = "passed_over"  # generation, reason
DROPPED = "dropped"  # generation, reason
PINNED = "pinned"  # generation
UNPINNED = "unpinned"  # generation

# Ends, and what a person decides
HELD = "held"  # by, reason, job_digest, code_digest
RELEASED = "released"  # by, why; counters where they do not begin anew
DONE = "done"  # attempt, command_digest
GAVE_UP = "gave_up"  # reason, signature, counters, tail

# The restart policy's memory between two attempts
STEPPED_BACK = "stepped_back"  # generation, reason: an older one is taken for one start
STEP_BACK_SETTLED = "step_back_settled"  # generation, reason: what that showed
SICK = "sick"  # step

# What happened to the machine and the run
NOTICE = "notice"  # signal: what came, and from whom
RELAYED = "relayed"  # signal, from
DEADLINE = "deadline"  # at (unix seconds; null where it was taken back), from
REQUEUE = "requeue"  # how: requeue, resubmit or none; reason: whether the scheduler is to queue the job again
REQUEUED = "requeued"  # ok, how, text: what came of it
CLOCK_JUMPED = "clock_jumped"  # seconds
PAUSED = "paused"  # seconds
UNPROTECTED = "unprotected"  # reason
PROTECTED = "protected"
VIOLATION = "violation"  # reason: the cadence was not kept
HUNG = "hung"  # phase, seconds, limit
AUDIT = "audit"  # text, compared, equal
DRIFT = "drift"  # differences: list of sentences
UNJOURNALED = "unjournaled"  # reason, seconds: how long the journal could not be written

# Requests and hooks
REQUEST = "request"  # id, verb, by
ANSWERED = "answered"  # id, ok, text
HOOK = "hook"  # name, code
