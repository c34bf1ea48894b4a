"""Models that were exported (kiln.export): loaded and run without torch, a daemon or a compiler."""

from __future__ import annotations

import dataclasses
import math
import os

# Of Kiln's dtypes as NumPy and memoryview have them; bf16, which these have not, is the 16 bits of it.
_NUMPY = {"bool": "bool", "u8": "uint8", "i8": "int8", "i32": "int32", "i64": "int64", "f16": "float16", "bf16": "uint16",
          "f32": "float32", "f64": "float64"}  # fmt: skip
_STRUCT = {"bool": "?", "u8": "B", "i8": "b", "i32": "i", "i64": "q", "f16": "e", "bf16": "H", "f32": "f", "f64": "d"}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """What an export says of an input or output; strides in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Elements of memory from its first to its last."""
        return 0 if 0 in self.shape else 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))

    @property
    def is_dense(self) -> bool:
        steps = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        return all(extent < 2 or stride == step for extent, stride, step in zip(self.shape, self.strides, steps))


@dataclasses.dataclass(frozen=True)
class Form:
    """The model for inputs of known dtypes and shapes."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Exported:
    """A loaded export: called with tensors, gives a tuple of tensors. A tensor is what has the buffer protocol, as NumPy's arrays
    have, or DLPack's. Threading: any thread at once.

    target: whose kernels run here; forms: which inputs it takes, and what it gives for them."""

    def __init__(self, path: str | os.PathLike) -> None:
        from . import _kiln

        self._exported = _kiln.Exported(path)
        self.target: str = self._exported.target
        self.forms = tuple(Form(*(tuple(Tensor(*each) for each in tensors) for tensors in form)) for form in self._exported.forms)

    def __call__(self, *inputs, out=None, num_threads: int = 0, **named) -> tuple:
        """Inputs in their order, or by name. Outputs are new: NumPy's arrays where it is installed, else memoryviews; or those of
        `out`, one for each output. num_threads: 0 is all of the OpenMP pool.
        Raises TypeError for what is no such tensor, kiln.Error (invalid_argument) where no form takes the inputs, IndexError."""
        given = self._in_order(inputs, named)
        number = self._exported.choose(given)
        outputs = [_empty(tensor) for tensor in self.forms[number].outputs] if out is None else list(out)
        self._exported.run(number, given, outputs, num_threads)
        return tuple(outputs)

    def _in_order(self, inputs: tuple, named: dict) -> list:
        names = [tensor.name for tensor in self.forms[0].inputs]
        given = dict(zip(names, inputs))
        twice, unknown = given.keys() & named.keys(), named.keys() - set(names)
        given |= named
        missing = [name for name in names if name not in given]
        if len(inputs) > len(names) or twice or unknown or missing:
            raise TypeError(f"the export takes {', '.join(names)}; got {len(inputs)} inputs in order and {sorted(named)} by name")
        return [given[name] for name in names]


def load(path: str | os.PathLike) -> Exported:
    """Loads what kiln.export wrote. Raises kiln.Error: `code_name` says why (docs/export.md), and nothing is loaded then."""
    return Exported(path)


def _empty(tensor: Tensor):
    """A tensor to be written, in the strides that it is to have."""
    try:
        import numpy
    except ImportError:
        return _empty_view(tensor)
    dtype = numpy.dtype(_NUMPY[tensor.dtype])
    if tensor.is_dense:
        return numpy.empty(tensor.shape, dtype)
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    return numpy.lib.stride_tricks.as_strided(numpy.empty(tensor.span, dtype), tensor.shape, strides)


def _empty_view(tensor: Tensor) -> memoryview:
    code = _STRUCT[tensor.dtype]
    if not tensor.is_dense or 0 in tensor.shape:
        raise TypeError(f"output {tensor.name} has gaps, or nothing, in memory: give it in `out`, or install NumPy")
    memory = memoryview(bytearray(tensor.span * memoryview(b"\0" * 8).cast(code).itemsize))
    return memory.cast(code, tensor.shape) if tensor.shape else memory.cast(code, ())


__all__ = ["Exported", "Form", "Tensor", "load"]
