"""Kiln: compiled kernels for torch programs, kept between processes.

    model = torch.compile(model, backend="kiln")
    kiln.stats()      # what was compiled, found and left to torch
    kiln.explain()    # why
"""

from ._session import explain, stats

__all__ = ["explain", "stats"]
