"""Run every measurement in turn, show what each says, and keep it in bench/RESULTS.md with the machine and versions.

Takes about an hour and a half on two cores, and needs them for itself: python bench/results.py [--quick] [PART…]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
PARTS: dict[str, tuple[str, ...]] = {
    "The supervisor": ("bench.py",),
    "What a save costs": ("saves.py",),
    "A verified restore": ("restore.py",),
    "Coming back": ("standby.py",),
    "Goodput under fire": ("under_fire.py", "--standby"),
    "At scale": ("scale.py",),
}
QUICK = ("bench.py", "saves.py", "under_fire.py", "scale.py")
"""Those that can be shortened."""


def machine() -> str:
    """What the figures were taken on."""
    names = ("outlast", "torch", "numpy", "lightning")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names if _there(name))
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "",
    )
    memory = next(
        (int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0
    )
    return (
        f"{os.cpu_count()} cores ({cpu}), {memory / (1 << 20):.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}; {datetime.now(UTC):%Y-%m-%d}; "
        f"load at the start {os.getloadavg()[0]:.1f}"
    )


def _there(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def shown(command: list[str]) -> str:
    """Run it, show its lines as they come, and return them."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines) + (f"ended with {process.returncode}\n" if process.returncode else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short: only to see that all of it runs")
    parser.add_argument("parts", nargs="*", help="names of parts, or how they begin; all without")
    options = parser.parse_args()
    wanted = {
        name: words
        for name, words in PARTS.items()
        if not options.parts or any(name.lower().startswith(part.lower()) for part in options.parts)
    }
    text = [f"# Results\n\nMedians, side by side, by `make bench`. {machine()}.\n"]
    for name, (script, *words) in wanted.items():
        print(f"\n## {name}", flush=True)
        quick = ["--quick"] if options.quick and script in QUICK else []
        found = shown([sys.executable, str(HERE / script), *words, *quick])
        text.append(
            f"## {name}\n\n`python bench/{' '.join([script, *words, *quick])}`\n\n```\n{found.strip()}\n```\n"
        )
    if not options.quick and wanted == PARTS:
        (HERE / "RESULTS.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
