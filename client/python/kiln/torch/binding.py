"""What the symbols of a subgraph's extents are when it is called: found in the tensors and sizes that it is given.

An extent is a polynomial over torch's symbols, and no tensor needs to have a symbol itself for one: 2*s0 rows say what s0 is,
s0 + s1 rows and s1 columns say both. Where nothing tells two symbols apart, and nothing that the graph needs does, as where all
that it has is s0 + s1, any two numbers of that sum mean the same program.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable, Sequence

import sympy
import torch

from .text import Dim, Unsupported

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

    def __init__(self, symbols: list[sympy.Symbol], dims: list[Dim], layouts: Sequence[tuple], sizes: list[Dim]) -> None:
        """dims: all that depends on the symbols. Raises Unsupported where layouts and sizes do not say what those are."""
        self.plain = (symbols, dims, sizes)
        self.symbols, self.sources, self._known = symbols, [], {}
        sources = sources_of(layouts, sizes)
        unknown = set(symbols)
        while unknown and (found := self._next(unknown, sources)):
            symbol, value, source = found
            self.sources.append(source)
            self._known = {s: sympy.expand(v.subs(symbol, value)) for s, v in self._known.items()} | {symbol: value}
            unknown.remove(symbol)
        for dim in dims:
            if not self.says(dim):
                raise Unsupported(f"no input says the extent {dim}")

    def _next(self, unknown: set, sources: Sequence[tuple[Dim, Source]]) -> tuple | None:
        """A symbol that a source says, given what is known: alone, or else by others; what it is; the source."""
        by_others = None
        for dim, source in sources:
            dim = self.of(dim)
            left = dim.free_symbols & unknown
            for symbol in sorted(left, key=str):
                factor = dim.diff(symbol)
                if factor.free_symbols & left:  # not linear
                    continue
                value = sympy.expand((given(len(self.sources)) - dim.subs(symbol, 0)) / factor)
                if len(left) == 1:
                    return symbol, value, source
                if factor == 1:
                    by_others = by_others or (symbol, value, source)
        return by_others

    def of(self, dim: Dim) -> sympy.Expr:
        """The dim by given numbers, and by symbols that nothing says."""
        return sympy.expand(sympy.sympify(dim).subs(self._known))

    def says(self, dim: Dim) -> bool:
        """Whether the given numbers say what the dim is."""
        return self.of(dim).free_symbols <= set(map(given, range(len(self.sources))))

    def read(self, arguments: list) -> tuple[int, ...]:
        """The numbers that a call gives: given(0), given(1), …"""
        return tuple(source.read(arguments) for source in self.sources)

    def values(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the symbols, 0 for one that nothing says. Raises ValueError where they are no integers."""
        fractions = self._values(*numbers)
        if any(divisor == 0 or dividend % divisor for dividend, divisor in fractions):
            raise ValueError(f"the symbols {self.symbols} have no values for {numbers}")
        return tuple(dividend // divisor for dividend, divisor in fractions)

    @functools.cached_property
    def _values(self) -> Callable:
        """From the numbers of a call to each symbol's (dividend, divisor)."""
        unknown = dict.fromkeys(self.symbols, 0)
        fractions = [sympy.fraction(sympy.together(self.of(symbol).subs(unknown))) for symbol in self.symbols]
        return function_of([given(i) for i in range(len(self.sources))], fractions)


class Layouts:
    """Layouts (dtype, shape, strides) whose dims depend on symbols, for any values of these."""

    def __init__(self, symbols: list[sympy.Symbol], layouts: Sequence[tuple]) -> None:
        self._dtypes = [dtype for dtype, _, _ in layouts]
        self._dims = function_of(symbols, [(tuple(shape), tuple(strides)) for _, shape, strides in layouts])

    def of(self, values: tuple[int, ...]) -> list[tuple]:
        return [(dtype, *dims) for dtype, dims in zip(self._dtypes, self._dims(*values))]


def function_of(symbols: Sequence[sympy.Symbol], result) -> Callable:
    """Of integers in the symbols' place: the result, lists and tuples whose leaves are polynomials, and the larger or smaller of some,
    with integer coefficients."""
    names = {symbol: sympy.Symbol(f"x{i}") for i, symbol in enumerate(symbols)}

    def written(part) -> str:
        if isinstance(part, (list, tuple)):
            return f"({''.join(written(each) + ',' for each in part)})"
        return str(sympy.sympify(part).subs(names, simultaneous=True))

    source = f"lambda {', '.join(map(str, names.values()))}: {written(result)}"
    return eval(source, {"Max": max, "Min": min})  # noqa: S307: of our own making


def given(number: int) -> sympy.Symbol:
    return sympy.Symbol(f"given{number}", integer=True)
