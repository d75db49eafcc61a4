"""Puts the repository root on sys.path, so that tests can say ``from tests.waiting import wait_until``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
