"""The runs of the end-to-end tests, for attacks on whole runs."""

from __future__ import annotations

from tests.e2e.conftest import make_run

__all__ = ["make_run"]
