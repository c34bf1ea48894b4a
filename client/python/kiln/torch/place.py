"""Where a graph's tensors live, as torch, Kiln and DLPack name it."""

from __future__ import annotations

import collections
import functools
from dataclasses import dataclass

import torch
from torch import fx

from .._reasons import Reason
from . import compat
from .tensors import tensors_in

# Kiln's names of torch's devices, where they differ: a client without a device is of the host.
NAMES = {"cpu": ""}


@dataclass(frozen=True)
class Place:
    """One device of torch: what is elsewhere stays with torch."""

    device: torch.device

    @property
    def name(self) -> str:
        """As kiln_client_options.device has it."""
        kind = self.device.type
        return NAMES[kind] if kind in NAMES else f"{kind}:{self.device.index or 0}"

    @property
    def memory(self) -> tuple[int, int] | None:
        """DLPack's (device type, number); None is the host's."""
        return _dlpack_device(self.device) if self.name else None

    def why_not(self, tensor: torch.Tensor) -> Reason | None:
        """Why a program here cannot have the tensor; None if it can."""
        if tensor.device != self.device:
            why = f"device {tensor.device} in a graph of {self.device}"
            return Reason(why, advice="have all tensors of the model on one device")
        return None


@functools.cache
def _dlpack_device(device: torch.device) -> tuple[int, int]:
    with compat.adapter().real_mode():
        kind, number = torch.empty(0, device=device).__dlpack_device__()
    return int(kind), int(number)


def place_of(graph: fx.Graph) -> Place:
    """The device that most of the graph's tensors are on; numbers may lie on the host beside."""
    tensors = [t for node in graph.nodes for t in tensors_in(node.meta.get("val"))]
    count = collections.Counter(t.device for t in tensors if t.device.type != "cpu" or t.dim() > 0)
    return Place(count.most_common(1)[0][0] if count else torch.device("cpu"))
