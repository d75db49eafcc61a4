"""Loads an export twice, by its own load.py without outlast and by the library, and compares the two.

`outlast export` runs this file with the job's Python: twice.py EXPORT GENERATION. The last line is JSON.
"""

import importlib
import importlib.util
import json
import sys
from typing import Any

OURS = ("outlast_jobs", "outlast_worker", "outlast_supervisor")


class _Hidden:
    """While this stands at the head of the finders, outlast is not installed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in OURS:
            raise ModuleNotFoundError(
                f"No module named {name!r}: an export has to load without it", name=name
            )


def lacking() -> str:
    """What this Python cannot do without and lacks; empty where it has all."""
    try:
        import torch
    except Exception as error:  # a broken installation raises all sorts of things
        return f"lacks torch ({type(error).__name__}: {error})"
    if [int("".join(filter(str.isdigit, n)) or 0) for n in torch.__version__.split(".")[:2]] < [2, 6]:
        return f"lacks torch 2.6 or newer (it has {torch.__version__})"
    return "" if importlib.util.find_spec("outlast_worker") else "lacks outlast_worker"


def compare(export: str, generation: str) -> dict[str, Any]:
    """What is in the export, and the digest of it as each of the two loads it."""
    hidden: Any = _Hidden
    sys.meta_path.insert(0, hidden)
    sys.dont_write_bytecode = True  # nothing but what was exported is to lie there
    sys.path[0] = export
    load: Any = importlib.import_module("load")
    state = load.load_state()
    if used := sorted(name for name in sys.modules if name.partition(".")[0] in OURS):
        raise RuntimeError(f"load.py was to load it without outlast, and there is {', '.join(used)}")
    sys.meta_path.remove(hidden)

    from outlast_worker.digest import first_difference, state_sha256
    from outlast_worker.restoring import digest_generation, read_generation

    found: dict[str, Any] = load.describe(state)
    found["alone"] = state_sha256(state)
    del state  # one of them in memory at a time
    from pathlib import Path

    found["library"] = digest_generation(Path(generation))
    if found["alone"] != found["library"]:
        there = read_generation(Path(generation)).state
        found["difference"] = first_difference(load.load_state(), there)
    return found


def main() -> None:
    """One line of JSON on stdout, whatever was found."""
    said: dict[str, Any] = {"unable": lacking()}
    if not said["unable"]:
        import torch

        said |= {"python": sys.executable, "torch": str(torch.__version__)}
        try:
            said |= compare(*sys.argv[1:])
        except Exception as error:  # whatever keeps it from being loaded is the answer
            memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
            said["unable" if memory else "error"] = f"{type(error).__name__}: {error}"
    print("\n" + json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
