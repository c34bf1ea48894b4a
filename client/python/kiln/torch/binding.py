"""What the symbols of a subgraph's extents are when it is called: found in the tensors and sizes that it is given.

An extent is a polynomial over torch's symbols, and no tensor needs to have a symbol itself for one: 2*s0 rows say what s0 is,
s0 + s1 rows and s1 columns say both. Where nothing tells two symbols apart, and nothing that the graph needs does, as where all
that it has is s0 + s1, any two numbers of that sum mean the same program. A quotient or a remainder of extents, as 16*(s0//16)
has one, is a symbol of its own (text.symbols_of): s0 says what it is, or a tensor that shows it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable, Sequence

import sympy
import torch

from . import compat
from .text import Dim, Unsupported, as_polynomial, plain_symbol, symbols_of

_READERS = {"extent": torch.Tensor.size, "stride": torch.Tensor.stride, "size": lambda size, _: int(size)}


@dataclass(frozen=True)
class Source:
    """A number that a call gives: an extent or a stride of an argument, or an argument that is a size."""

    argument: int
    kind: str  # of _READERS
    dim: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.dim} of argument {self.argument}" if self.kind != "size" else f"argument {self.argument}"

    def read(self, arguments: list) -> int:
        return _READERS[self.kind](arguments[self.argument], self.dim)


def sources_of(layouts: Sequence[tuple], sizes: Sequence[Dim]) -> list[tuple[Dim, Source]]:
    """What each number is that a call gives. Arguments are tensors of these layouts (dtype, shape, strides), then the sizes."""
    sources = []
    for kind, place in (("extent", 1), ("stride", 2)):
        sources += [(dim, Source(i, kind, d)) for i, layout in enumerate(layouts) for d, dim in enumerate(layout[place])]
    return sources + [(dim, Source(len(layouts) + i, "size")) for i, dim in enumerate(sizes)]


class Binding:
    """From the numbers of a call to those of the symbols.

    Attributes: plain, what it is made of again, with the layouts."""

    def __init__(self, symbols: list[sympy.Expr], dims: list[Dim], layouts: Sequence[tuple], sizes: list[Dim]) -> None:
        """dims: all that depends on the symbols. Raises Unsupported where layouts and sizes do not say what those are."""
        self.plain = (symbols, dims, sizes)
        self.symbols, self.sources, self._known, self._shown = symbols, [], {}, []
        sources = sources_of(layouts, sizes)
        meanings = meanings_of([*symbols, *(dim for dim, _ in sources)])
        unknown = {*map(plain_symbol, symbols), *meanings}.union(*(meaning.free_symbols for meaning in meanings.values()))
        while unknown and (found := self._said_by_known(unknown, meanings) or self._next(unknown, sources)):
            symbol, value = found
            self._known = {s: sympy.expand(v.subs(symbol, value)) for s, v in self._known.items()} | {symbol: value}
            unknown.remove(symbol)
        for dim in dims:
            if not self.says(dim):
                raise Unsupported(f"no input says the extent {dim}")

    def _said_by_known(self, unknown: set, meanings: dict) -> tuple | None:
        """A quotient or remainder of what is known, and what it is."""
        values = ((symbol, self._by_known(meaning)) for symbol, meaning in meanings.items() if symbol in unknown)
        return next((found for found in values if self._is_known(found[1])), None)

    def _next(self, unknown: set, sources: Sequence[tuple[Dim, Source]]) -> tuple | None:
        """A symbol that a source says, which is noted, given what is known: alone, or else by others; what it is."""
        by_others = None
        for of_source in sources:
            dim = self.of(of_source[0])
            left = dim.free_symbols & unknown
            for symbol in sorted(left, key=str):
                factor = dim.diff(symbol)
                if factor.free_symbols & left:  # not linear
                    continue
                rest = sympy.expand(given(len(self.sources)) - dim.subs(symbol, 0))
                if len(left) == 1:
                    return self._noted(of_source, symbol, rest if factor == 1 else compat.adapter().floor_quotient(rest, factor))
                if factor == 1:
                    by_others = by_others or (of_source, symbol, rest)
        return by_others and self._noted(*by_others)

    def _noted(self, of_source: tuple[Dim, Source], symbol: sympy.Symbol, value: sympy.Expr) -> tuple:
        self._shown.append(of_source[0])
        self.sources.append(of_source[1])
        return symbol, value

    def of(self, dim: Dim) -> sympy.Expr:
        """The dim by given numbers, and by symbols that nothing says."""
        return self._by_known(as_polynomial(dim))

    def _by_known(self, plain: sympy.Expr) -> sympy.Expr:
        return sympy.expand(plain.subs(self._known))

    def says(self, dim: Dim) -> bool:
        """Whether the given numbers say what the dim is."""
        return self._is_known(self.of(dim))

    def _is_known(self, value: sympy.Expr) -> bool:
        return value.free_symbols <= set(map(given, range(len(self.sources))))

    def read(self, arguments: list) -> tuple[int, ...]:
        """The numbers that a call gives: given(0), given(1), …"""
        return tuple(source.read(arguments) for source in self.sources)

    def values(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the symbols, 0 for one that nothing says. Raises ValueError where there are none for these numbers."""
        try:
            values, shown = self._values(*numbers)
        except ZeroDivisionError:
            shown = None
        if shown != numbers:
            raise ValueError(f"the symbols {self.symbols} have no values for {numbers}")
        return values

    @functools.cached_property
    def _values(self) -> Callable:
        """From the numbers of a call to those of the symbols, and to what the sources then show: the same numbers."""
        numbers = [given(i) for i in range(len(self.sources))]
        values = [[self.of(dim) for dim in dims] for dims in (self.symbols, self._shown)]
        unknown = set().union(*(value.free_symbols for of_dims in values for value in of_dims)) - set(numbers)
        return function_of(numbers, [[value.subs(dict.fromkeys(unknown, 0)) for value in of_dims] for of_dims in values])


def meanings_of(dims: Sequence[Dim]) -> dict[sympy.Symbol, sympy.Expr]:
    """Of each quotient and remainder in the dims, and in what these are of: its plain symbol, and what it is of plain symbols."""
    meanings, stack = {}, list(dims)
    while stack:
        for symbol in symbols_of(stack.pop()):
            if not symbol.is_Symbol and plain_symbol(symbol) not in meanings:
                meanings[plain_symbol(symbol)] = symbol.func(*map(as_polynomial, symbol.args))
                stack.extend(symbol.args)
    return meanings


class Layouts:
    """Layouts (dtype, shape, strides) whose dims depend on symbols, for any values of these."""

    def __init__(self, symbols: list[sympy.Symbol], layouts: Sequence[tuple]) -> None:
        self._dtypes = [dtype for dtype, _, _ in layouts]
        self._dims = function_of(symbols, [(tuple(shape), tuple(strides)) for _, shape, strides in layouts])

    def of(self, values: tuple[int, ...]) -> list[tuple]:
        return [(dtype, *dims) for dtype, dims in zip(self._dtypes, self._dims(*values))]


def function_of(symbols: Sequence[sympy.Symbol], result) -> Callable:
    """Of integers in the symbols' place: the result, lists and tuples whose leaves are polynomials with integer coefficients of these,
    and of quotients, remainders, the larger or smaller of some, and rounded numbers."""
    names = {symbol: sympy.Symbol(f"x{i}", integer=True) for i, symbol in enumerate(symbols)}

    def written(part) -> str:
        if isinstance(part, (list, tuple)):
            return f"({''.join(written(each) + ',' for each in part)})"
        return str(sympy.sympify(part).xreplace(names))

    source = f"lambda {', '.join(map(str, names.values()))}: {written(result)}"
    meanings = {kind.__name__: meaning for kind, meaning in functions().items()} | {"Max": max, "Min": min}  # of more than two
    return eval(source, meanings)  # noqa: S307: of our own making


def functions() -> dict:
    """What torch computes by of sizes: what does the same with numbers."""
    adapter = compat.adapter()
    return {**adapter.functions_of_sizes(), **adapter.functions_of_numbers()}


def given(number: int) -> sympy.Symbol:
    return sympy.Symbol(f"given{number}", integer=True)
