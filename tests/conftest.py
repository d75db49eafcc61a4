"""What every test stands on: the repository root on sys.path, and signals as a shell in a terminal hands them on."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# Under nohup, or behind a shell's "&", some signals come to us ignored, and everything that a test starts would
# inherit that: a supervisor obeys it, and a test that waits for what the signal does would wait for ever.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(_number) is signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
