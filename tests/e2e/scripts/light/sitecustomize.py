"""Keeps what a training by hand never calls out of `import torch`: half of what a start costs.

`import torch` loads its compiler, tracer, exporter, quantization, profiler and more, and every optimizer asks the
compiler at its first call, only to hear that there is nothing to do. What computes is compiled, and all there: the
tests with the whole of torch come to the same bits. Imports nothing itself that a start does not have.
"""

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

_LEFT_OUT = (
    *(
        "torch._decomp",
        "torch._dynamo",
        "torch._export",
        "torch._meta_registrations",
        "torch.export",
    ),  # compiler
    *("torch._functorch", "torch._higher_order_ops", "torch._subclasses", "torch.func", "torch.fx"),  # tracer
    *("torch.ao", "torch.nn.intrinsic", "torch.nn.qat", "torch.nn.quantizable", "torch.nn.quantized"),
    *("torch.quantization", "torch.distributions", "torch.masked", "torch.nested", "torch.package"),
    *("torch._native", "torch._strobelight", "torch.profiler", "torch.testing", "torch.utils._debug_mode"),
    *("torch.utils.data.datapipes", "torchgen"),
)


class _Absent:
    """Stands for any name of such a module: a decorator that gives its function back, a base that adds nothing."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, function: object = None, *args: object, **kwargs: object) -> object:
        return function if callable(function) else self

    def __getattr__(self, name: str) -> "_Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __getitem__(self, key: object) -> "_Absent":
        return self

    def __or__(self, other: object) -> "_Absent":
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __bool__(self) -> bool:
        return False


class _Nothing(types.ModuleType):
    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name)


class _Light:
    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("torch"):
            return None
        left_out = any(fullname == name or fullname.startswith(f"{name}.") for name in _LEFT_OUT)
        return ModuleSpec(fullname, _Light, is_package=True) if left_out else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> types.ModuleType:
        return _Nothing(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        """What the parts that are left out would have done for torch.Generator, in versions that need it."""
        core = sys.modules.get("torch._C")
        if module.__name__ == "torch._meta_registrations" and hasattr(core, "_set_generator_metaclass"):
            try:
                from torch._custom_class_base import CustomClassBaseMeta as Meta
            except ImportError:  # what it is called before torch 2.14
                from torch._opaque_base import OpaqueBaseMeta as Meta
            core._set_generator_metaclass(Meta)


sys.meta_path.insert(0, _Light)  # type: ignore[arg-type]
