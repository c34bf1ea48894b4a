"""Writes graphs in Kiln's text form (docs/text_form.md): the one place here that knows its syntax."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Sequence

import sympy
import torch

from . import compat

DTYPES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
FLOATING = frozenset(("f16", "bf16", "f32", "f64"))

# An extent, stride or attribute that may depend on symbols.
Dim = int | sympy.Expr


class Unsupported(Exception):
    """This node has no form in Kiln; it stays in torch. The message says why."""


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value. `root` is the value whose elements it shows: itself unless it is a view."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    root: str


def symbols_of(dim: Dim) -> set[sympy.Expr]:
    """What the dim is a polynomial of: torch's symbols, and quotients and remainders of dims, which to Kiln are symbols, too."""
    if isinstance(dim, int):
        return set()
    if dim.is_Symbol or type(dim) in compat.adapter().functions_of_sizes():
        return {dim}
    return set().union(*map(symbols_of, dim.args))


def expanded(expression: Dim) -> Dim:
    """One form of all that are equal as polynomials."""
    if isinstance(expression, int):
        return expression
    expression = sympy.expand(expression)
    return int(expression) if expression.is_Integer else expression


def plain_symbol(symbol: sympy.Expr) -> sympy.Symbol:
    """One of symbols_of() by a name."""
    if symbol.is_Symbol:
        return symbol
    name = "q" + hashlib.blake2b(str(symbol).encode(), digest_size=6).hexdigest()
    return sympy.Symbol(name, integer=True)


def as_polynomial(dim: Dim) -> sympy.Expr:
    """The dim with a plain symbol in the place of each of its quotients and remainders."""
    return sympy.sympify(dim).xreplace({s: plain_symbol(s) for s in symbols_of(dim)})


def dim_text(dim: Dim) -> str:
    """ "512", "s0*512", "2*s0*s1 - 3". Only polynomials with integer coefficients are dims."""
    if isinstance(dim, int):
        return str(dim)
    plain = as_polynomial(dim)
    polynomial = sympy.Poly(plain, *sorted(plain.free_symbols, key=str)) if plain.is_polynomial() else None
    if polynomial is None or not all(c.is_integer for c in polynomial.coeffs()):
        raise Unsupported(f"extent {dim} is no polynomial")
    terms = []
    for powers, coefficient in polynomial.terms():
        factors = [str(s) for s, power in zip(polynomial.gens, powers) for _ in range(power)]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        terms.append("*".join(factors))
    return " + ".join(terms).replace("+ -", "- ")


def dims_text(dims: Sequence[Dim], brackets: str = "[]") -> str:
    return brackets[0] + ", ".join(map(dim_text, dims)) + brackets[1]


def number_text(number: float) -> str:
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return repr(float(number))


def attribute_text(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, (int, sympy.Expr)):
        return dim_text(value)
    if isinstance(value, DTypeName):
        return value
    if isinstance(value, str):
        return f'"{value}"'
    return dims_text(value)


class DTypeName(str):
    """A dtype as an attribute: written without quotes."""


class TextWriter:
    """Collects inputs, nodes and outputs and prints them. Names are %0, %1, … in order of definition.

    Outputs are annotated with what torch says they are: libkiln refuses the graph where it finds something else."""

    def __init__(self) -> None:
        self._inputs: list[str] = []
        self._lines: list[tuple[list[str], str]] = []  # names of results, and the rest
        self._outputs: list[str] = []
        self._annotations: dict[str, str] = {}
        self._symbolic: set[sympy.Expr] = set()
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"%{self._count - 1}"

    def _note(self, values) -> None:
        """Values that may be dims, or sequences of them."""
        for value in values:
            if isinstance(value, (tuple, list)):
                self._note(value)
            elif isinstance(value, sympy.Expr):
                self._symbolic.add(value)

    def input(self, dtype: str, shape: Sequence[Dim], strides: Sequence[Dim]) -> Value:
        name = f"%in{len(self._inputs)}"
        self._note((*shape, *strides))
        layout = "" if is_dense(shape, strides) else dims_text(strides, "{}")
        self._inputs.append(f"{name}: {dtype}{dims_text(shape)}{layout}")
        return Value(name, dtype, tuple(shape), name)

    def node(self, op: str, operands: Sequence[Value | None], attributes: dict, results: int = 1) -> list[str]:
        """Adds a node; gives its results' names. None is an optional operand left out."""
        self._note(attributes.values())
        names = [self._name() for _ in range(results)]
        line = f"{op}({', '.join('none' if v is None else v.name for v in operands)})"
        if attributes:
            line += " {" + ", ".join(f"{k} = {attribute_text(v)}" for k, v in sorted(attributes.items())) + "}"
        self._lines.append((names, line))
        return names

    def output(self, value: Value, strides: Sequence[Dim]) -> None:
        self._note(strides)
        layout = "" if is_dense(value.shape, strides) else " " + dims_text(strides, "{}")
        self._outputs.append(value.name + layout)
        self._annotations[value.name] = f"{value.name}: {value.dtype}{dims_text(value.shape)}"

    def ops(self) -> set[str]:
        """Names of the ops of its nodes."""
        return {line.split("(", 1)[0] for _, line in self._lines}

    @property
    def symbolic_dims(self) -> list[sympy.Expr]:
        """All that depends on symbols."""
        return sorted(self._symbolic, key=str)

    @property
    def symbols(self) -> list[sympy.Expr]:
        """The graph's symbols in the order in which their values are bound."""
        return sorted(set().union(*map(symbols_of, self._symbolic)), key=str)

    def text(self) -> str:
        names = [str(plain_symbol(s)) for s in self.symbols]
        symbols = f" symbols({', '.join(names)})" if names else ""
        lines = (f"{', '.join(self._annotations.get(n, n) for n in names)} = {line}" for names, line in self._lines)
        body = "".join(f"  {line}\n" for line in lines)
        return f"graph({', '.join(self._inputs)}){symbols} {{\n{body}  return {', '.join(self._outputs)}\n}}\n"


def is_dense(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    """Whether strides are those of row-major order; strides of extents below 2 do not matter."""
    expected: Dim = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected = expanded(expected * extent)
    return True
