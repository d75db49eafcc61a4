"""Gives the tests of the first process the runs of the end-to-end tests."""

from tests.e2e.conftest import make_run

__all__ = ["make_run"]
