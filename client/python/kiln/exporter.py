"""kiln.export: a model as a file with its kernels, and its weights beside it; what `kiln export` starts.

    python -m kiln.exporter module:function -o FILE [--target A,B]

`function()` returns a module and its example inputs: a tuple of arguments, a dict of keywords, or a list of these. Stdout is one
JSON object: the files and what they hold.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import mmap
import os
import pathlib
import sys
import tempfile

import torch

from . import _session
from ._reasons import ExportError
from .exported import load
from .torch.recorded import Call, Recorder, inputs_by_name, layout, memory_of, named_tensors, record
from .torch.tensors import span_of

VERSION = 1
SUFFIX = ".kiln"


def export(model, example_inputs, path: str | os.PathLike, *, targets: tuple[str, ...] = (), deadline_ms: int = 0) -> None:
    """Writes the model's forward to `path`, as kiln.load and kiln_load read it, and its weights to a file beside it.

    example_inputs: a tuple of arguments or a dict of keywords; a list of these for inputs of several dtypes and shapes, each of
    which is a form with a program of its own. Weights are shared by all. targets: whose kernels the file has; without them, this
    host's. What was written is loaded and run before this returns, and has the same bits as the model here.
    Raises ExportError where the model is not one program, writes to anything, or draws; kiln.Error where programs cannot be had.
    """
    client = _session.session().client()
    if client is None or _session.disabled():
        raise ExportError("libkiln is not there, or KILN_DISABLE is on; see `kiln doctor`")
    path = pathlib.Path(path)
    examples = example_inputs if isinstance(example_inputs, list) else [example_inputs]
    weights, forms, recorder = Weights(), [], Recorder()
    run = torch.compile(model, backend=recorder, fullgraph=True, dynamic=False)
    for example in examples:
        arguments, keywords = _split(example)
        forms.append(Recorded(model, *record(run, recorder, arguments, keywords), arguments, keywords, weights))
    weights_path = path.with_name(path.name.removesuffix(SUFFIX) + ".weights")
    weights.write(weights_path)
    request = {"version": VERSION, "weights": weights_path.name, "targets": list(targets), "deadline_ms": deadline_ms,
               "forms": [form.request for form in forms]}  # fmt: skip
    try:
        client.export(path, json.dumps(request))
        _compare(path, forms)
    except BaseException:
        path.unlink(missing_ok=True)
        weights_path.unlink(missing_ok=True)
        raise


def _split(example) -> tuple[tuple, dict]:
    if isinstance(example, dict):
        return (), example
    if isinstance(example, tuple):
        return example, {}
    raise TypeError(f"example inputs are a {type(example).__name__}, expected a tuple, a dict, or a list of these")


class Weights:
    """Memory that programs read besides inputs, each piece once, in the order in which it is first met."""

    def __init__(self) -> None:
        self._pieces: dict[tuple, tuple[int, torch.Tensor]] = {}
        self._end = 0

    def place(self, tensor: torch.Tensor) -> int:
        """Where the tensor's elements, and the gaps between them, begin in the file: at a page."""
        key = tensor.data_ptr(), _bytes_of(tensor)
        if key not in self._pieces:
            self._pieces[key] = self._end, tensor.detach()
            self._end += -(-key[1] // mmap.PAGESIZE) * mmap.PAGESIZE
        return self._pieces[key][0]

    def write(self, path: pathlib.Path) -> None:
        """In place of what was there. Raises OSError."""
        file, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(file, "wb") as writer:
                for start, tensor in self._pieces.values():
                    writer.seek(start)
                    writer.write(_memory(tensor))
                writer.truncate(self._end)
            os.chmod(name, 0o644)
            os.rename(name, path)
        except BaseException:
            os.unlink(name)
            raise


def _bytes_of(tensor: torch.Tensor) -> int:
    return span_of(tensor.shape, tensor.stride()) * tensor.element_size()


def _memory(tensor: torch.Tensor) -> memoryview:
    span = tensor.detach().as_strided((span_of(tensor.shape, tensor.stride()),), (1,))
    return memoryview(span.view(torch.uint8).numpy())


class Recorded:
    """A form: what was recorded of the model's call, and the request that says it to libkiln."""

    def __init__(self, model, call: Call, result, arguments: tuple, keywords: dict, weights: Weights) -> None:
        self.inputs = inputs_by_name(model, arguments, keywords)
        self.outputs = named_tensors(result, "") if not isinstance(result, torch.Tensor) else [("output", result)]
        self._weights = weights
        self._input_numbers = self._by_memory([tensor for _, tensor in self.inputs])
        if len(self._input_numbers) < sum(tensor.numel() > 0 for _, tensor in self.inputs):
            raise ExportError("two of its example inputs share memory; give each memory of its own")
        self._held = {memory_of(tensor) for tensor in call.held}
        self._made = self._by_memory(call.results)
        self._results = call.results
        text, *_ = call.subgraph.state
        results = [self._place(tensor, name) for name, tensor in self.outputs]
        self.request = {
            "graph": text, "symbol_values": [],
            "inputs": [layout(name, tensor) for name, tensor in self.inputs],
            "outputs": [layout(name, tensor, self._strides(tensor, place)) for (name, tensor), place in zip(self.outputs, results)],
            "arguments": [self._place(tensor, "an argument of its program") for tensor in call.tensors],
            "results": [(*place, tensor.stride()) for (_, tensor), place in zip(self.outputs, results)],
        }  # fmt: skip

    @staticmethod
    def _by_memory(tensors: list[torch.Tensor]) -> dict[int, int]:
        return {memory_of(tensor): number for number, tensor in enumerate(tensors) if tensor.numel() > 0}

    def _place(self, tensor: torch.Tensor, what: str) -> tuple[str, int, int]:
        if tensor.numel() == 0:
            return "weights", 0, 0
        memory = memory_of(tensor)
        for origin, numbers, tensors in (("input", self._input_numbers, [tensor for _, tensor in self.inputs]),
                                         ("output", self._made, self._results)):  # fmt: skip
            if memory in numbers:
                number = numbers[memory]
                offset = tensor.data_ptr() - tensors[number].data_ptr()
                if not 0 <= offset <= _bytes_of(tensors[number]) - _bytes_of(tensor):
                    raise ExportError(f"{what} is memory beyond {origin} {number}")
                return origin, number, offset
        if memory not in self._held:
            raise ExportError(f"{what} is made in torch at each call")
        return "weights", 0, self._weights.place(tensor)


    def _strides(self, tensor: torch.Tensor, place: tuple[str, int, int]) -> tuple[int, ...]:
        """How the caller is given it: as the program makes it where it is all of an output, else dense."""
        origin, number, _ = place
        is_whole = origin == "output" and _bytes_of(tensor) == _bytes_of(self._results[number])
        return tensor.stride() if is_whole else torch.empty(tensor.shape, device="meta").stride()


def _compare(path: pathlib.Path, forms: list[Recorded]) -> None:
    """Runs what was written beside what was recorded. Raises ExportError."""
    exported = load(path)
    for form in forms:
        out = [torch.empty_strided(said["shape"], said["strides"], dtype=tensor.dtype)
               for said, (_, tensor) in zip(form.request["outputs"], form.outputs)]  # fmt: skip
        exported(*(tensor.detach() for _, tensor in form.inputs), out=out, num_threads=torch.get_num_threads())
        for (name, expected), got in zip(form.outputs, out):
            if not _has_same_bits(expected, got):
                raise ExportError(f"{name} has other bits when it is computed again: does the model draw random numbers?")


def _has_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def _load_model(source: str):
    module_name, function_name = source.split(":", 1)
    return getattr(importlib.import_module(module_name), function_name)()


def main() -> int:
    parser = argparse.ArgumentParser(prog="kiln.exporter", description=__doc__)
    parser.add_argument("source", help="module:function")
    parser.add_argument("-o", "--output", required=True, help="the file to write")
    parser.add_argument("--target", default="", help="targets, with commas between")
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # what the module prints is no answer
        model, examples = _load_model(options.source)
        if isinstance(model, torch.nn.Module):
            model.eval()
        try:
            export(model, examples, options.output, targets=tuple(filter(None, options.target.split(","))))
        except Exception as error:  # noqa: BLE001: people read it
            print(f"kiln: {options.source} is not exported: {error}", file=sys.stderr)
            return 1
    exported, path = load(options.output), pathlib.Path(options.output)
    weights = path.with_name(path.name.removesuffix(SUFFIX) + ".weights")
    json.dump({"file": str(path), "bytes": path.stat().st_size, "weights": str(weights), "weights_bytes": weights.stat().st_size,
               "target": exported.target, "forms": len(exported.forms)}, sys.stdout)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["export"]
