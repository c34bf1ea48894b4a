"""A projection that only a loss reads runs some rows at a time: values and gradients, and what must stay as it is."""

import math

import pytest
import torch
from torch.nn import functional

import kiln
from kiln.torch import linear_loss, loss_in_rows

WIDTH, CLASSES = 19, 1031
WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32, torch.float64: torch.float64}
IGNORED = -100


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The losses that run in rows, of any number of scores; 16 rows at most in one program."""
    made, make = [], linear_loss._make
    monkeypatch.setattr(linear_loss, "LEAST_SCORES", 1)
    for name in ("MAX_ROWS", "MAX_ROWS_OF_HALVES"):
        monkeypatch.setattr(loss_in_rows, name, 16)
    monkeypatch.setattr(linear_loss, "_make", lambda *arguments: made.append(make(*arguments)) or made[-1])
    return made


def of_all(x, weight, bias, target, **options):
    scores = functional.linear(x, weight, bias)
    return functional.cross_entropy(scores.view(-1, CLASSES), target.view(-1), **options)


def of_all_widened(x, weight, bias, target, **options):
    scores = functional.linear(x, weight, bias)
    return functional.cross_entropy(scores.to(WIDE[x.dtype]).view(-1, CLASSES), target.view(-1), **options)


def of_the_next(x, weight, bias, target, **options):
    scores = functional.linear(x, weight, bias)
    return functional.cross_entropy(scores[:, :-1].reshape(-1, CLASSES), target[:, 1:].reshape(-1), **options)


def in_pieces(x, weight, bias, target, **options):
    log_probabilities = functional.log_softmax(x.flatten(0, 1) @ weight.t(), -1)
    return functional.nll_loss(log_probabilities, target.flatten(), **options)


def operands(dtype=torch.float32, sequences=3, length=13, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
                       for shape in ((sequences, length, WIDTH), (CLASSES, WIDTH), (CLASSES,)))  # fmt: skip
    target = torch.randint(0, CLASSES, (sequences, length), generator=generator)
    target[0, length // 5] = target[-1, -1] = IGNORED
    return [x, weight, bias], target


def gradients(function, tensors, target, factor=1.0, **options):
    """[loss, its gradients]."""
    wanted = [t for t in tensors if t.requires_grad]
    loss = function(*tensors, target, **options)
    return [loss.detach(), *torch.autograd.grad(loss * factor, wanted, allow_unused=True)]


def in_f64(tensors):
    return [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]


def assert_near(got, expected, dtype):
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    for g, e in zip(got, expected, strict=True):
        if e is None:
            assert g is None
            continue
        assert g.dtype == dtype and g.shape == e.shape
        torch.testing.assert_close(g.double(), e, rtol=tolerance, atol=tolerance * max(1e-30, e.nan_to_num().abs().max().item()),
                                   equal_nan=True)  # fmt: skip


def check(function, tensors, target, **options):
    compiled = torch.compile(function, backend="kiln")
    for _ in range(2):
        assert_near(gradients(compiled, tensors, target, **options), gradients(function, in_f64(tensors), target, **options),
                    tensors[0].dtype)  # fmt: skip
    with torch.no_grad():
        options.pop("factor", None)
        assert_near([compiled(*tensors, target, **options)], [function(*in_f64(tensors), target, **options)], tensors[0].dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"ignore_index": 7}], ids=["mean", "sum", "ignores_a_class"])
@pytest.mark.parametrize("function", [of_all, of_all_widened, of_the_next, in_pieces])
def test_values_and_gradients(function, options, dtype, made):
    tensors, target = operands(dtype)
    if options.get("ignore_index") == 7:
        target[target == IGNORED] = 7
    check(function, tensors, target, **options)
    assert len(made) == 2 and None not in made  # with gradients, and without
    assert kiln.stats()["nodes_fallback"] == kiln.stats()["checks_failed"] == 0


def distance(result, exact):
    return ((result.double() - exact).norm() / exact.norm()).item()


def check_halves(function, tensors, target, half, factor=1.0, call=lambda function: function, **options):
    """From what f64 gives, Kiln is no farther than torch is, or a few roundings: torch rounds more values, but the same scores."""
    exact = gradients(function, in_f64(tensors), target, factor, **options)
    torchs = gradients(call(function), tensors, target, factor, **options)
    compiled = torch.compile(call(function), backend="kiln")
    for _ in range(2):
        for got, own, e in zip(gradients(compiled, tensors, target, factor, **options), torchs, exact, strict=True):
            assert (got.dtype, got.shape) == (own.dtype, own.shape)
            assert distance(got, e) <= max(1.2 * distance(own, e), torch.finfo(half).eps)
    with torch.no_grad():
        loss = compiled(*tensors, target, **options)
        assert loss.dtype == torchs[0].dtype and distance(loss, exact[0]) <= 2 * torch.finfo(half).eps
    assert kiln.stats()["nodes_fallback"] == kiln.stats()["checks_failed"] == 0


halves = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])


@halves
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"ignore_index": 7}], ids=["mean", "sum", "ignores_a_class"])
@pytest.mark.parametrize("function", [of_all, of_all_widened, of_the_next])
def test_halves(function, options, half, made):
    tensors, target = operands(half)
    if options.get("ignore_index") == 7:
        target[target == IGNORED] = 7
    check_halves(function, tensors, target, half, **options)
    assert len(made) == 2 and None not in made


def test_gradients_of_f16_do_not_vanish_before_they_are_scaled(made):
    """A probability by the number of rows is too small for f16; eager has it times a gradient scaler's factor."""
    tensors, target = operands(torch.float16, length=37)
    likely = 10
    with torch.no_grad():
        tensors[1].mul_(2**-7)
        tensors[2].zero_()[:likely] = 6
    target[target >= likely] %= likely
    got, exact = (gradients(function, each, target, factor=2.0**14)
                  for function, each in ((torch.compile(of_all_widened, backend="kiln"), tensors), (of_all_widened, in_f64(tensors))))  # fmt: skip
    for of_parameter, e in zip(got[2:], exact[2:]):
        assert distance(of_parameter[likely:], e[likely:]) <= 2 * torch.finfo(torch.float16).eps
    assert len(made) == 1 and None not in made


def test_autocast(made):
    tensors, target = operands()
    check_halves(of_all, tensors, target, torch.bfloat16, call=torch.autocast("cpu", torch.bfloat16))
    assert len(made) == 2 and None not in made


@pytest.mark.parametrize("length", [5, 16, 17, 32, 37])
def test_any_number_of_rows(length, made):
    check(of_all, *operands(sequences=1, length=length), reduction="sum")
    assert len(made) == 2 and all((each is not None) == (length > 16) for each in made)


def test_an_incoming_gradient(made):
    check(of_the_next, *operands(), factor=-2.5)
    assert len(made) == 2


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nothing_counts(reduction, made):
    tensors, target = operands()
    target.fill_(IGNORED)
    check(of_all, tensors, target, reduction=reduction)
    loss, *rest = gradients(torch.compile(of_all, backend="kiln"), tensors, target, reduction=reduction)
    assert math.isnan(loss) == (reduction == "mean") and not any(g.any() for g in rest)
    assert made and None not in made


def test_scores_that_are_not_finite(made):
    tensors, target = operands()
    with torch.no_grad():
        tensors[0][1, 3, 4], tensors[0][2, 5, 6] = math.inf, math.nan
    check(of_all, tensors, target)
    assert len(made) == 2


@pytest.mark.parametrize("frozen", [(0,), (1,), (0, 1), (1, 2)])
def test_what_needs_no_gradient(frozen, made):
    tensors, target = operands()
    for i in frozen:
        tensors[i].requires_grad_(False)
    check(of_all, tensors, target)
    assert len(made) == 2


@pytest.mark.parametrize("wrong", [CLASSES, -1])
def test_a_target_that_is_no_class_is_torchs_error(wrong, made):
    tensors, target = operands()
    target[2, 3] = wrong
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        torch.compile(of_all, backend="kiln")(*tensors, target)
    assert made


def test_the_graph_can_be_kept_and_differentiated_again(made):
    tensors, target = operands()
    compiled = torch.compile(of_all, backend="kiln")
    loss = compiled(*tensors, target)
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    for g in first:
        g.mul_(2)  # whoever has a gradient may write to it
    second = torch.autograd.grad(loss, tensors)
    assert_near(second, gradients(of_all, in_f64(tensors), target)[1:], torch.float32)

    def of_gradients(function, tensors):
        loss = function(*tensors, target)
        return torch.autograd.grad(sum(g.square().sum() for g in torch.autograd.grad(loss, tensors, create_graph=True)), tensors)

    assert_near(of_gradients(compiled, tensors), of_gradients(of_all, in_f64(tensors)), torch.float32)
    assert made


def returned(x, weight, bias, target):
    scores = functional.linear(x, weight, bias)
    return functional.cross_entropy(scores.view(-1, CLASSES), target.view(-1)), scores


def read_twice(x, weight, bias, target):
    scores = functional.linear(x, weight, bias)
    return functional.cross_entropy(scores.view(-1, CLASSES), target.view(-1)) + scores.square().mean()


def smoothed(x, weight, bias, target):
    return of_all(x, weight, bias, target, label_smoothing=0.1)


def weighted(x, weight, bias, target):
    scores = functional.linear(x, weight, bias).flatten(0, 1)
    return functional.cross_entropy(scores, target.flatten(), weight=bias.detach().exp())


@pytest.mark.parametrize("function", [returned, read_twice, smoothed, weighted])
def test_what_others_read_or_another_loss_stays(function, made):
    tensors, target = operands()
    first = lambda result: result[0] if isinstance(result, tuple) else result  # noqa: E731
    compiled = torch.compile(function, backend="kiln")
    results = [torch.autograd.grad(first(f(*t, target)), t) for f, t in ((compiled, tensors), (function, in_f64(tensors)))]
    assert_near(*results, torch.float32)
    assert not made


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x, target):
        return functional.cross_entropy(self.linear(x).flatten(0, 1), target.flatten())


@pytest.mark.parametrize("compile", [kiln.compile, lambda model: torch.compile(model, backend="kiln")], ids=["kiln", "torch"])
def test_a_module_by_both_entries(compile, made):
    (x, *_), target = operands()
    model = Head()
    tensors = [x, *model.parameters()]
    expected = gradients(of_all, in_f64(tensors), target)
    compiled = compile(model)
    for _ in range(2):
        loss = compiled(x, target)
        assert_near([loss.detach(), *torch.autograd.grad(loss, tensors)], expected, torch.float32)
    assert made and None not in made


def test_graphs_that_are_compiled_as_they_are(made):
    """A forward alone, with no autograd around it."""
    from capture import assert_close, compiled

    tensors, target = operands()
    got, expected, _ = compiled(lambda *a: of_the_next(*a), *(t.detach() for t in tensors), target)
    assert_close(got, expected, factor=4)
    assert len(made) == 1
