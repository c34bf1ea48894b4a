"""Graphs whose extents are symbols: further sizes are right, and cost no code generation where kernels take sizes from launches."""

import threading

import conftest
import processes
import pytest
import torch
from torch.nn import functional as F

import kiln
from kiln import _session
from kiln.torch import programs, waiting

HEADS, DEPTH = 3, 16


def grow(keys, values, key, value, query):
    keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
    return keys, values, F.scaled_dot_product_attention(query, keys, values)


def cache_of(length):
    rows = [torch.randn(2, HEADS, n, DEPTH) for n in (length, length, 1, 1, 1)]
    return tuple(rows)


def rows(x, weight, bias):
    normed = F.layer_norm(x, x.shape[-1:], weight, bias)
    return F.gelu(normed) + x, normed.transpose(1, 2).contiguous(), x.flatten(0, 1).softmax(-1)


def rows_of(length, batch=3, width=40):
    return torch.randn(batch, length, width), torch.randn(width), torch.randn(width)


def padded(x, y):
    joined = torch.cat([x, y, x[:, 1:]], 1)
    return F.pad(joined, (0, 0, 2, 3)), joined.flip(1), torch.stack([x, x * 2], 2)


def padded_of(length):
    return torch.randn(2, length, 5), torch.randn(2, 4, 5)


def products(x, weight, bias):
    hidden, tokens = F.gelu(F.linear(x, weight, bias)), x.flatten(0, 1) / 24
    return hidden @ weight + x, hidden.flatten(0, 1).t() @ tokens, torch.matmul(x, x.transpose(1, 2))


def products_of(length):
    return torch.randn(3, length, 40), torch.randn(72, 40) / 8, torch.randn(72)


def sliced(x, y):
    """The same without its ends, and what is written into the middle."""
    x = torch.slice_scatter(x, y, 1, 1, -1)
    return x[:, 1:] * 2, x[:, :-2] + 1, x[:, -3:].exp(), x[:, -1] - x[:, 0], x[:, 2:-1].sum(1), x[:, :3] * x[:, 1:4]


def sliced_of(length):
    return torch.randn(2, length + 4, 6), torch.randn(2, length + 2, 6)


CASES = {"sliced": (sliced, sliced_of), "cache": (grow, cache_of), "rows": (rows, rows_of), "padded": (padded, padded_of), "products": (products, products_of)}


def compare(compiled, function, arguments):
    got, expected = compiled(*arguments), function(*arguments)
    for ours, theirs in zip(got, expected):
        assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_further_sizes_agree_with_eager(case):
    function, make = CASES[case]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for length in (7, 2, 3, 1, 64, 65, 129, 31, 200, 0, 5):
        compare(compiled, function, make(length))
    assert kiln.stats()["checks_failed"] == 0


@pytest.mark.parametrize("case", CASES)
def test_further_sizes_are_generated_once_for_a_range(case):
    function, make = CASES[case]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for length in (70, 83):
        compare(compiled, function, make(length))
    before = kiln.stats()
    for length in range(71, 83):
        compare(compiled, function, make(length))
    after = kiln.stats()
    assert after["programs"] >= before["programs"] + 12
    assert after["compilations"] == before["compilations"]


def test_numbers_that_are_extents_are_kilns():
    """As the gradient of a mean is divided by how many there are."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.mean((1, 2)) * x.shape[1], backend="kiln", dynamic=True)
    for length in (5, 8):
        x = torch.randn(2, length, length + 1, requires_grad=True)
        out = compiled(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        mean = x.detach().mean((1, 2))
        torch.testing.assert_close(out.detach(), mean * length)
        torch.testing.assert_close(gradient, (2 * mean * length / (length + 1)).reshape(2, 1, 1).expand(x.shape))
    assert kiln.stats()["fallback_ops"] == {}


SHRUNK = {
    "convolutions without padding": (lambda x, w, v: F.conv2d(F.conv2d(x, w).relu(), v), [(4, 3, 3, 3), (2, 4, 2, 1)]),
    "a convolution with steps and batch norm": (lambda x, w, g: F.batch_norm(F.conv2d(x, w, None, 2, 1), None, None, g, training=True).relu(),
                                                [(4, 3, 3, 3), (4,)]),
    "places in an image": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), [(2, 5, 4, 2)]),
    "places in an image, reflected": (lambda x, g: F.grid_sample(x, g, "bicubic", "reflection", align_corners=False), [(2, 5, 4, 2)]),
    "places in an image, aligned": (lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True), [(2, 5, 4, 2)]),
}


@pytest.mark.parametrize("entry", ["backend", "kiln"])
def test_masks_of_sizes_that_change_are_those_of_eager(entry, capfd):
    """Of attention's results too, which lie in memory in another order."""
    torch._dynamo.reset()
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, 0.3, batch_first=True)
    compiled = torch.compile(layer, backend="kiln") if entry == "backend" else kiln.compile(layer)
    for shape in ((2, 7, 32), (3, 9, 32), (5, 16, 32)):
        x = torch.randn(shape)
        results = []
        for run in (layer, compiled):
            torch.manual_seed(5)
            out = run(x)
            results.append((out.detach(), *torch.autograd.grad(out.square().sum(), list(layer.parameters()))))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert kiln.stats()["fallback_ops"] == {} and "in torch" not in capfd.readouterr().err


def test_numbers_that_are_no_extents_may_be_negative(capfd):
    """As the label that a loss leaves out, which is a symbol where all sizes are."""

    def function(x, left_out, added):
        return (x != left_out).sum(1), x.float() * added

    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for left_out, added in ((-100, -1), (3, -7), (-(2**40), 5)):
        for shape in ((3, 4), (5, 9)):
            x = torch.randint(-3, 5, shape)
            for got, want in zip(compiled(x, left_out, added), function(x, left_out, added), strict=True):
                assert torch.equal(got, want)
    assert "runs in torch" not in capfd.readouterr().err


@pytest.mark.parametrize("name", SHRUNK)
def test_extents_less_a_number_are_kilns(name, capfd):
    torch._dynamo.reset()
    function, shapes = SHRUNK[name]
    others = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    compiled = torch.compile(function, backend="kiln")
    for height in (6, 9, 4):
        x = torch.randn(2, 3, height, height + 1, requires_grad=True)
        expected, got = function(x, *others), compiled(x, *others)
        grad = torch.randn_like(expected)
        torch.testing.assert_close(got, expected)
        for ours, theirs in zip(*(torch.autograd.grad(out, [x, *others], grad) for out in (got, expected))):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert kiln.stats()["fallback_ops"] == {} and "in torch" not in capfd.readouterr().err


def turned(x):
    return torch.roll(x, 2, 1) * 2, torch.roll(x, (-3, 30), (1, 2)) * 2, torch.roll(x, x.shape[1] // 2, 1) * 2, torch.roll(x, 3) * 2


def read(x, i, j):
    return x[i] * 2, x[:, j] * 2, x[i, j] * 2, x[i, :, j - 1] * 2, x[:, [-1, 0]] * 2, torch.take(x, j) * 2, x[torch.arange(x.shape[0]), 1] * 2


def read_of(size):
    return torch.randn(size, size + 1, size + 2), torch.randint(-size, size, (7,)), torch.randint(0, size, (7,))


def written(x, y, i, j):
    apart, inner = x * 2, x * 2
    apart[i, :, j], inner[:, i] = y[:, 0], y[:1]
    return torch.index_put(x, (i,), y), torch.index_put(x, (i, j), y[:1], True), apart, inner


def filled(x, y, i, j):
    return torch.index_fill(x, 1, i, 2.5), x.put(j, y[:1, 0], accumulate=True), torch.fill(y, x.sum()) * y


def written_of(size):
    places = torch.stack([torch.randperm(size)[:1], torch.randint(0, size, (1,))])
    return torch.randn(size, size + 1, size + 2), torch.randn(size + 1, size + 2), *places


def resized(x, y):
    return (F.interpolate(x, scale_factor=2) * 2, F.interpolate(x, size=y.shape[2:], mode="bilinear") + y, F.interpolate(y, scale_factor=0.5) * 2,
            F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True) * 2, F.interpolate(x, size=(4, 4), mode="nearest-exact") * 2)  # fmt: skip


def images_of(size):
    return torch.randn(2, 3, size, size + 1), torch.randn(2, 3, 2 * size - 1, size + 3)


def averaged(x):
    return (F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) * 2, F.avg_pool2d(x, 3, 2, 1) * 2,
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False) * 2, F.avg_pool2d(x, 2, 3, ceil_mode=True) * 2,
            F.avg_pool2d(x, 3, 2, 1, divisor_override=5) * 2, F.adaptive_avg_pool2d(x, (3, None)) * 2, F.adaptive_avg_pool2d(x, (1, 2)) * 2)  # fmt: skip


def highest(x):
    return (F.max_pool2d(x, 3, 2, 1, ceil_mode=True) * 2, F.max_pool2d(x, 2, 3, ceil_mode=True) * 2, F.adaptive_max_pool2d(x, 3) * 2,
            *F.adaptive_max_pool2d(x, (1, 2), return_indices=True))  # fmt: skip


def cut(x):
    return (x[:, ::2] * 2, x[1:, 1::3] * 2, torch.unsafe_split(x, 2, 2)[1] * 2, x.unfold(1, 4, 2) * 2,
            F.glu(x, 2) * 2, F.group_norm(x.transpose(1, 2), 3), F.pdist(x[:, 0]))  # fmt: skip


def ordered(x):
    """Of halves many are equal."""
    halves = x.detach().bfloat16()
    ranks = x.argsort(1, descending=True), *torch.topk(halves, 2, 1), *torch.kthvalue(x, 2, 1), halves.median(1).indices, x.mul(9).long().median(1).indices
    return (*torch.sort(x, 1), torch.topk(x, 3, 1).values, x.median(1).values, x[:, :, 0].nanmedian(), x.diagonal(0, 1, 2) * 2, x.diagonal(-1, 1, 2) * 2, *ranks)


def extremes_by_index(x, y, rows):
    places = rows[:, None].expand(-1, y.shape[1])
    return (x.scatter_reduce(0, places, y, "amax"), x.scatter_reduce(0, places, y, "amin", include_self=False), x.index_reduce(0, rows, y, "amax"))


def found(x, table):
    """Bags of rows, and what lies where in order."""
    edges, flat = x.detach()[0].sort().values, x.detach().flatten()
    rows, begins = (flat * 0.0 + table.shape[0] - 1).long(), torch.arange(x.shape[0]) * x.shape[1]
    return (torch.searchsorted(edges, flat), torch.searchsorted(x.detach().sort(1).values, x.detach(), right=True), torch.bucketize(flat, edges),
            F.embedding_bag(rows, table, begins, mode="sum"), x * 2)  # fmt: skip


def in_pieces(x, y):
    """Of what torch takes apart with sizes that it computes."""
    around = F.pad(x, (2, 1, 1, 2), "reflect"), F.pad(x, (1, 2, 2, 1), "replicate")
    return (*(each * 2 for each in around), F.pixel_shuffle(torch.cat([x, x[:, :1]], 1), 2) * 2, F.mse_loss(x, y), F.smooth_l1_loss(x, y)[None])


VARIED = {
    "turned": (turned, lambda size: [torch.randn(2, size, size + 1)]),
    "read": (read, read_of),
    "written": (written, written_of),
    "filled": (filled, written_of),
    "resized": (resized, images_of),
    "averaged": (averaged, lambda size: images_of(size)[:1]),
    "highest": (highest, lambda size: images_of(size)[:1]),
    "in pieces": (in_pieces, lambda size: [torch.randn(2, 3, size, size + 1) for _ in range(2)]),
    "ordered": (ordered, lambda size: [torch.randn(2, size, size + 1)]),
    "extremes by index": (extremes_by_index, lambda size: [torch.randn(size, size + 1), torch.randn(2 * size, size + 1), torch.randint(0, size, (2 * size,))]),
    "found": (found, lambda size: [torch.randn(size, size + 1), torch.randn(5, 3)]),
    "cut": (cut, lambda size: [torch.randn(size, 2 * size + 1, 6)]),
}


def results_and_gradients(function, tensors):
    leaves = [each for each in tensors if each.is_floating_point()]
    outs = function(*tensors)
    torch.manual_seed(1)
    loss = sum((out * torch.randn_like(out)).sum() for out in outs if out.is_floating_point())
    return *outs, *torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("name", VARIED)
def test_rows_take_sizes_that_change(name, capfd):
    torch._dynamo.reset()
    function, make = VARIED[name]
    compiled = torch.compile(function, backend="kiln")
    for size in (6, 9, 3):
        tensors = [each.requires_grad_() if each.is_floating_point() else each for each in make(size)]
        for tensor, other in zip(tensors, make(size + 1)):
            for dim in range(tensor.dim()):
                if tensor.shape[dim] != other.shape[dim]:
                    torch._dynamo.mark_dynamic(tensor, dim)
        for ours, theirs in zip(*(results_and_gradients(run, tensors) for run in (compiled, function))):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    stats = kiln.stats()
    assert stats["fallback_ops"] == {} and stats["checks_failed"] == 0 and stats["graphs"] < 6, (stats, kiln.explain())
    assert "in torch" not in capfd.readouterr().err


def test_further_steps_of_training_are_generated_once_for_a_range():
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(40, 96, bias=False), torch.nn.GELU(), torch.nn.Linear(96, 40, bias=False))
    compiled = torch.compile(model, backend="kiln", dynamic=True)

    def gradients(module, x, grad):
        model.zero_grad()
        x.grad = None
        module(x).backward(grad)
        return [x.grad, *[each.grad for each in model.parameters()]]

    def step(length):
        x, grad = torch.randn(3, length, 40, requires_grad=True), torch.randn(3, length, 40)
        for ours, theirs in zip(gradients(compiled, x, grad), gradients(model, x, grad)):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

    for length in (70, 83):
        step(length)
    before = kiln.stats()
    for length in range(71, 83):
        step(length)
    after = kiln.stats()
    assert after["programs"] > before["programs"] and after["checks_failed"] == 0
    assert after["compilations"] == before["compilations"]


def encoder():
    layer = torch.nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, activation="gelu", batch_first=True)
    layers = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Embedding(30, 24), layers, torch.nn.Linear(24, 30))


def gradients_of(model, module, batch, length):
    tokens = (torch.arange(batch * length).view(batch, length) * 7) % 30
    model.zero_grad()
    F.cross_entropy(module(tokens).flatten(0, 1), tokens.flatten()).backward()
    return [each.grad.clone() for each in model.parameters()]


@pytest.mark.parametrize("entry", ["backend", "kiln"])
def test_batches_and_lengths_of_a_range_have_one_program(entry):
    """Trained at sizes around those of the first steps, and at such that differ by a factor of 15."""
    model = encoder()
    compiled = torch.compile(model, backend="kiln") if entry == "backend" else kiln.compile(model)
    sizes = [(3, 20), (5, 33), (2, 17), (15, 16), (4, 255), (7, 64), (2, 255), (14, 31), (9, 100), (15, 24)]
    for count, (batch, length) in enumerate(sizes):
        if count == 3:
            before = kiln.stats()
        for ours, theirs in zip(gradients_of(model, compiled, batch, length), gradients_of(model, model, batch, length)):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    after = kiln.stats()
    assert after["compilations"] == before["compilations"] and after["misses"] == before["misses"], kiln.explain()
    assert after["hits_mapped"] >= before["hits_mapped"] + 2 * (len(sizes) - 3) and after["checks_failed"] == 0


@pytest.mark.skipif(conftest.OVER_DOUBLE, reason="a cache")
def test_sizes_that_nobody_met_are_in_the_cache(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    environment = {"KILN_CACHE_DIR": str(folder), "KILN_CLIENT_WAIT": "always", "KILN_DAEMON_IDLE_EXIT_MS": "1000"}
    processes.report_of("sized_process.py", "20", "40", **environment)
    later = processes.report_of("sized_process.py", "20", "77", "55", "200", KILN_NO_DAEMON="1", **environment)
    assert later["misses"] == 0 and later["calls_meanwhile"] == 0 and later["hits_mapped"] == 4, later


def test_steps_run_in_torch_while_a_program_for_many_sizes_is_built(monkeypatch):
    go, build = threading.Event(), programs.build_for_sizes

    def held(*asked):
        assert go.wait(60)
        build(*asked)

    monkeypatch.setattr(programs, "build_for_sizes", held)
    _session.session().wait = "first"
    model = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.GELU(), torch.nn.LayerNorm(48), torch.nn.Linear(48, 3))
    compiled = torch.compile(model, backend="kiln")

    def step(rows):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        return kiln.stats()

    step(20)
    assert step(21)["calls_meanwhile"] == 1 and step(22)["calls_meanwhile"] == 2
    go.set()
    for each in list(waiting.building):
        each.thread.join(60)
    before = step(23)
    for rows in (24, 30, 90, 255):
        after = step(rows)
    assert after["calls_meanwhile"] == before["calls_meanwhile"] and after["misses"] == before["misses"]
    assert after["hits_mapped"] == before["hits_mapped"] + 4


def test_a_wrong_program_for_many_sizes_is_found_and_not_used_again(monkeypatch, capsys):
    def function(x):
        return torch.softmax(x * 2, 1) @ x.transpose(1, 2)

    made = []

    class Wrong:
        def __init__(self, graph):
            self._graph = graph

        def __getattr__(self, name):
            return getattr(self._graph, name)

        def program(self, *arguments):
            program = self._graph.program(*arguments)
            made.append(program)
            return program and (lambda tensors, targets=None: [t + 1 for t in program(tensors)])

    right = programs.sized_graph
    monkeypatch.setattr(programs, "sized_graph", lambda *asked: Wrong(right(*asked)))
    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for length in (18, 40, 41, 42, 50):
        x = torch.randn(2, length, 6)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    assert kiln.stats()["checks_failed"] == 1 and len([each for each in made if each]) == 1
    assert "did not agree with torch" in capsys.readouterr().err


def doubled(*tensors):
    return [tensor * 2 + 1 for tensor in tensors]


def step_of_many(compiled, sizes):
    tensors = [torch.randn(size, 3) for size in sizes]
    for ours, theirs in zip(compiled(*tensors), doubled(*tensors)):
        torch.testing.assert_close(ours, theirs)
    return kiln.stats()


def test_a_graph_of_too_many_symbols_has_a_program_for_each_size():
    compiled = torch.compile(doubled, backend="kiln", dynamic=True)
    for extra in range(3):
        stats = step_of_many(compiled, [5 + i + extra * (i + 1) for i in range(6)])
    assert stats["misses"] >= 3
    assert any("symbols" in str(row.get("reason", "")) for row in kiln.explain())


@pytest.mark.skipif(conftest.OVER_DOUBLE, reason="programs")
def test_symbols_that_have_to_be_equal_are_one():
    client = _session.session().client()
    programs._attach()
    graph = client.sized("graph(%a: f32[s0, 4], %b: f32[s1, 4]) symbols(s0, s1) {\n  %c = add(%a, %b)\n  return %c\n}\n")
    graph.build((20, 20))

    def run(rows):
        layout = ("f32", (rows, 4), (4, 1))
        program = graph.program((rows, rows), [layout] * 2, [layout])
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        (out,) = program([x, y])
        torch.testing.assert_close(out, x + y)

    for rows in (16, 20, 97, 255):
        run(rows)
    with pytest.raises(Exception, match="does not hold"):
        graph.program((30, 31), [], [])


def test_symbols_that_are_the_same_size_are_one():
    """As the lengths of the keys and values of a model's layers are."""
    compiled = torch.compile(doubled, backend="kiln", dynamic=True)
    step_of_many(compiled, [5, 6, 7, 8, 9, 10])
    before = step_of_many(compiled, [20, 20, 20, 20, 31, 31])
    for equal, other in ((21, 30), (40, 19), (200, 255), (16, 17)):
        after = step_of_many(compiled, [equal] * 4 + [other] * 2)
    assert after["misses"] == before["misses"] and after["hits_mapped"] == before["hits_mapped"] + 4, kiln.explain()
