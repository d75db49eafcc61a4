"""Keeps torch's compiler out of trainings that are started a hundred times.

Every optimizer imports it at its first call, only to ask it for nothing: a third of what a start costs.
"""

import sys
import types
from collections.abc import Callable
from typing import Any


class _Nothing(types.ModuleType):
    """Has every function; those that wrap another give it back, the others do nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda function=None, *args, **kwargs: function


sys.modules["torch._dynamo"] = _Nothing("torch._dynamo")
