"""`outlast completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from outlast_supervisor.commands.shared import SHOW_CODES, Failed


@click.command(epilog=SHOW_CODES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print shell completion.

    \b
    bash:  outlast completion bash > ~/.local/share/bash-completion/completions/outlast
    zsh:   outlast completion zsh > ~/.zfunc/_outlast
    fish:  outlast completion fish > ~/.config/fish/completions/outlast.fish
    """
    root = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    if found is None:
        raise Failed(f'no completion for "{shell}"')
    print(found(root, {}, "outlast", "_OUTLAST_COMPLETE").source())
