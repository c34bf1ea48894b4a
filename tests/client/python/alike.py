"""Whether a compiled function does what eager does: values, and structure: dtype, shape, strides, lazy bits, what shares memory
with what and a version with inputs, what was written to, gradients and where they are."""

from __future__ import annotations

import copy

import torch

from kiln.torch.tensors import tensors_in


# What tests compute is of the order of 1: less than this, times a tolerance, is rounding wherever it comes from.
FLOOR = 1e-2


class Different(AssertionError):
    """The compiled function did something else than eager, or raised where eager does not."""


class Inexact(Different):
    """Of the right type, but with other values."""


def clone_inputs(inputs: list) -> list:
    """Copies with the same strides, offset, bits, and memory shared as it was."""
    bases: dict[int, torch.Tensor] = {}

    def clone(tensor):
        if tensor.is_neg() or tensor.is_conj():
            flat = clone(torch._neg_view(tensor) if tensor.is_neg() else tensor.conj())
            return torch._neg_view(flat) if tensor.is_neg() else flat.conj()
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in bases:
            size = storage.nbytes() // tensor.element_size()
            bases[storage.data_ptr()] = torch.empty(0, dtype=tensor.dtype).set_(storage.clone(), 0, (size,), (1,))
        base = bases[storage.data_ptr()].view(tensor.dtype)
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).requires_grad_(tensor.requires_grad)

    return [clone(i) if isinstance(i, torch.Tensor) else i for i in inputs]


class Outcome:
    """What one run left: outputs, inputs, gradients; and what shares memory with what."""

    def __init__(self, function, inputs: list, module=None, backward: bool = True, twice: bool = False) -> None:
        """twice: with the gradients of gradients."""
        buffers = list(module.buffers()) if module is not None else []
        versions = [t._version for t in (*tensors_in(inputs), *buffers)]
        torch.manual_seed(11)
        self.outputs = list(tensors_in(function(*inputs)))
        self.inputs = list(tensors_in(inputs))
        written = [t._version > v for t, v in zip((*self.inputs, *buffers), versions, strict=True)]
        self.written, self.written_buffers = written[: len(self.inputs)], written[len(self.inputs) :]
        self.structure = [_structure(t) for t in self.outputs]
        self.shared = [[_where(t, other) for other in (*self.outputs, *self.inputs)] for t in self.outputs]
        self.state = [t.detach().clone() for t in buffers]
        self.gradients: list = []
        self.differentiable: list = []
        self.gradients_of_gradients: list = []
        if backward:
            self._backward(module, twice)
        self.together = [_written_with(t, (*self.inputs, *buffers)) for t in self.outputs]

    def _backward(self, module, twice: bool) -> None:
        trained = [t for t in self.outputs if t.requires_grad]
        leaves = [t for t in self.inputs if t.requires_grad and t.is_leaf]
        leaves += list(module.parameters()) if module is not None else []
        if not trained or not leaves:
            return
        random = torch.Generator().manual_seed(3)
        cotangents = [torch.randn(t.shape, generator=random, dtype=torch.float64).to(t.dtype) for t in trained]
        self.gradients = list(torch.autograd.grad(trained, leaves, cotangents, allow_unused=True, create_graph=twice))
        self.differentiable = [g is not None and g.requires_grad for g in self.gradients]
        again = [g for g, is_differentiable in zip(self.gradients, self.differentiable) if is_differentiable]
        if again:
            self.gradients_of_gradients = list(torch.autograd.grad([g.square().sum() for g in again], leaves, allow_unused=True))

    def values(self) -> list:
        return [*self.outputs, *self.inputs, *self.state, *self.gradients, *self.gradients_of_gradients]

    def names(self) -> list[str]:
        groups = (("output", self.outputs), ("input", self.inputs), ("buffer", self.state), ("gradient", self.gradients),
                  ("gradient of gradients", self.gradients_of_gradients))
        return [f"{name} {i}" for name, group in groups for i in range(len(group))]


def _structure(tensor) -> tuple:
    strides = tuple(s for s, e in zip(tensor.stride(), tensor.shape) if e > 1) if tensor.numel() else ()
    return tensor.dtype, tuple(tensor.shape), strides, tensor.requires_grad, tensor.is_leaf, tensor.is_neg(), tensor.is_conj()


def _written_with(tensor, others: tuple) -> list[bool]:
    """Which of the others autograd takes for written when the tensor is: those of one version counter."""
    before = [t._version for t in others]
    torch.autograd.graph.increment_version(tensor)
    return [t._version > version for t, version in zip(others, before)]


def _where(tensor, other) -> int | str:
    """How a tensor lies to another: so many elements behind it in the same memory, or elsewhere."""
    if tensor.numel() == 0 or other.numel() == 0:
        return "elsewhere"
    if tensor.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return "elsewhere"
    return (tensor.data_ptr() - other.data_ptr()) // tensor.element_size()


def compare(got: Outcome, wanted: Outcome, tolerance: float = 1e-5) -> None:
    """Raises Different."""
    if len(got.outputs) != len(wanted.outputs):
        raise Different(f"{len(got.outputs)} outputs, eager has {len(wanted.outputs)}")
    for i, (mine, eagers) in enumerate(zip(got.structure, wanted.structure)):
        if mine != eagers:
            raise Different(f"output {i} is {mine}, eager's {eagers}")
    if got.differentiable != wanted.differentiable:
        raise Different(f"gradients have gradients: {got.differentiable}, eager's: {wanted.differentiable}")
    if got.shared != wanted.shared:
        raise Different(f"outputs share memory as {got.shared}, eager's as {wanted.shared}")
    if got.written != wanted.written:
        raise Different(f"written inputs {got.written}, eager writes {wanted.written}")
    # torch's batch norm writes its statistics and autograd is not told; what is traced tells it.
    if any(eagers and not mine for mine, eagers in zip(got.written_buffers, wanted.written_buffers)):
        raise Different(f"written buffers {got.written_buffers}, eager writes {wanted.written_buffers}")
    if got.together != wanted.together:
        raise Different(f"outputs are written with inputs and buffers as {got.together}, eager's as {wanted.together}")
    for name, mine, eagers in zip(got.names(), got.values(), wanted.values()):
        if (mine is None) != (eagers is None):
            raise Different(f"{name} is {mine}, eager's {eagers}")
        if mine is not None and (error := error_of(mine, eagers)) > tolerance:
            raise Inexact(f"{name} is wrong by {error:.3g} of its scale")


def error_of(mine: torch.Tensor, eagers: torch.Tensor) -> float:
    """The largest difference, as a share of the element, the tensor's root mean square and FLOOR."""
    if mine.shape != eagers.shape or mine.dtype != eagers.dtype:
        return float("inf")
    if mine.numel() == 0:
        return 0.0
    if mine.is_complex():
        mine, eagers = torch.view_as_real(mine.resolve_conj()), torch.view_as_real(eagers.resolve_conj())
    a, b = mine.detach().double(), eagers.detach().double()
    finite = b[b.isfinite()]
    scale = b.abs() + (finite.square().mean().sqrt() if finite.numel() else 0.0) + FLOOR
    difference = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs() / scale)
    return float(difference.nan_to_num(nan=float("inf")).max())


def check(function, inputs: list, compiled, module=None, twin=None, backward: bool = True, tolerance: float = 1e-5,
          twice: bool = False) -> None:  # fmt: skip
    """Raises Different unless compiled(*inputs) does as function(*inputs). What raises in eager is no case."""
    wanted = Outcome(function, clone_inputs(inputs), module, backward, twice)
    try:
        got = Outcome(compiled, clone_inputs(inputs), twin, backward, twice)
    except Exception as error:
        raise Different(f"raised {type(error).__name__}: {error}") from error
    compare(got, wanted, tolerance)


def check_module(module, inputs: list, compile, calls: int = 2, **options) -> None:
    """As check, for a module whose copy `compile` compiles; several calls, as buffers change."""
    twin = copy.deepcopy(module)
    compiled = compile(twin)
    for _ in range(calls):
        check(module, inputs, compiled, module, twin, **options)
