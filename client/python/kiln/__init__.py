"""Kiln: compiled kernels for torch programs, kept between processes.

    model = kiln.compile(model)                    # repeated blocks captured once, captures kept between processes
    model = torch.compile(model, backend="kiln")   # or as a backend of torch.compile
    kiln.stats()      # what was compiled, found and left to torch
    kiln.explain()    # why
    kiln.report(model)  # of one model: its share of nodes and of time in Kiln, and what keeps the rest in torch
    kiln.export(model, inputs, "model.kiln")  # a file that kiln.load, C and C++ run without torch, daemon or compiler
    kiln.profile()    # where compiled programs' time goes, in a process started with KILN_PROFILE=1
"""

from ._reasons import ExportError, MissingProgram
from ._report import report
from ._session import explain, profile, stats
from .exported import load

__all__ = ["Error", "ExportError", "MissingProgram", "compile", "explain", "export", "load", "profile", "report", "stats"]


def __getattr__(name):
    if name == "compile":  # imports torch, which `import kiln` alone does not
        from .regional import compile

        return compile
    if name == "export":  # so does this
        from .exporter import export

        return export
    if name == "Error":
        from ._kiln import Error

        return Error
    if name == "__version__":
        from ._kiln import version

        return version().split()[0]  # without its build's name
    raise AttributeError(name)
