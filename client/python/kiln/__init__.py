"""Kiln: compiled kernels for torch programs, kept between processes.

    model = kiln.compile(model)                    # repeated blocks captured once, captures kept between processes
    model = torch.compile(model, backend="kiln")   # or as a backend of torch.compile
    kiln.stats()      # what was compiled, found and left to torch
    kiln.explain()    # why
"""

from ._session import explain, stats

__all__ = ["compile", "explain", "stats"]


def __getattr__(name):
    if name == "compile":  # imports torch, which `import kiln` alone does not
        from .regional import compile

        return compile
    raise AttributeError(name)
