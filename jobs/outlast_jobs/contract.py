"""The contract between supervisor and worker: environment names, notification fields, phases, exit codes."""

from __future__ import annotations

import enum

PROTOCOL = "1"
"""Value of ``X_OUTLAST_PROTOCOL`` that this version speaks."""


BUFFER_NAME = "outlast-buffer"
"""``FDNAME`` of the memory that the state is copied into."""


class Env:
    """Names of the environment variables that the supervisor sets for the worker."""

    RUN = "OUTLAST_RUN"  # the run directory, absolute
    RUN_ID = "OUTLAST_RUN_ID"  # with ATTEMPT the marker by which survivors are found
    ATTEMPT = "OUTLAST_ATTEMPT"  # decimal, from 1
    CHECKPOINTS = "OUTLAST_CHECKPOINTS"  # RUN/checkpoints, absolute
    RESUME = "OUTLAST_RESUME"  # the generation chosen, an absolute folder, or absent
    SAVE_EVERY_STEPS = "OUTLAST_SAVE_EVERY_STEPS"  # decimal, or absent
    SAVE_EVERY_SECONDS = "OUTLAST_SAVE_EVERY_SECONDS"  # decimal seconds, or absent
    LINK_UNCHANGED = "OUTLAST_LINK_UNCHANGED"  # "1": unchanged shards are linked; else absent
    DEADLINE = "OUTLAST_DEADLINE"  # unix seconds, or absent
    SUPERVISOR = "OUTLAST_SUPERVISOR"  # process identity of the supervisor: "PID:STARTTICKS:BOOTID"
    SIGNAL_SAVE = "OUTLAST_SIGNAL_SAVE"  # name of the signal that means save and go on, default SIGUSR1
    SIGNAL_STOP = "OUTLAST_SIGNAL_STOP"  # name of the signal that means save and exit 75, default SIGTERM
    SIGNAL_STACKS = "OUTLAST_SIGNAL_STACKS"  # name of the signal that dumps all stacks, default SIGUSR2
    IDENTITY = "OUTLAST_IDENTITY"  # "warn" or "strict"
    ALLOW_RNG_LOSS = "OUTLAST_ALLOW_RNG_LOSS"  # "1" where a person asked for it
    CONFIG_SHA256 = "OUTLAST_CONFIG_SHA256"  # digest of command and environment as the job file gives them
    NOTIFY_SOCKET = "NOTIFY_SOCKET"  # systemd's own name; a datagram socket
    # "FD:INODE": an inherited descriptor of the buffer of the attempt before, or absent
    BUFFER = "OUTLAST_BUFFER"
    NO_COPY = "OUTLAST_NO_COPY"  # "1": memory is short, no save is copied and the training waits; else absent
    # Set by `outlast prove` alone; the last three are heeded only beside the first
    RECORD = "OUTLAST_RECORD"  # "proof": digests of all parts in each line of the metrics
    STOP_AT = "OUTLAST_STOP_AT"  # step at which to seal the last generation and leave with 0
    CUT = "OUTLAST_CUT"  # "SIGTERM@5,SIGKILL@7": signals that the trainer sends itself at these boundaries
    LEAVE_OUT = "OUTLAST_LEAVE_OUT"  # a part that the restore leaves as a fresh start makes it
    # Set by `outlast drill` alone, for the supervisor, which passes it on with RECORD and STOP_AT
    DRILL = "OUTLAST_DRILL"  # the folder in which the drill asks a process to stop at a point


OURS = frozenset(value for name, value in vars(Env).items() if name.isupper())
"""All of these names."""


class Field:
    """Keys of a notification: systemd's own, and ours."""

    READY = "READY"  # "1": the trainer attached
    FDSTORE = "FDSTORE"  # "1", with FDNAME and a descriptor: keep it beyond the worker's end
    FDSTOREREMOVE = "FDSTOREREMOVE"  # "1", with FDNAME: keep it no longer
    FDNAME = "FDNAME"  # BUFFER_NAME; a descriptor of any other name is not kept
    STATUS = "STATUS"  # one line for people
    PROTOCOL = "X_OUTLAST_PROTOCOL"
    RANK = "X_OUTLAST_RANK"
    STEP = "X_OUTLAST_STEP"  # completed optimizer steps
    TOTAL = "X_OUTLAST_TOTAL"  # steps asked for, where known
    LOSS = "X_OUTLAST_LOSS"  # repr of a float
    PHASE = "X_OUTLAST_PHASE"  # a value of Phase
    RESTORED = "X_OUTLAST_RESTORED"  # with READY: name of the generation restored; absent on a fresh start
    SAVING = "X_OUTLAST_SAVING"  # bytes of the save in flight written so far
    SEALED = "X_OUTLAST_SEALED"  # name of the generation sealed; comes with STEP, BYTES and SECONDS
    BYTES = "X_OUTLAST_BYTES"
    SECONDS = "X_OUTLAST_SECONDS"  # how long the save took
    COST = "X_OUTLAST_COST"  # with SEALED: how much of that the training lost; absent means all of it
    SAVE_FAILED = "X_OUTLAST_SAVE_FAILED"  # why a save failed; training goes on
    SICK = "X_OUTLAST_SICK"  # first step whose loss or state was not finite
    EXIT = "X_OUTLAST_EXIT"  # a value of ExitWord: the trainer's last word
    FAILURE = "X_OUTLAST_FAILURE"  # JSON {exception, message, where, step, phase, passing}: it raised
    BAD = "X_OUTLAST_BAD"  # JSON {generation, file, reason}: integrity mismatch found while restoring
    REFUSED = "X_OUTLAST_REFUSED"  # why the worker refuses to go on (identity: strict, restore not honoured)
    DRIFT = "X_OUTLAST_DRIFT"  # JSON list of strings: how this environment differs from the generation's


class Phase(enum.StrEnum):
    """What a worker is doing. Entered by a notification, left by the next."""

    IMPORT = "import"
    RESTORE = "restore"
    COMPILE = "compile"
    TRAIN = "train"
    EVAL = "eval"
    SAVE = "save"


class ExitWord(enum.StrEnum):
    """The trainer's last word. Wrappers swallow exit codes: 0 without it says nothing of a training."""

    DONE = "done"
    SAVED = "saved"


class ExitCode(enum.IntEnum):
    """Exit codes of ``outlast run``; a worker uses DONE, SAVED and UNUSABLE with the same meaning."""

    DONE = 0
    USAGE = 64
    UNUSABLE = 65
    BUSY = 69
    HELD = 70
    CANNOT_WRITE = 73
    SAVED = 75


class Answer(enum.IntEnum):
    """Exit codes of the commands that check something: verify, prove, drill."""

    HELD = 0
    DID_NOT_HOLD = 1
    UNDECIDED = 2


class Schema:
    """The schema strings, one for each kind of file."""

    RUN = "outlast.run/1"
    JOB = "outlast.job/1"
    JOURNAL = "outlast.journal/1"
    STATUS = "outlast.status/1"
    GENERATION = "outlast.generation/1"
    META = "outlast.meta/1"
    METRICS = "outlast.metrics/1"
    REQUEST = "outlast.request/1"
    LOCK = "outlast.lock/1"
    PROOF = "outlast.proof/1"
    DRILL = "outlast.drill/1"
    DAEMON = "outlast.daemon/1"
    BUFFER = "outlast.buffer/1"
