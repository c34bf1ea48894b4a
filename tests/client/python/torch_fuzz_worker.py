"""One process of torch_fuzz.py: runs programs and prints what they did. It writes a tally of them, as JSON, when it is done."""

from __future__ import annotations

import argparse
import collections
import copy
import gc
import json
import os
import pathlib
import sys
import time
import traceback
import warnings

os.environ.setdefault("KILN_CLIENT_CHECK", "never")
os.environ.setdefault("KILN_CLIENT_WAIT", "always")
os.environ.setdefault("KILN_DAEMON_START_TIMEOUT_MS", "20000")

import alike  # noqa: E402
import torch  # noqa: E402
import torch_programs  # noqa: E402

import kiln  # noqa: E402
from kiln import _session, regional  # noqa: E402
from kiln.torch import backend, check, compat  # noqa: E402

# By a program's dtype. Kernels keep f32 between ops of halves, which torch rounds one by one.
TOLERANCES = {"float32": 1e-4, "float64": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
PROGRAMS_PER_COLLECTION = 20
# Differences that eager itself has, for inputs, parameters and results of ops changed in their last places, times this are no
# failure.
SENSITIVITY, NEAR_RUNS = 20.0, 4
ENTRIES = {"torch.compile": lambda module: torch.compile(module, backend=backend), "kiln.compile": kiln.compile}


class NoProgram(Exception):
    """Eager does not run it either, or Dynamo does not, whatever the backend."""


class Program:
    """What a seed says: a source, the entries by which it runs, and how it is looked at."""

    def __init__(self, seed: int) -> None:
        self.seed, self.is_module = seed, seed % 8 == 3
        self.source = (torch_programs.module_source if self.is_module else torch_programs.function_source)(seed)
        self.entries = list(ENTRIES) if self.is_module else [list(ENTRIES)[seed % 2]]
        self.is_dynamic = not self.is_module and seed % 7 == 0
        self.differentiates_twice = seed % 5 == 0
        self.dtype = torch_programs.Draws(seed).dtype
        self.tolerance = TOLERANCES[self.dtype]
        # A wrong program shows in the result, unless the first run's check hides it; then the check's counter shows it.
        self.check = "first" if seed % 8 in (5, 6) else "never"

    def compiled(self, entry: str, scope: dict, module):
        if entry == "torch.compile" and not self.is_module:
            return torch.compile(scope["function"], backend=backend, dynamic=self.is_dynamic)
        return ENTRIES[entry](module)


class Runner:
    """Runs programs and counts them. Attributes: tally, by what was counted; findings, each with its seed and what was seen."""

    def __init__(self, again: bool, show: bool) -> None:
        self._again, self._show = again, show
        self.tally: collections.Counter = collections.Counter()
        self.findings: list[dict] = []

    def run(self, seed: int) -> None:
        torch._dynamo.reset()
        regional._captures.clear()
        torch.manual_seed(seed)
        try:
            program = Program(seed)
        except Exception:  # noqa: BLE001: no source, no program
            return self._skip("eager raises")
        _session.session().check = program.check
        for entry in program.entries:
            if not self._again or entry == "kiln.compile":  # only its captures outlive a process
                self._run_entry(program, entry)
        torch_programs.forget(program.source)
        if _session.session().causes:
            raise SystemExit(f"programs run in torch: {_session.session().causes}")

    def _run_entry(self, program: Program, entry: str) -> None:
        failed = kiln.stats()["checks_failed"]
        try:
            _run(program, entry)
            if kiln.stats()["checks_failed"] > failed:
                raise alike.Different("the check of a first run found a program wrong")
        except NoProgram as reason:
            return self._skip(str(reason))
        except alike.Different as difference:
            self.findings.append({"seed": program.seed, "entry": entry, "said": str(difference)[:300]})
            print(f"\n=== seed {program.seed}, {entry}: {difference}\n{program.source}\n===", flush=True)
        self.tally["programs"] += 1
        self.tally[f"programs, {entry}"] += 1
        self.tally["modules of repeated blocks"] += program.is_module
        self.tally["differentiated twice"] += program.differentiates_twice
        if program.dtype != "float32":
            self.tally[f"programs of {program.dtype}"] += 1
        self.tally["with the check of first runs"] += program.check == "first"

    def _skip(self, why: str) -> None:
        self.tally[f"skipped: {why}"] += 1
        if self._show:
            traceback.print_exc()


def _run(program: Program, entry: str) -> None:
    """Raises Different, or NoProgram."""
    scope = torch_programs.read(program.source)
    inputs = scope["inputs"]()
    torch.manual_seed(program.seed)
    eager, twin = scope["Model"](), scope["Model"]()
    twin.load_state_dict(eager.state_dict())
    try:
        compiled = program.compiled(entry, scope, twin)
    except Exception as error:
        raise alike.Different(f"{entry} raised {type(error).__name__}: {error}") from error
    for _ in range(2 if program.is_module else 1):
        before = copy.deepcopy(eager)
        twice, wanted = _eager_outcome(program, eager, inputs)
        try:
            got = alike.Outcome(compiled, alike.clone_inputs(inputs), twin, twice=twice)
        except Exception as error:
            if entry == "torch.compile" and _dynamo_raises(eager, inputs):
                raise NoProgram("Dynamo raises") from error
            raise alike.Different(f"raised {type(error).__name__}: {str(error)[:600]}") from error
        try:
            alike.compare(got, wanted, program.tolerance)
        except alike.Different as difference:
            if not isinstance(difference, alike.Inexact) or not is_sensitive(before, inputs, wanted, got, twice, program.tolerance):
                raise


def _dynamo_raises(module, inputs: list) -> bool:
    """Before it asks any backend: without one, too."""
    torch._dynamo.reset()
    try:
        torch.compile(module, backend="eager")(*alike.clone_inputs(inputs))
        return False
    except Exception:  # noqa: BLE001: whatever it is, no backend can help
        return True


def _eager_outcome(program: Program, module, inputs: list) -> tuple[bool, alike.Outcome]:
    """With gradients of gradients where eager has them."""
    before = copy.deepcopy(module.state_dict())
    for twice in (True, False) if program.differentiates_twice else (False,):
        try:
            return twice, alike.Outcome(module, alike.clone_inputs(inputs), module, twice=twice)
        except Exception as error:  # noqa: BLE001: whatever it is, eager says it
            raised = error
            module.load_state_dict(before)
    raise NoProgram("eager raises") from raised


def is_sensitive(module, inputs: list, wanted: alike.Outcome, got: alike.Outcome, twice: bool, tolerance: float) -> bool:
    """Whether each value lies about as far from eager's as eager's own do for inputs and roundings that hardly differ."""
    largest = [0.0] * len(wanted.values())
    for seed in range(NEAR_RUNS):
        torch.manual_seed(seed)
        # By turns, what shares memory goes on sharing it, as its equal values may be what results depend on, or not.
        near, twin = (alike.clone_inputs if seed % 2 else _unshared)(inputs), copy.deepcopy(module)
        _disturb([*near, *twin.parameters()])
        with compat.adapter().OpInterceptor(check.rounded_otherwise):
            other = alike.Outcome(twin, near, twin, twice=twice)
        for i, (a, b) in enumerate(zip(other.values(), wanted.values())):
            if a is not None and b is not None:
                largest[i] = max(largest[i], alike.error_of(a, b))
    return all(a is None or b is None or alike.error_of(a, b) <= max(tolerance, SENSITIVITY * error)
               for a, b, error in zip(got.values(), wanted.values(), largest))  # fmt: skip


def _unshared(inputs: list) -> list:
    return [t.detach().clone(memory_format=torch.contiguous_format).requires_grad_(t.requires_grad) for t in inputs]


def _disturb(tensors: list) -> None:
    """Changes floating tensors in their last places, elements that share memory alike."""
    with torch.no_grad():
        for tensor in {t.untyped_storage().data_ptr(): t for t in tensors if t.is_floating_point()}.values():
            memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            memory.mul_(1 + (torch.rand(memory.shape) - 0.5) * 3.4 * torch.finfo(tensor.dtype).eps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", required=True, help="first:beyond:step")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tally", type=pathlib.Path, required=True)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.freeze()
    gc.disable()  # tracing makes much, and looks for it all the time
    start, runner, done = time.monotonic(), Runner(options.again, options.show), []
    for seed in range(*map(int, options.seeds.split(":"))):
        if time.monotonic() - start >= options.seconds:
            break
        runner.run(seed)
        done.append(seed)
        if len(done) % PROGRAMS_PER_COLLECTION == 0:
            gc.collect()
    stats = kiln.stats()
    for name in ("nodes_compiled", "nodes_fallback", "checked", "captures_loaded"):
        runner.tally[name] = stats[name]
    state = {"tally": runner.tally, "findings": runner.findings, "seeds": done, "torch": torch.__version__}
    options.tally.write_text(json.dumps(state))


if __name__ == "__main__":
    sys.exit(main())
