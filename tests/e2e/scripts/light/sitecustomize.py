"""Keeps torch's compiler and exporter out of trainings that are started a hundred times.

`import torch` loads them, and every optimizer asks the compiler at its first call, only to hear that there is
nothing to do: two thirds of what a start costs. A training by hand never calls them.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

_LEFT_OUT = ("torch._dynamo", "torch._meta_registrations", "torch.export", "torch._export", "torch._decomp")


class _Nothing(types.ModuleType):
    """Has every function; those that wrap another give it back, the others do nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda function=None, *args, **kwargs: function


class _Light(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in _LEFT_OUT else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """What the parts that are left out would have done for torch.Generator, in versions that need it."""
        core = sys.modules["torch._C"]
        if module.__name__ == "torch._meta_registrations" and hasattr(core, "_set_generator_metaclass"):
            from torch._opaque_base import OpaqueBaseMeta

            core._set_generator_metaclass(OpaqueBaseMeta)


sys.meta_path.insert(0, _Light())
