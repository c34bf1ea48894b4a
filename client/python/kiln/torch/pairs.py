"""Complex tensors as real ones: pairs, whose last dim is the real and the imaginary part. What graphs call where
complex_numbers.py has put pairs in place of complex tensors, and what it is in torch."""

from __future__ import annotations

import torch

aten = torch.ops.aten

# Of a complex dtype, that of its parts.
PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# Ops that make complex numbers of real ones.
OF_REALS = (aten.complex.default, aten.polar.default)


def as_pairs(tensor: torch.Tensor) -> torch.Tensor:
    """The complex tensor's elements as pairs: a view, but for one with torch's conjugate or negative bit."""
    return torch.view_as_real(tensor.resolve_conj().resolve_neg())


def as_complex(pairs: torch.Tensor) -> torch.Tensor:
    """The pairs as a complex tensor: a view, but for pairs that do not lie as such a tensor's elements do."""
    strides = (pairs.storage_offset(), *pairs.stride()[:-1])
    is_laid_out = pairs.stride(-1) == 1 and all(stride % 2 == 0 for stride in strides)
    return torch.view_as_complex(pairs if is_laid_out else pairs.contiguous())


def in_pairs(op, *operands, **options):
    """What torch's op gives of complex tensors, which come as pairs, and a complex result goes as."""
    if op not in OF_REALS:
        operands = [as_complex(each) if isinstance(each, torch.Tensor) else each for each in operands]
    result = op(*operands, **options)
    return as_pairs(result) if result.is_complex() else result


def each_in_pairs(op, *operands, **options):
    """As in_pairs, of an op on single elements."""
    return in_pairs(op, *operands, **options)


__all__ = ["OF_REALS", "PARTS", "as_complex", "as_pairs", "each_in_pairs", "in_pairs"]
