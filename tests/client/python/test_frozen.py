"""Weights that are packed once where no gradients are recorded: the same bits, every change seen, one copy for all processes."""

import gc
import pathlib
import subprocess
import sys

import pytest
import torch

import kiln
from kiln import _kiln, _session
from kiln.torch.panels import Panels, _step_of

LANES = _step_of(torch.float32)[0]
pytestmark = pytest.mark.skipif(not LANES or _kiln.version() == "double", reason="no kernel here reads panels")


def model_of(widths, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    layers = [layer for pair in zip(widths, widths[1:]) for layer in (torch.nn.Linear(*pair), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).to(dtype).eval()


def compiled(model, freezing=True):
    torch._dynamo.reset()
    return torch.compile(model, backend="kiln", options={"freezing": freezing})


def counted():
    return kiln.stats()["weights_packed"] + kiln.stats()["weights_mapped"]


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 64), (torch.float32, 77), (torch.bfloat16, 130)])
def test_packed_weights_give_the_same_bits(no_grad, dtype, rows):
    if not _step_of(dtype)[0]:
        pytest.skip("no kernel of this processor reads panels of this dtype")
    # Weights in several blocks, and one with odd columns, which stays as it is.
    model, x = model_of((192, 1536, 48, 37), dtype), torch.randn(rows, 192).to(dtype)
    before = counted()
    frozen = compiled(model)
    results = [frozen(x) for _ in range(3)]
    assert counted() - before == 2
    for result in (*results, compiled(model, freezing=False)(x)):
        assert torch.equal(result, results[0])


def test_every_change_that_torch_counts_is_seen(no_grad):
    model, x = model_of((128, 96)), torch.randn(64, 128)
    weight, frozen = model[0].weight, compiled(model)
    changes = {  # each met again before the next
        "in place": lambda: weight.mul_(2),
        "a slice": lambda: weight[3].zero_(),
        "a loaded state": lambda: model.load_state_dict(model_of((128, 96), seed=5).state_dict()),
        "other memory": lambda: setattr(weight, "data", torch.randn(96, 128)),
        "another parameter": lambda: setattr(model[0], "weight", torch.nn.Parameter(torch.randn(96, 128))),
    }
    for _ in range(3):
        frozen(x)
    for name, change in changes.items():
        before = counted()
        change()
        for _ in range(3):
            torch.testing.assert_close(frozen(x), model(x), msg=name)
        assert counted() == before + 1, name


def test_an_optimizers_step_between_calls_is_seen():
    model, x = model_of((128, 96)), torch.randn(64, 128)
    frozen, optimizer = compiled(model), torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(frozen(x), model(x))
        model(x).square().sum().backward()
        optimizer.step()


def test_parameters_are_packed_in_inference_mode_unless_they_were_made_there():
    x, before = torch.randn(64, 128), counted()
    with torch.inference_mode():
        made_here = model_of((128, 96))
    for model, packed in ((made_here, 0), (model_of((128, 96)), 1)):
        frozen = compiled(model)
        with torch.inference_mode():
            for factor in (1, 2):
                model[0].weight.mul_(factor)
                for _ in range(2):
                    torch.testing.assert_close(frozen(x), model(x))
        assert counted() - before == 2 * packed


def test_memory_that_another_weight_had_is_no_excuse(no_grad):
    model, x = model_of((128, 96)), torch.randn(64, 128)
    frozen = compiled(model)
    for seed in range(4):
        model[0].weight.data = torch.randn(96, 128, generator=torch.Generator().manual_seed(seed))
        for _ in range(2):
            torch.testing.assert_close(frozen(x), model(x))


def test_weights_are_not_held_when_nobody_else_holds_them(no_grad):
    from kiln.torch.packed import _known

    model = model_of((128, 96))
    frozen = compiled(model)
    for _ in range(3):
        frozen(torch.randn(64, 128))
    names = {id(parameter) for parameter in model.parameters()}
    assert names & set(_known)
    torch._dynamo.reset()
    del model, frozen
    gc.collect()
    assert not names & set(_known)


def test_without_the_option_or_with_gradients_nothing_is_packed():
    model, x, before = model_of((128, 96)), torch.randn(64, 128), counted()
    for _ in range(3):
        compiled(model)(x)
        with torch.no_grad():
            compiled(model, freezing=False)(x)
    assert counted() == before


PROCESS = """
import torch, kiln
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU()).eval()
x = torch.randn(64, 256)
model = kiln.compile(model, options={"freezing": True})
with torch.no_grad():
    results = [model(x) for _ in range(2)]
assert torch.equal(*results)
stats = kiln.stats()
print(stats["weights_packed"], stats["weights_mapped"], stats["nodes_fallback"], results[0].double().sum().item())
"""


def test_another_process_maps_what_was_packed_and_what_is_damaged_is_made_anew(no_grad):
    def run():
        """(packed, mapped, sum of the results), of parameters that nothing is known of."""
        model, before = model_of((256, 512)), kiln.stats()
        result, after = compiled(model)(torch.randn(64, 256)), kiln.stats()
        return *(after[name] - before[name] for name in ("weights_packed", "weights_mapped")), result.double().sum().item()

    folder = pathlib.Path(_session.session().cache_directory, "weights")
    known = set(folder.glob("*"))
    *counts, total = run()
    assert counts == [1, 0]
    done = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "0", str(total)]
    (file,) = set(folder.glob("*")) - known
    whole = file.read_bytes()
    for damaged in (whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:], b"x" + whole[1:], whole[:5000]):
        file.unlink()  # another may have it mapped
        file.write_bytes(damaged)
        assert run() == (1, 0, total)
        assert file.read_bytes() == whole
        assert run() == (0, 1, total)


def test_files_go_when_there_is_no_room_and_weights_beyond_it_are_not_kept(tmp_path, monkeypatch, no_grad):
    from kiln.torch import packed

    session = _session.session()
    monkeypatch.setitem(session.__dict__, "cache_directory", str(tmp_path))
    monkeypatch.setattr(packed, "MOST_BYTES", 2 * (packed.HEAD_BYTES + 256 * 64 * 4))
    panels = Panels(256, 64, 256, 16, 1, False)
    weights = [torch.randn(256, 64) for _ in range(3)]
    for weight in weights:
        assert torch.equal(panels.unpack(packed._shared(weight, panels)), weight)
    assert len(list((tmp_path / "weights").iterdir())) == 2
    large = torch.randn(256, 256)
    wide = Panels(256, 256, 256, 16, 1, False)
    assert torch.equal(wide.unpack(packed._shared(large, wide)), large)
    assert len(list((tmp_path / "weights").iterdir())) == 2
