"""Kiln: compiled kernels for torch programs, kept between processes.

    model = kiln.compile(model)                    # repeated blocks captured once, captures kept between processes
    model = torch.compile(model, backend="kiln")   # or as a backend of torch.compile
    kiln.stats()      # what was compiled, found and left to torch
    kiln.explain()    # why
    kiln.report(model)  # of one model: its share of nodes and of time in Kiln, and what keeps the rest in torch
    kiln.profile()    # where compiled programs' time goes, in a process started with KILN_PROFILE=1
"""

from ._reasons import MissingProgram
from ._report import report
from ._session import explain, profile, stats

__all__ = ["MissingProgram", "compile", "explain", "profile", "report", "stats"]


def __getattr__(name):
    if name == "compile":  # imports torch, which `import kiln` alone does not
        from .regional import compile

        return compile
    if name == "__version__":
        from ._kiln import version

        return version().split()[0]  # without its build's name
    raise AttributeError(name)
