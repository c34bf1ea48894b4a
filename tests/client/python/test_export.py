"""kiln.export and kiln.load: what is written has the model's bits, in a process without torch; what is not one program is an error
that says why, and nothing is written."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import exported_models
import numpy
import pytest
import torch

import kiln

HERE = pathlib.Path(__file__).parent


def bits(tensor):
    return hashlib.sha256(bytes(tensor.detach().contiguous().view(torch.uint8).numpy())).hexdigest()


def export(tmp_path, model, inputs, **options):
    path = tmp_path / "model.kiln"
    kiln.export(model, inputs, path, **options)
    return path


def in_kiln(model, *arguments, **keywords):
    with torch.no_grad():
        return torch.compile(model, backend="kiln", dynamic=False)(*arguments, **keywords)


def run_without_torch(path, inputs, how="arrays"):
    """What exported_process.py says."""
    arrays = path.parent / "inputs.npz"
    numpy.savez(arrays, **{name: tensor.numpy() for name, tensor in inputs.items()})
    for name, tensor in inputs.items():
        path.parent.joinpath(f"inputs.npz.{name}").write_bytes(tensor.numpy().tobytes())
    process = subprocess.run([sys.executable, HERE / "exported_process.py", path, arrays, how], capture_output=True, text=True,
                             check=False)  # fmt: skip
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


class Classifier(torch.nn.Module):
    """Integers in, several outputs, weights that are tied and a buffer."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(60, 32)
        self.mix = torch.nn.Linear(32, 32)
        self.register_buffer("scale", torch.linspace(0.5, 2, 32))

    def forward(self, ids, mask=None, *, factor=2.0):
        hidden = torch.nn.functional.gelu(self.mix(self.table(ids) * self.scale)) * factor
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)
        scores = hidden @ self.table.weight.t()
        return {"scores": scores, "last": scores[:, -1], "hidden": (hidden.transpose(1, 2), None)}


@pytest.fixture
def classifier():
    ids, mask = torch.randint(0, 60, (2, 7)), (torch.rand(2, 7) > 0.3).float()
    return Classifier().eval(), {"ids": ids, "mask": mask}


@pytest.mark.parametrize("how", ["arrays", "buffers"])
def test_a_process_without_torch_has_the_same_bits(tmp_path, how):
    model, (x,) = exported_models.mlp()
    path = export(tmp_path, model, (x,))
    said = run_without_torch(path, {"input": x}, how)
    assert said == {"results": [bits(in_kiln(model, x))], "shapes": [[5, 8]], "imported": []}


def test_outputs_are_views_and_names_are_paths(tmp_path, classifier):
    model, inputs = classifier
    path = export(tmp_path, model, inputs)
    expected, exported = in_kiln(model, **inputs), kiln.load(path)
    assert [t.name for t in exported.forms[0].inputs] == ["ids", "mask"]
    assert [(t.name, t.shape) for t in exported.forms[0].outputs] == [("scores", (2, 7, 60)), ("last", (2, 60)), ("hidden.0", (2, 32, 7))]
    assert exported.forms[0].outputs[1].is_dense, "it is a view of scores"
    arrays = [inputs["ids"].numpy(), inputs["mask"].numpy()]
    for got in (exported(*arrays), exported(mask=arrays[1], ids=arrays[0]), exported(arrays[0], mask=arrays[1], num_threads=1)):
        for array, tensor in zip(got, (expected["scores"], expected["last"], expected["hidden"][0])):
            assert numpy.array_equal(array, tensor.numpy())
    weights = sum(p.numel() * 4 for p in (*model.parameters(), *model.buffers()))
    assert weights <= (tmp_path / "model.weights").stat().st_size <= weights + 4 * 4096, "tied weights are there once"


def test_tensors_come_and_go_by_dlpack(tmp_path, classifier):
    model, inputs = classifier
    exported, expected = kiln.load(export(tmp_path, model, inputs)), in_kiln(model, **inputs)
    out = [torch.empty_strided(tensor.shape, tensor.strides) for tensor in exported.forms[0].outputs]
    outputs = exported(*inputs.values(), out=out)
    assert all(a is b for a, b in zip(outputs, out))
    for got, wanted in zip(out, (expected["scores"], expected["last"], expected["hidden"][0])):
        assert torch.equal(got, wanted)


def test_inputs_in_other_strides_are_copied(tmp_path):
    model, (x,) = exported_models.mlp()
    exported = kiln.load(export(tmp_path, model, (x,)))
    (expected,) = exported(x.numpy())
    assert numpy.array_equal(exported(numpy.asfortranarray(x.numpy()))[0], expected)
    assert numpy.array_equal(exported(x.t().contiguous().t())[0], expected)
    wide = numpy.zeros((10, 96), numpy.float32)
    wide[::2, ::2] = x.numpy()
    assert numpy.array_equal(exported(wide[::2, ::2])[0], expected)


def test_sizes_are_forms_that_share_weights(tmp_path):
    model, (x,) = exported_models.mlp()
    examples = [(x,), (x[:2].clone(),), (torch.randn(9, 48),)]
    exported = kiln.load(export(tmp_path, model, examples))
    assert [form.inputs[0].shape for form in exported.forms] == [(5, 48), (2, 48), (9, 48)]
    for (each,) in examples:
        assert numpy.array_equal(exported(each.numpy())[0], in_kiln(model, each).numpy())
    assert (tmp_path / "model.weights").stat().st_size < 2 * sum(p.numel() * 4 for p in model.parameters())


def test_bfloat16_is_its_bits(tmp_path):
    model, (x,) = exported_models.mlp()
    model, x = model.bfloat16(), x.bfloat16()
    exported = kiln.load(export(tmp_path, model, (x,)))
    (got,) = exported(x.view(torch.uint16).numpy())
    assert got.dtype == numpy.uint16
    assert numpy.array_equal(got, in_kiln(model, x).view(torch.uint16).numpy())


def test_a_function_and_its_constants(tmp_path):
    shift = torch.arange(6.0)

    def function(x, y):
        return x @ y + shift, x

    x, y = torch.randn(4, 5), torch.randn(5, 6)
    exported = kiln.load(export(tmp_path, function, (x, y)))
    product, same = exported(x.numpy(), y.numpy())
    assert numpy.array_equal(product, in_kiln(function, x, y)[0].numpy()) and numpy.array_equal(same, x.numpy())


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([numpy.zeros((5, 47), numpy.float32)], "kiln", r"takes \(input: f32\[5, 48\]\), got \(f32\[5, 47\]\)"),
        ([numpy.zeros((5, 48), numpy.float64)], "kiln", r"got \(f64\[5, 48\]\)"),
        ([numpy.zeros((5, 48), numpy.complex64)], TypeError, "no dtype for elements of format"),
        ([numpy.zeros((5, 48), ">f4")], TypeError, "no dtype for elements of format"),
        ([[1.0]], TypeError, "a list has neither"),
        ([], TypeError, "the export takes input"),
        ([numpy.zeros((5, 48), numpy.float32)] * 2, TypeError, "got 2 inputs"),
    ],
)
def test_inputs_are_guarded(tmp_path, given, error, words):
    model, inputs = exported_models.mlp()
    exported = kiln.load(export(tmp_path, model, inputs))
    with pytest.raises(kiln.Error if error == "kiln" else error, match=words) as caught:
        exported(*given)
    if error == "kiln":
        assert caught.value.code_name == "invalid_argument"


def test_outputs_are_guarded(tmp_path):
    model, (x,) = exported_models.mlp()
    exported = kiln.load(export(tmp_path, model, (x,)))
    for out, words in (([numpy.zeros((5, 9), numpy.float32)], "output 0: expected"), ([], "expected 1 outputs"), ([b"0"], "cannot be written")):
        with pytest.raises((TypeError, BufferError), match=words):
            exported(x.numpy(), out=out)


def test_an_index_out_of_range_is_an_index_error(tmp_path, classifier):
    model, inputs = classifier
    exported = kiln.load(export(tmp_path, model, inputs))
    with pytest.raises(IndexError):
        exported(inputs["ids"].numpy() + 60, inputs["mask"].numpy())


class Writes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


def writes_to_its_input(x):
    x.mul_(2)
    return x + 1


def draws(x):
    return torch.nn.functional.dropout(x, 0.5, training=True) * 2


def in_torch(x):
    return torch.linalg.eigvalsh(x @ x.t()) + 1


def gives_an_object(x):
    return torch.relu(x) * 2, slice(0, 1)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (exported_models.breaks()[0], "one graph"),
        (Writes(), "writes to"),
        (writes_to_its_input, "writes to"),
        (draws, "random|made in torch|run in torch"),
        (in_torch, "run in torch"),
        (gives_an_object, "is a slice"),
    ],
)
def test_what_is_not_one_program_is_not_exported(tmp_path, model, words):
    with pytest.raises(kiln.ExportError, match=words):
        kiln.export(model, (torch.ones(4, 4),), tmp_path / "model.kiln")
    assert list(tmp_path.iterdir()) == []


def test_inputs_that_share_memory_are_refused(tmp_path):
    x = torch.randn(4, 4)
    with pytest.raises(kiln.ExportError, match="share memory"):
        kiln.export(lambda a, b: a @ b + 1, (x, x.t()), tmp_path / "model.kiln")


def test_targets_by_name(tmp_path):
    model, inputs = exported_models.mlp()
    here = kiln.load(export(tmp_path, model, inputs)).target
    assert kiln.load(export(tmp_path, model, inputs, targets=(here,))).target == here
    for target, code in (("nobody", "invalid_argument"), ("sm_90a", "failed_precondition")):
        with pytest.raises(kiln.Error) as caught:
            export(tmp_path, model, inputs, targets=(target,))
        assert caught.value.code_name == code
        assert list(tmp_path.iterdir()) == []


def test_cut_files_are_not_loaded(tmp_path):
    model, inputs = exported_models.mlp()
    path = export(tmp_path, model, inputs)
    for name in ("model.kiln", "model.weights"):
        whole = (tmp_path / name).read_bytes()
        for size in (0, 1, 100, 4096, len(whole) // 2, len(whole) - 1):
            (tmp_path / name).write_bytes(whole[:size])
            with pytest.raises(kiln.Error) as caught:
                kiln.load(path)
            assert caught.value.code_name == "data_loss"
        (tmp_path / name).write_bytes(whole)
    assert kiln.load(path).forms
    (tmp_path / "model.weights").unlink()
    with pytest.raises(kiln.Error) as caught:
        kiln.load(path)
    assert caught.value.code_name == "not_found"


def test_it_is_moved_as_a_folder(tmp_path):
    model, (x,) = exported_models.mlp()
    export(tmp_path, model, (x,))
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("model.kiln", "model.weights"):
        shutil.move(tmp_path / name, moved / name)
    assert numpy.array_equal(kiln.load(moved / "model.kiln")(x.numpy())[0], in_kiln(model, x).numpy())


def run_cli(*arguments):
    return subprocess.run(["kiln", *map(str, arguments)], capture_output=True, text=True, check=False, cwd=HERE,
                          env={**os.environ, "KILN_PYTHON_PATH": sys.executable})  # fmt: skip


@pytest.mark.skipif(shutil.which("kiln") is None, reason="the program kiln is not on the path")
def test_the_command(tmp_path):
    path = tmp_path / "mlp.kiln"
    said = run_cli("export", "exported_models:mlp", "-o", path, "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["export"]["forms"] == 1
    model, (x,) = exported_models.mlp()
    assert numpy.array_equal(kiln.load(path)(x.numpy())[0], in_kiln(model, x).numpy())
    said = run_cli("export", "exported_models:breaks", "-o", tmp_path / "no.kiln")
    assert said.returncode == 1 and "one graph" in said.stderr
    assert run_cli("export", "exported_models", "-o", path).returncode == 2
    assert not (tmp_path / "no.kiln").exists()
