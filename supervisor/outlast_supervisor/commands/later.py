"""Commands that are named in the documentation and not there yet; each says so."""

from __future__ import annotations

import click

from outlast_supervisor.commands.shared import SHOW_CODES, Failed

_ANYTHING = {"ignore_unknown_options": True, "allow_interspersed_args": True}


def _later(name: str) -> click.Command:
    @click.command(name, epilog=SHOW_CODES, context_settings=_ANYTHING, help="Not yet in this version.")
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        raise Failed(f'"outlast {name}": not yet; this version has no such command')

    return command


export = _later("export")
