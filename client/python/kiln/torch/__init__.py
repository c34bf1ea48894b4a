"""Kiln as a backend of torch.compile: torch.compile(model, backend="kiln").

Graphs are captured by Dynamo and AOTAutograd without decompositions; what Kiln has ops for runs in its programs, all else
stays in torch, node by node. When anything of Kiln fails the graph runs in torch, and one line says so.
"""

from __future__ import annotations

from .compiler import compile_graph
from .entry import backend
from .graphs import CompiledGraph

__all__ = ["CompiledGraph", "backend", "compile_graph"]
