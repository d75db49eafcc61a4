"""The commands, one module each, loaded when they are asked for: `outlast status` has to be quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from outlast_jobs.contract import ExitCode
from outlast_supervisor.commands.shared import EXIT_CODES
from outlast_supervisor.quick.ends import Failed, ended

_COMMANDS: dict[str, tuple[str, str, str]] = {
    # name: (module, attribute, one line of help)
    "run": ("run", "run", "Supervise a job until it is done."),
    "status": ("status", "status", "Show how runs are doing; first what would be lost now."),
    "logs": ("logs", "logs", "Show one continuous log over all attempts."),
    "report": ("report", "report", "Write one HTML page: loss, attempts, goodput."),
    "verify": ("verify", "verify", "Check every generation against its index."),
    "save": ("ask", "save", "Ask a run to save at the next boundary and go on."),
    "stop": ("ask", "stop", "Save and stop a run, and hold it until it is released."),
    "release": ("ask", "release", "Lift a hold, and start nothing."),
    "restart": ("ask", "restart", "Save, and start a new attempt."),
    "reload": ("ask", "reload", "Have the job file read again."),
    "pin": ("ask", "pin", "Keep a generation whatever the policy says."),
    "daemon": ("daemon", "daemon", "Supervise every job file in a folder."),
    "drain": ("daemon", "drain", "Have everything in a daemon's folder save and stop."),
    "new": ("new", "new", "Write a job file and a training script that runs as it is."),
    "demo": ("demo", "demo", "Cut a small training, resume it elsewhere, and compare the losses."),
    "jobs": ("jobs", "jobs", "List the jobs that ship with outlast."),
    "schema": ("schema", "schema", "Print the JSON Schema of the job file, for editors."),
    "completion": ("completion", "completion", "Print shell completion for bash, zsh or fish."),
    "prove": ("prove", "prove", "Show that a resumed run is the run, and that forgetting would be noticed."),
    "systemd": ("systemd", "systemd", "Print or install what systemd needs to run a job until it is done."),
    "doctor": ("doctor", "doctor", "Check the machine, the place and the scheduler before the run."),
    "drill": ("drill", "drill", "Attack a copy of a job, and check what is promised after each attack."),
    "slurm": ("slurm", "slurm", "Print the batch script by which Slurm runs a job, or submit it."),
    "cron": ("cron", "cron", "Print or install the crontab lines that carry a job on."),
    "k8s": ("k8s", "k8s", "Print the Kubernetes Job that carries a job on."),
    "export": ("export", "export", "Copy the newest healthy generation with all it takes to load it."),
}


class _Lazy(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        found = getattr(importlib.import_module(f"outlast_supervisor.commands.{module}"), attribute)
        return found if isinstance(found, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, 1)
            cure = f'did you mean "{near[0]}"?' if near else 'see "outlast --help"'
            raise click.UsageError(f'no command "{args[0]}"; {cure}', ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.command(
    cls=_Lazy,
    invoke_without_command=True,
    epilog=EXIT_CODES.replace("Exit codes:", "Exit codes of outlast run:"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="outlast", prog_name="outlast")
@click.pass_context
def root(ctx: click.Context) -> int:
    """Keep a training run alive on machines that do not last."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), file=sys.stderr)
    return ExitCode.USAGE


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line; every way out of it is an exit code of the documented table."""
    return ended(lambda: _read(arguments))


def _read(arguments: Sequence[str]) -> object:
    try:
        return root.main(args=list(arguments), prog_name="outlast", standalone_mode=False)
    except click.UsageError as error:
        where = (
            f'; see "{error.ctx.command_path} --help"' if error.ctx and "--help" not in error.message else ""
        )
        raise Failed(f"{_one_line(error)}{where}") from error
    except click.ClickException as error:
        raise Failed(error.format_message()) from error
    except click.Abort:
        return 130


def _one_line(error: click.UsageError) -> str:
    return " ".join(error.format_message().split()).rstrip(".")
