"""The entry point of torch.compile."""

from __future__ import annotations

from torch import fx

from .. import _session
from .._reasons import Reason
from . import compat
from .again import Again
from .collector import collector_paused
from .compiler import compile_graph
from .graphs import CompiledGraph
from .joint import partition_joint
from .panels import freezing
from .partition import is_free
from .programs import in_mode, waiting_at_most
from .tally import current_owner, owned_by, tally_of
from .waiting import Situation
from .write_back import closing_copies

OPTIONS = ("deadline_ms", "freezing")

compat.adapter()  # before Dynamo traces anything for Kiln: it lets FlexAttention have gradients


def backend(gm: fx.GraphModule, example_inputs, *, mode=None, options=None):
    """Compiles a graph from Dynamo; for torch.compile(model, backend="kiln", options={…}).

    options: deadline_ms, how long one graph's compilation may be waited for; freezing, whether weights are packed once where no
    gradients are recorded (packed.py). mode: "max-autotune" waits until candidates for matrix products and attention have raced on
    this machine; others change nothing.
    Raises nothing of its own: what fails runs in torch. KILN_DISABLE=1 turns it off.
    """
    if _session.disabled():
        return gm.forward
    with owned_by(compat.adapter().compiled_callable()), collector_paused():
        return _compile(gm, example_inputs, mode, options)


def _compile(gm: fx.GraphModule, example_inputs, mode: str | None, options: dict | None):
    try:
        made, situation = [], Situation(gm)

        def compiler(graph, inputs):
            with in_mode(mode), freezing(is_freezing_in(options)), situation.at_work():  # here: a backward may be compiled later
                made.append(compile_or_eager(graph, inputs))
            return made[-1]

        with in_mode(mode), waiting_at_most(deadline_of(options)), situation.at_work():
            compiled = compat.adapter().compile_with_autograd(
                gm, example_inputs, forward=Again.of(gm).attached(compiler), compiler=compiler, partition=partition_joint
            )
        if made and not any(graph.has_subgraphs for graph in made if isinstance(graph, CompiledGraph)):
            return gm.forward  # nothing of it is Kiln's, and so nothing is in its way
        return situation.by_sizes(compiled)
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        if compat.adapter().is_control_flow(error):
            raise
        _note_eager("capture", error, gm.graph)
        return gm.forward


class Unfit(Exception):
    """The whole graph is torch's own, before AOTAutograd: what it makes of it is not what eager does."""


def _refuse_unfit(graph: fx.Graph) -> None:
    """An input of which elements share memory is written to piece by piece in eager, and as a whole by AOTAutograd, which torch
    refuses. A view of an input that is written to may come out as a view of something else."""
    for node in (*compat.adapter().written_inputs(graph), *(copy.args[0] for copy in closing_copies(graph))):
        tensor = node.meta["val"]
        if any(stride == 0 and extent != 1 for extent, stride in zip(tensor.shape, tensor.stride())):
            raise Unfit("it writes to an input of which elements share memory")
    if compat.adapter().has_misplaced_outputs():
        raise Unfit("an output is a view of an input that it writes to, and extents are not known")


def deadline_of(options: dict | None) -> int:
    """The option in whole milliseconds; 0, the configured one, without it. Says of others that they are not known."""
    for name in options or ():
        if name not in OPTIONS:
            _session.session().say("options", f"option '{name}' is not known, known are: {', '.join(OPTIONS)}")
    value = (options or {}).get("deadline_ms", 0)
    if isinstance(value, (int, float)) and 0 <= value < 2**32:
        return int(value)
    _session.session().say("deadline", f"option 'deadline_ms' is {value!r}, expected milliseconds; the configured one holds")
    return 0


def is_freezing_in(options: dict | None) -> bool:
    return bool((options or {}).get("freezing", False))


def compile_or_eager(gm: fx.GraphModule, example_inputs):
    """The compiler that AOTAutograd calls: the compiled graph, or the graph in torch. Raises Unfit."""
    _refuse_unfit(gm.graph)
    try:
        with collector_paused():
            return compile_graph(gm, example_inputs)
    except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
        _note_eager("compile", error, gm.graph)
        gm.recompile()  # what was rewritten so far means the same
        return _boxed(gm)


def _boxed(gm: fx.GraphModule):
    def run(arguments: list):
        inputs = tuple(arguments)
        arguments.clear()
        return gm.forward(*inputs)

    run._boxed_call = True
    return run


def _note_eager(stage: str, error: Exception, graph: fx.Graph) -> None:
    session = _session.session()
    ops = [str(n.target) for n in graph.nodes if n.op.startswith("call_") and not is_free(n)]
    tally_of(current_owner()).add(0, [(op, Reason.of(error).within(stage)) for op in ops], ())
    session.counts["graphs_eager"] += 1
    session.note_fallback("graph", f"{stage}: {type(error).__name__}: {error}")
    session.say(stage, f"a graph runs in torch: {type(error).__name__}: {error}")
