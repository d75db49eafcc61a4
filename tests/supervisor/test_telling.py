"""What a person sees of a proof or a drill on a terminal: lines that stay, and one that is renewed in its place."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

LINES = """
from outlast_supervisor.telling import Teller

teller = Teller("prove", quiet=False)
teller.live("0 s, 0 of 15 done: without optimizer 0/40, without scheduler 0/40, without rows 0/40")
teller.live("1 s")
teller.say("it stays")
teller.live("2 s")
teller.clear()
print("the end", flush=True)
"""


def shown() -> list[str]:
    """What stands in each line of a terminal of 40 columns at last."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (10, 40))
    with subprocess.Popen([sys.executable, "-c", LINES], stdout=theirs, stderr=theirs) as told:
        told.wait()
    said = os.read(ours, 4096).decode()  # some hundred bytes, which the terminal keeps
    os.close(theirs)
    os.close(ours)
    lines = []
    for line in said.replace("\r\n", "\n").split("\n"):
        screen = ""
        for part in line.split("\r"):
            assert len(part) < 40, "it would be wrapped, and could not be renewed"
            screen = part + screen[len(part) :]
        lines.append(screen.rstrip())
    return lines


def test_what_is_renewed_leaves_nothing_behind() -> None:
    """It is cut to the terminal, and gone from the lines that stay after it, the results too."""
    assert shown() == ["outlast prove: it stays", "the end", ""]
