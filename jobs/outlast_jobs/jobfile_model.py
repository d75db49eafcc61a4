"""The job as frozen data: each key of the job file with type, default, meaning and what was expected.

``Meta.description`` goes into the JSON Schema; ``Meta.extra["expected"]`` into error messages, and
``Meta.extra["read"]`` names the reader in ``jobfile_values`` for values that people write with units.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


def _told(expected: str, *, read: str | None = None, **limits: Any) -> Meta:
    return Meta(extra={"expected": expected, "read": read}, **limits)


def _doc(description: str, expected: str | None = None) -> Meta:
    return Meta(description=description, extra={"expected": expected} if expected else None)


_Steps = Annotated[int, _told("a whole number of steps, 1 or more", ge=1, le=2**53)]
_Count = Annotated[int, _told("a whole number, 1 or more", ge=1, le=10**6)]
_Priority = Annotated[int, _told("a whole number from -1000 to 1000", ge=-1000, le=1000)]
_Slots = Annotated[int, _told("a whole number of slots, 0 or more", ge=0, le=1000)]
_Code = Annotated[int, _told("an exit code from 1 to 255", ge=1, le=255)]
_Span = Annotated[float, _told('a duration above 0 such as "30s", "10m" or "1h30m"', read="duration", gt=0)]
_Delay = Annotated[float, _told('a duration such as "30s", "10m" or "1h30m"', read="duration", ge=0)]
_Size = Annotated[int, _told('a size above 0 such as "500MB" or "20GiB"', read="size", ge=1)]
_Range = Annotated[tuple[float, float], _told('a range of durations above 0 such as "1s..60s"', read="range")]
_Signal = Annotated[
    str, _told("the name of a signal that a program may handle, such as USR1 or TERM", read="signal")
]
_Path = Annotated[str, _told("a path, without variables", read="path")]
_Word = Annotated[str, _told("text", read="word")]
_Module = Annotated[
    str,
    _told(
        "the name of a module such as torch", pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z"
    ),
]
_Shell = Annotated[str, _told("a shell command", read="shell")]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping in the job file."""


class Signals(Section, frozen=True):
    """Which signals the worker is sent, and whether it takes part in saving."""

    mode: Annotated[
        Literal["outlast", "native"],
        _doc(
            "outlast: the worker uses outlast_worker, so notices are held until it can save; "
            "native: signals are passed on at once"
        ),
    ] = "native"
    save: Annotated[_Signal, _doc("save at the next boundary and go on")] = "SIGUSR1"
    stop: Annotated[_Signal, _doc("save at the next boundary and exit 75")] = "SIGTERM"
    stacks: Annotated[_Signal, _doc("write all stacks into the log")] = "SIGUSR2"


class Save(Section, frozen=True):
    """When to save: after so many steps or so much time, whichever comes first."""

    every_steps: Annotated[_Steps | None, _doc("save at the first boundary past each multiple")] = None
    every_seconds: Annotated[_Span | None, _doc("save when so much time passed since the last save")] = None
    every: Annotated[
        Literal["auto"] | None,
        _doc("auto: from the measured cost of a save and the run's own failures; excludes the other two"),
    ] = None
    between: Annotated[_Range, _doc("bounds for every: auto")] = (30.0, 7200.0)
    link_unchanged: Annotated[
        bool, _doc("link shards that are as they were before instead of writing them again", "true or false")
    ] = False

    @property
    def auto(self) -> bool:
        """Whether the interval is worked out from the run itself."""
        return self.every == "auto"


class Keep(Section, frozen=True):
    """Which generations stay on disk."""

    last: Annotated[_Count, _doc("so many of the newest verified generations")] = 3
    every_steps: Annotated[
        _Steps | None, _doc("also the first generation at or past each multiple, for ever")
    ] = None
    max_bytes: Annotated[_Size | None, _doc("drop older ones when all together are larger")] = None


class Restart(Section, frozen=True):
    """When a worker that ended is started again."""

    without_progress: Annotated[
        _Count, _doc("give up after so many starts in a row that brought nothing new")
    ] = 5
    waiting: Annotated[_Delay, _doc("and not before so much time was spent waiting between those starts")] = (
        600.0
    )
    backoff: Annotated[_Range, _doc("the wait before a start, from the first to the second")] = (1.0, 60.0)
    never_on: Annotated[
        tuple[_Code, ...], _doc("exit codes after which to give up at once", "a list of exit codes")
    ] = ()
    free_on: Annotated[
        tuple[_Code, ...], _doc("exit codes that count as preempted, not as crashed", "a list of exit codes")
    ] = ()


class Stop(Section, frozen=True):
    """How the worker is stopped."""

    grace: Annotated[
        _Span, _doc("from the stop signal to SIGTERM for all that was started; SIGKILL follows 2 s later")
    ] = 30.0
    on_usr1: Annotated[
        Literal["auto", "save", "stop"], _doc("what SIGUSR1 to outlast means; auto asks for the end time")
    ] = "auto"
    time_limit: Annotated[_Span | None, _doc("save and stop after so much time in one start")] = None
    warn: Annotated[_Delay, _doc("how long before its end the machine's warning comes")] = 120.0


class Hang(Section, frozen=True):
    """When silence means that the worker hangs."""

    min: Annotated[_Span, _doc("a phase is never called hung before this")] = 600.0


class Logs(Section, frozen=True):
    """The logs of the attempts."""

    max_bytes: Annotated[_Size | None, _doc("cap of each attempt's log")] = None


class Hooks(Section, frozen=True):
    """Shell commands run when something happened that a person should hear of."""

    given_up: Annotated[_Shell | None, _doc("the run was given up")] = None
    unprotected: Annotated[_Shell | None, _doc("no save succeeds, training goes on unprotected")] = None
    hung: Annotated[_Shell | None, _doc("the worker hung and was ended")] = None
    done: Annotated[_Shell | None, _doc("the run is done")] = None


class Slurm(Section, frozen=True):
    """What a Slurm batch script needs, and what a run inside a Slurm job does at its end."""

    time: Annotated[
        Annotated[str, _told('a time such as "04:00:00" or "2-00:00:00"', read="slurm_time")] | None,
        _doc("the time limit to ask for"),
    ] = None
    warn: Annotated[_Delay, _doc("how long before the end to be warned")] = 120.0
    requeue: Annotated[
        Literal["auto", "slurm", "resubmit", "never"],
        _doc(
            "how a job that is not done is queued again: slurm: scontrol requeue; resubmit: sbatch; "
            "auto: the one, else the other"
        ),
    ] = "auto"
    options: Annotated[
        dict[str, str | int | bool], _doc("further sbatch options", "names with a value each")
    ] = {}


class Daemon(Section, frozen=True):
    """What the daemon of a folder looks at; nothing else does."""

    priority: Annotated[_Priority, _doc("of the jobs that wait for a place, the highest starts first")] = 0
    slots: Annotated[_Slots, _doc("so many of the daemon's slots, such as GPUs, where it has any")] = 1


class Adopt(Section, frozen=True):
    """The checkpoints that a script without the library writes, and how it is told to go on from one."""

    pattern: Annotated[
        _Word,
        _doc('which files or folders are checkpoints, relative to `workdir`, such as "out/checkpoint-*"'),
    ]
    resume: Annotated[
        _Word,
        _doc("what is added to the command to go on from one; {path} is its path"),
    ]
    complete: Annotated[
        _Word | None, _doc("a file that a folder has once it is whole; without it a folder counts as it is")
    ] = None


class Job(Section, frozen=True):
    """One job: a command and the policies by which it is carried to its end."""

    name: Annotated[
        Annotated[
            str,
            _told('a folder name of 1 to 100 characters without "/" or a "." or "-" in front', read="name"),
        ],
        _doc("the job's name, and the run's"),
    ]
    command: Annotated[
        tuple[_Word, ...],
        _doc("the program and its arguments; {python} is the Python that runs outlast", "a list of words"),
        Meta(extra={"some": True}),
    ]
    workdir: Annotated[_Path, _doc("where the command runs, relative to the job file")] = "."
    env: Annotated[
        dict[str, _Word],
        _doc("environment variables added to those of outlast itself", "names with a text each"),
        Meta(extra={"keys": "env_name"}),
    ] = {}
    run_dir: Annotated[_Path, _doc("the run directory, relative to the job file; runs/NAME by default")] = ""
    signals: Annotated[Signals, _doc("signals between outlast and the worker")] = Signals()
    save: Annotated[Save, _doc("when to save")] = Save(every_seconds=600.0)
    keep: Annotated[Keep, _doc("which generations stay")] = Keep()
    start_from: Annotated[
        _Path | None, _doc("a generation to start from until the run has one of its own")
    ] = None
    adopt: Annotated[
        Adopt | None, _doc("checkpoints that the script writes by itself, and how it goes on from one")
    ] = None
    restart: Annotated[Restart, _doc("when to start again")] = Restart()
    stop: Annotated[Stop, _doc("how to stop")] = Stop()
    hang: Annotated[Hang, _doc("when silence is a hang")] = Hang()
    identity: Annotated[
        Literal["warn", "strict"], _doc("what a changed environment or code means at a resume")
    ] = "warn"
    audit: Annotated[
        Literal["warn", "stop"], _doc("what it means when repeated steps differ from those before the crash")
    ] = "warn"
    sick: Annotated[
        Literal["stop", "continue"], _doc("what a loss that is not finite means when it comes back")
    ] = "stop"
    logs: Annotated[Logs, _doc("the logs")] = Logs()
    hooks: Annotated[Hooks, _doc("commands run on events")] = Hooks()
    notices: Annotated[
        tuple[Literal["aws", "gce", "azure"], ...],
        _doc("clouds whose notices of the machine's end are listened to", "a list of aws, gce and azure"),
    ] = ()
    slurm: Annotated[
        Slurm | None, _doc("Slurm: the batch script, and what a run in a Slurm job does at its end")
    ] = None
    daemon: Annotated[Daemon, _doc("for the daemon of a folder")] = Daemon()
    standby: Annotated[
        bool,
        _doc(
            "keep a second process that has imported `preload` and becomes the next worker", "true or false"
        ),
    ] = False
    preload: Annotated[
        tuple[_Module, ...],
        _doc("what a standby imports", "a list of modules' names"),
        Meta(extra={"some": True}),
    ] = ("torch",)
    source: str | None = None


EXAMPLES: dict[type[Section], str] = {
    Signals: "{mode: outlast, save: USR1}",
    Save: "{every_steps: 200, every_seconds: 10m}",
    Keep: "{last: 3}",
    Restart: "{without_progress: 5, backoff: 1s..60s}",
    Stop: "{grace: 30s}",
    Hang: "{min: 10m}",
    Logs: "{max_bytes: 1GiB}",
    Hooks: '{given_up: "notify-send gave up"}',
    Slurm: '{time: "04:00:00", warn: 120s}',
    Daemon: "{priority: 10}",
    Adopt: '{pattern: "checkpoint-*", complete: trainer_state.json, resume: "--resume_from_checkpoint {path}"}',
}
"""What each section looks like, for the message that it is not one."""

SHORTHAND: dict[type[Section], str] = {Signals: "mode"}
"""Sections that may be written as a single value, and the key that it stands for."""
