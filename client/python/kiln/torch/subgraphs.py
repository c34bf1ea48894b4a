"""What runs a subgraph: its program (StaticSubgraph), one program for each binding of its symbols (SymbolicSubgraph), or torch
(EagerSubgraph), which stands in for programs that are not there yet (waiting.py). Each takes a list of tensors, and the sizes
that the subgraph is called with besides, gives a list of tensors, and has a plain form that a capture keeps. It may be told
tensors to write outputs to; where it does, the result is that very tensor."""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable

import torch
from torch import fx

from .. import _session
from .._reasons import Reason
from . import check, compat, programs, waiting
from .binding import Binding
from .fallback import fallback_graph
from .kept import NotKept, dump_names, load_names
from .many_sizes import ManySizes
from .packed import copy_of
from .panels import Panels
from .partition import Subgraph
from .place import Place
from .tally import instances
from .text import Unsupported


class StaticSubgraph:
    """A subgraph whose shapes are all known."""

    def __init__(self, text: str, inputs: list, outputs: list, place: Place, eager: Callable, symbols: tuple = (),
                 meetings: int | None = None, chance: waiting.Chance | None = None, is_checked: bool = True,
                 program=None) -> None:  # fmt: skip
        """meetings: as waiting.meetings(), which is asked where it is not given. chance: that of its graph, where it is of further
        sizes. is_checked: whether its first run is one that is checked. program: of a program for many sizes; None: one is to be
        asked for. Raises only where the program is waited for, or given."""
        self.eager, self.ops = eager, getattr(eager, "ops", ())
        self.state, self._symbols, self._program = (text, inputs, outputs, place), symbols, None
        self._differentiates_forward, self._is_checked = compat.adapter().differentiates_forward, is_checked
        self._is_of_many = program is not None
        if program is not None:
            return self.take(program)
        if meetings is None:
            meetings, chance = waiting.meetings(), waiting.chance()
        if meetings == 0:
            waiting.put_in_place(self, (*self.state, symbols), eager)
        else:
            self.run, self.check = waiting.Awaited(self, (*self.state, symbols), eager, meetings, chance), check.BUILDING

    def take(self, program) -> None:
        """Runs the program from now on. Raises check.Quarantined."""
        check.on_first_run(self, program, self.eager, check.Facts(*self.state, self._symbols), self._is_checked,
                           self._is_of_many)  # fmt: skip
        self._program = program
        _session.note_live(self)

    def programs(self):
        return [] if self._program is None else [self._program]

    def checks(self) -> list[str]:
        """What became of its programs' first runs, in check.py's words."""
        return [self.check]

    def __call__(self, tensors: list, targets: list | None = None) -> list:
        if self._differentiates_forward():  # a program would lose what goes along with the tensors
            return self.eager(tensors)
        try:
            return self.run(tensors) if targets is None else self.run(tensors, targets)
        except IndexError:
            # Inputs are untouched, so torch can run the subgraph again and raise its own error, in its own words.
            return self.eager(tensors)
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            _session.session().say("run", f"a subgraph ran in torch: {error}")
            return self.eager(tensors)

    def dump(self) -> tuple:
        return "static", _dump_state(self.state, self.eager)


class SymbolicSubgraph:
    """As StaticSubgraph, but its program is chosen by what it is called with: the extents and strides of tensors, and the sizes
    that come after them.

    Threading: any thread; two that meet new numbers at once both ask for their program, and either serves."""

    def __init__(self, text: str, inputs: list, outputs: list, place: Place, binding: Binding, eager: Callable) -> None:
        self._text, self._inputs, self._outputs, self._place, self._binding = text, inputs, outputs, place, binding
        self.eager, self.ops = eager, eager.ops
        self.state = (text, inputs, outputs, place, *binding.plain)
        self._programs: dict[tuple, Callable] = {}
        self._met, self._meetings = waiting.Meetings(), waiting.meetings()  # of the binding that is to be added next
        self._more_meetings, self._bindings = waiting.more_meetings(), 0
        self._chance, self._more_chance = waiting.chance(), waiting.chance_of_more()
        self._calls_of_a_step = instances()
        self._many = ManySizes(text, inputs, outputs, place, binding.symbols)
        self._of_many_checked: StaticSubgraph | None = None  # the last of its programs whose first run was to be checked

    def programs(self):
        return list(self._programs.values())

    def checks(self) -> list[str]:
        checks = [check for program in self.programs() if isinstance(program, StaticSubgraph) for check in program.checks()]
        return checks or ([check.BUILDING] if self._meetings else [])

    def __call__(self, arguments: list, targets: list | None = None) -> list:
        numbers = self._binding.read(arguments)
        program = self._programs.get(numbers)
        if program is None:
            program = self._of_many(numbers, arguments)
        if program is None:
            is_by_chance = self._met.is_by_chance(numbers, self._meetings, self._calls_of_a_step)
            chance = self._more_chance
            if self._many.is_building or chance.is_for_many or (is_by_chance and not chance.is_left):
                waiting.note_meanwhile()
                return chance.timed(self.eager, arguments)
            program = self._add(numbers, arguments)
        return program(arguments[: len(self._inputs)], targets)

    def _of_many(self, numbers: tuple, arguments: list) -> Callable | None:
        """The program for these numbers from one for many sizes; that is asked for where there is none."""
        if self._bindings == 0 and self._meetings == 0:  # it is waited for, and perhaps the only one
            return None
        if self._of_many_checked is not None and self._of_many_checked.check == check.WRONG:
            self._many.note_wrong()
        if not self._many.serves:
            self._more_chance.serves_many = False
            return None
        try:
            values = self._binding.values(numbers)
            program, is_new = self._many.program(values)
            if program is None:
                self._many.ask(values, waits=self._more_meetings == 0)
                program, is_new = self._many.program(values) if self._more_meetings == 0 else (None, False)
            if program is None:
                return None
            self._bindings += 1
            is_checked = is_new or check.is_due(self._bindings, values)
            made = StaticSubgraph(self._text, *self._many.layouts(values), self._place, self._eager_with(arguments), values,
                                  is_checked=is_checked, program=program)  # fmt: skip
            self._of_many_checked = made if is_checked else self._of_many_checked
        except Exception as error:  # noqa: BLE001: each size has a program of its own, then
            self._many.note_wrong()
            _session.session().note_fallback("a program for many sizes", str(error))
            return None
        return self._keep(numbers, made)

    def _eager_with(self, arguments: list) -> Callable:
        eager = functools.partial(_run_with_sizes, self.eager, arguments[len(self._inputs) :])
        eager.ops = self.ops
        return eager

    def _keep(self, numbers: tuple, program: Callable) -> Callable:
        while len(self._programs) >= waiting.MAX_BINDINGS:
            self._programs.pop(next(iter(self._programs)), None)
        self._programs[numbers] = program
        return program

    def _add(self, numbers: tuple, arguments: list) -> Callable:
        meetings, self._meetings, self._bindings = min(self._meetings, 1), self._more_meetings, self._bindings + 1
        chance, self._chance = self._chance, self._more_chance
        eager = self._eager_with(arguments)
        try:
            values = self._binding.values(numbers)
            program = StaticSubgraph(self._text, *self._many.layouts(values), self._place, eager, values, meetings, chance,
                                     check.is_due(self._bindings, values))  # fmt: skip
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            programs.insist(Reason.of(error))
            _session.session().note_fallback(f"a subgraph with {dict(zip(map(str, self._binding.sources), numbers))}", str(error))
            _session.session().say("binding", f"a subgraph of symbolic shape runs in torch: {error}")
            program = eager
        return self._keep(numbers, program)

    def dump(self) -> tuple:
        return "symbolic", _dump_state(self.state, self.eager)


def _run_with_sizes(eager: Callable, sizes: list, tensors: list, targets: list | None = None) -> list:
    return eager([*tensors, *sizes])


class FrozenSubgraph:
    """A subgraph of known shapes whose program reads weights packed, once for all calls (packed.py). Where a weight is not to be
    packed, as it changes all the time, another program reads all of them as they are; it is asked for only then."""

    def __init__(self, text: str, inputs: list, outputs: list, place: Place, eager: Callable, packed_text: str,
                 panels: dict[int, Panels]) -> None:  # fmt: skip
        """packed_text: the same for inputs of which those of these numbers are packed. Raises as StaticSubgraph does."""
        self.eager, self.ops, self.state = eager, eager.ops, (text, inputs, outputs, place)
        self._packed_text, self._panels, self._plain = packed_text, panels, None
        packed_inputs = [panels[i].layout(layout[0]) if i in panels else layout for i, layout in enumerate(inputs)]
        unpacking = functools.partial(_run_unpacked, eager, panels)
        unpacking.ops = eager.ops
        self._packed = StaticSubgraph(packed_text, packed_inputs, outputs, place, unpacking)

    def programs(self):
        return [program for subgraph in self._subgraphs() for program in subgraph.programs()]

    def checks(self) -> list[str]:
        return [check for subgraph in self._subgraphs() for check in subgraph.checks()]

    def _subgraphs(self) -> list:
        return [s for s in (self._packed, self._plain) if isinstance(s, StaticSubgraph)]

    def __call__(self, tensors: list, targets: list | None = None) -> list:
        given = list(tensors)
        for i, panels in self._panels.items():
            given[i] = copy_of(tensors[i], panels)
            if given[i] is None:
                return self._run_plain(tensors, targets)
        return self._packed(given, targets)

    def _run_plain(self, tensors: list, targets: list | None) -> list:
        if self._plain is None:
            try:
                self._plain = StaticSubgraph(*self.state, self.eager)
            except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
                _session.session().note_fallback("a subgraph", str(error))
                self._plain = self.eager
        return self._plain(tensors, targets)

    def dump(self) -> tuple:
        panels = {i: dataclasses.astuple(each) for i, each in self._panels.items()}
        return "frozen", (_dump_state(self.state, self.eager), self._packed_text, panels)


def _run_unpacked(eager: Callable, panels: dict, tensors: list, targets: list | None = None) -> list:
    return eager([panels[i].unpack(t) if i in panels else t for i, t in enumerate(tensors)])


class EagerSubgraph:
    """A subgraph's nodes run by torch: its fallback. Its graph is made at once, so that what has no fallback is known while
    graphs are split; source is generated when first wanted, and compiled when first run."""

    def __init__(self, graph: fx.Graph | None, subgraph: Subgraph | None, code: tuple | None = None) -> None:
        self._graph = None if graph is None else fallback_graph(graph, subgraph)
        self._code, self._function = code, None
        self.state: tuple | None = None  # of the StaticSubgraph it stands for, so that a later process tries again
        self.ops: tuple[str, ...] = ()  # of its nodes, views not counted
        self.reason = Reason("")  # why it runs in place of the program
        self.is_final = False  # whether that holds in all processes

    def checks(self) -> list[str]:
        return []

    def __call__(self, arguments: list, targets: list | None = None) -> list:
        if self._function is None:
            source, names = self.code()
            scope = dict(names)
            exec(compile(source, "<kiln eager>", "exec"), scope)  # noqa: S102: fx's own source
            self._function = functools.partial(scope["forward"], None)
        return list(self._function(*arguments))

    def code(self) -> tuple[str, dict]:
        """(source of forward(self, *arguments), its globals)."""
        if self._code is None:
            code = self._graph.python_code("self")
            self._code = code.src, dict(code.globals)
            self._graph = None
        return self._code

    def dump(self) -> tuple:
        if self.is_final:
            return "eager", (self.reason, _dump_eager(self))
        if self.state is not None:
            return "static", _dump_state(self.state, self)
        raise NotKept(f"a subgraph runs in torch: {self.reason}")


KINDS = (StaticSubgraph, SymbolicSubgraph, FrozenSubgraph, EagerSubgraph)


def load_subgraph(kind: str, state: tuple):
    """What has dumped itself as (kind, state), or a subgraph in torch where its program cannot be had."""
    load = {"static": _load_static, "symbolic": _load_symbolic, "frozen": _load_frozen, "eager": _load_final}
    return load[kind](*state)


def run_subgraph(subgraph, tensors: list, targets: list | None = None) -> list:
    """What generated source calls, by its name."""
    return subgraph(tensors, targets)


def _dump_state(state: tuple, eager: EagerSubgraph) -> tuple:
    text, inputs, outputs, place, *symbols = state
    return _dump_eager(eager), text, inputs, outputs, str(place.device), *symbols


def _load_static(eager: tuple, text: str, inputs: list, outputs: list, device: str):
    subgraph = _load_eager(*eager)
    subgraph.state = (text, inputs, outputs, Place(torch.device(device)))
    try:
        return StaticSubgraph(*subgraph.state, subgraph)
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        subgraph.reason = programs.insist(Reason.of(error))
        return subgraph


def _load_frozen(state: tuple, packed_text: str, panels: dict):
    eager, text, inputs, outputs, device = state
    try:
        known = {i: Panels(*fields) for i, fields in panels.items()}
        return FrozenSubgraph(text, inputs, outputs, Place(torch.device(device)), _load_eager(*eager), packed_text, known)
    except Exception:  # noqa: BLE001: perhaps it can be had of weights as they are
        return _load_static(*state)


def _load_symbolic(eager: tuple, text: str, inputs: list, outputs: list, device: str, symbols: list, dims: list,
                   sizes: list) -> SymbolicSubgraph:  # fmt: skip
    binding = Binding(symbols, dims, inputs, sizes)
    return SymbolicSubgraph(text, inputs, outputs, Place(torch.device(device)), binding, _load_eager(*eager))


def _load_final(reason: str, eager: tuple) -> EagerSubgraph:
    subgraph = _load_eager(*eager)
    subgraph.reason, subgraph.is_final = reason, True
    return subgraph


def _dump_eager(eager: EagerSubgraph) -> tuple:
    source, names = eager.code()
    return eager.ops, source, dump_names(names)


def _load_eager(ops: tuple, source: str, names: dict) -> EagerSubgraph:
    eager = EagerSubgraph(None, None, (source, load_names(names)))
    eager.ops = ops
    return eager


__all__ = ["KINDS", "EagerSubgraph", "FrozenSubgraph", "StaticSubgraph", "SymbolicSubgraph", "load_subgraph", "run_subgraph"]
