"""What makes loading itself quick, since that is nearly all of the time that a short command takes."""

from __future__ import annotations

import gc
import sys


def begin() -> None:
    """Before anything of ours is loaded but the command line's reader."""
    gc.disable()  # it would look for garbage among what is loaded, again and again, and there is none
    # msgspec does with typing's own functions as well, and this, with `inspect` below it, costs more than msgspec
    name = "typing_extensions"
    if name not in sys.modules:
        sys.modules[name] = None  # type: ignore[assignment]  # documented: then its import fails
        try:
            import msgspec  # noqa: F401
        except ImportError:
            pass  # one that needs it is loaded with it, by whoever imports it next
        finally:
            del sys.modules[name]


def done() -> None:
    """After the last module: all of it stays to the end, so it is never looked through."""
    gc.freeze()
    gc.enable()
