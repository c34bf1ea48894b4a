"""The CTC loss: programs give what torch's kernels give, whatever the form of its operands; its graph does not end."""

import math

import pytest
import torch
from torch.nn import functional

import kiln
from kiln.torch import ctc_loss as module

COMPILERS = {"torch.compile": lambda f: torch.compile(f, backend="kiln", fullgraph=True), "kiln.compile": kiln.compile}


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(module, "LEAST_LABELS", 0)


def problem(times=21, samples=3, labels=6, classes=7, blank=0, dtype=torch.float32):
    """Logits, targets of classes that are not blank, lengths."""
    targets = torch.randint(0, classes - 1, (samples, labels))
    targets += targets >= blank
    lengths = torch.randint(min(labels + 1, times), times + 1, (samples,)), torch.randint(1, labels + 1, (samples,))
    return torch.randn(times, samples, classes).to(dtype), targets, *lengths


def run(function, x, *operands):
    """(losses, gradient of x)."""
    x = x.detach().clone().requires_grad_()
    losses = function(x, *operands)
    weights = torch.linspace(0.5, 1.5, losses.numel(), dtype=losses.dtype).view(losses.shape)
    return losses.detach(), torch.autograd.grad((losses * weights).sum(), x)[0]


def agree(got, wanted, tolerance):
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        scale = float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 1.0
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(1.0, scale), equal_nan=True)


def is_kilns(compiled, function, operands, tolerance=1e-4):
    """Whether all of the graph is, that gives what the function gives."""
    counts = kiln.stats()
    agree(run(compiled, *operands), run(function, *operands), tolerance)
    made = {name: kiln.stats()[name] - counts[name] for name in ("graphs", "nodes_fallback", "checks_failed")}
    return made["graphs"] > 0 and made["nodes_fallback"] == made["checks_failed"] == 0


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_losses_and_their_gradients_are_torchs(dtype, reduction, compiler):
    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(2), *operands, reduction=reduction)

    operands = problem(dtype=dtype)
    assert is_kilns(COMPILERS[compiler](function), function, operands, 1e-10 if dtype is torch.float64 else 1e-4)


@pytest.mark.parametrize("times, samples, labels, classes", [(1, 1, 1, 2), (16, 2, 1, 5), (17, 1, 5, 3), (40, 5, 12, 30)])
@pytest.mark.parametrize("blank", ["first", "last"])
def test_other_sizes(times, samples, labels, classes, blank):
    blank = 0 if blank == "first" else classes - 1
    loss = torch.nn.CTCLoss(blank=blank, reduction="none")
    logits, targets, _, _ = problem(times, samples, labels, classes, blank, torch.float64)
    lengths = torch.randint(1, times + 1, (samples,)), torch.randint(0, labels + 1, (samples,))

    def function(x, *operands):
        return loss(x.log_softmax(-1), *operands)

    assert is_kilns(COMPILERS["torch.compile"](function), function, (logits, targets, *lengths), 1e-10)


FORMS = {
    "lengths as numbers": lambda x, targets, of_x, of_targets: (x, targets, tuple(of_x.tolist()), tuple(of_targets.tolist())),
    "lengths of 32 bits": lambda x, targets, of_x, of_targets: (x, targets.int(), of_x.int(), of_targets.int()),
    "targets one after another": lambda x, targets, of_x, of_targets: (
        x, torch.cat([t[:n] for t, n in zip(targets, of_targets)]), tuple(of_x.tolist()), tuple(of_targets.tolist())),
    "one sample": lambda x, targets, of_x, of_targets: (x[:, 0], targets[0], (int(of_x[0]),), (targets.shape[1],)),
    "samples outside": lambda x, *others: (x.transpose(0, 1).contiguous().transpose(0, 1), *others),
    "what is behind a target is no label": lambda x, targets, of_x, of_targets: (
        x, torch.where(torch.arange(targets.shape[1]) < of_targets.unsqueeze(1), targets, -1), of_x, of_targets),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_operands(form):
    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(-1), *operands, reduction="none")

    assert is_kilns(COMPILERS["torch.compile"](function), function, FORMS[form](*problem(dtype=torch.float64)), 1e-10)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_samples_without_a_path_or_a_target(zero_infinity):
    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(2), *operands, reduction="none", zero_infinity=zero_infinity)

    x, targets, _, _ = problem(times=9, samples=5, labels=6, dtype=torch.float64)
    targets[1] = 3  # alike labels ask for a blank between
    lengths = torch.tensor([3, 9, 9, 0, 0]), torch.tensor([6, 6, 0, 0, 2])
    losses, gradient = run(function, x, targets, *lengths)
    assert losses.isinf().sum() == (0 if zero_infinity else 3) and gradient.isnan().any() != zero_infinity
    assert is_kilns(COMPILERS["torch.compile"](function), function, (x, targets, *lengths), 1e-10)


def test_classes_that_are_impossible():
    def function(x, *operands):
        return functional.ctc_loss(x, *operands, reduction="none")

    x, *others = problem(dtype=torch.float64)
    x = x.log_softmax(2).where(torch.rand_like(x) > 0.1, -math.inf)
    assert is_kilns(COMPILERS["torch.compile"](function), function, (x, *others), 1e-10)


def test_a_loss_without_a_gradient_has_half_the_rows():
    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(2), *operands)

    operands, compiled = problem(), COMPILERS["torch.compile"](function)
    counts = kiln.stats()["nodes_fallback"]
    with torch.no_grad():
        agree([compiled(*operands)], [function(*operands)], 1e-5)
    assert kiln.stats()["nodes_fallback"] == counts


def test_sums_of_long_inputs_are_as_exact_as_torchs():
    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(2), *operands, reduction="none")

    x, *others = problem(times=400, samples=4, labels=30, classes=20)
    exact = run(function, x.double(), *others)
    for mine, theirs, right in zip(run(COMPILERS["torch.compile"](function), x, *others), run(function, x, *others), exact):
        assert (mine - right).norm() <= 2 * (theirs - right).norm() + 1e-6 * right.norm()


@pytest.mark.parametrize("lengths", [([22, 8, 8], [1, 1, 1]), ([9, 9, -1], [1, 1, 1]), ([9, 9, 9], [7, 1, 1]), ([9, 9, 9], [1, -1, 1])],
                         ids=["times", "negative times", "labels", "negative labels"])  # fmt: skip
def test_lengths_that_are_wrong_are_torchs_errors(lengths):
    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(2), *operands)

    x, targets, *right = problem()
    compiled, wrong = COMPILERS["torch.compile"](function), list(map(torch.tensor, lengths))
    for others in (wrong, right, wrong):
        if others is right:
            agree(run(compiled, x, targets, *right), run(function, x, targets, *right), 1e-4)
            continue
        with pytest.raises(RuntimeError) as wanted:
            function(x, targets, *others)
        with pytest.raises(RuntimeError) as got:
            compiled(x, targets, *others)
        assert str(got.value) == str(wanted.value)


LEFT = {
    "targets one after another, their lengths in a tensor": lambda x, targets, of_x, of_targets: (
        x, torch.cat([t[:n] for t, n in zip(targets, of_targets)]), of_x, of_targets),
    "too few lengths": lambda x, targets, of_x, of_targets: (x, targets, of_x[:2], of_targets),
    "lengths that are tensors each": lambda x, targets, of_x, of_targets: (x, targets, tuple(of_x), tuple(of_targets)),
    "halves": lambda x, *others: (x.half(), *others),
    "lengths that do not add up": lambda x, targets, of_x, of_targets: (x, targets.flatten(), tuple(of_x.tolist()), tuple(of_targets.tolist())),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT)
def test_what_is_not_known_is_eagers(what):
    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(2), *operands)

    operands, compiled = LEFT[what](*problem()), torch.compile(function, backend="kiln")
    try:
        wanted = run(function, *operands)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)) as got:
            run(compiled, *operands)
        assert str(got.value).splitlines()[0] == str(error).splitlines()[0]
    else:
        agree(run(compiled, *operands), wanted, 1e-4)


def test_gradients_of_gradients_are_torchs_error():
    def second(function, x, *operands):
        x = x.requires_grad_()
        (first,) = torch.autograd.grad(function(x, *operands), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x)

    def function(x, *operands):
        return functional.ctc_loss(x, *operands)

    for each in (function, COMPILERS["torch.compile"](function)):
        with pytest.raises(RuntimeError, match="derivative for aten::_ctc_loss_backward is not implemented"):
            second(each, *problem())


def test_sizes_that_change_stay_one_graph_of_torchs_kernels():
    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(2), *operands)

    compiled, made = torch.compile(function, backend="kiln", fullgraph=True, dynamic=True), []
    for times, labels in ((20, 5), (31, 8), (44, 6)):
        operands = problem(times=times, labels=labels)
        agree(run(compiled, *operands), run(function, *operands), 1e-4)
        made.append(kiln.stats()["graphs"])
    assert made == [made[0]] * 3


def test_few_labels_are_torchs_kernels(monkeypatch):
    monkeypatch.setattr(module, "LEAST_LABELS", 3 * 13 + 1)

    def function(x, *operands):
        return functional.ctc_loss(x.log_softmax(2), *operands)

    assert not is_kilns(COMPILERS["torch.compile"](function), function, problem())


class Speech(torch.nn.Module):
    """Convolutions over time, scores of each time step, and the loss of what was said."""

    def __init__(self):
        super().__init__()
        self.front, self.scores = torch.nn.Conv1d(8, 16, 3, padding=1), torch.nn.Linear(16, 12)
        self.loss = torch.nn.CTCLoss(zero_infinity=True)

    def forward(self, x, *operands):
        scores = self.scores(torch.relu(self.front(x)).permute(2, 0, 1))
        return self.loss(scores.log_softmax(2), *operands)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_model_trains(compiler):
    model, x = Speech(), torch.randn(4, 8, 33)
    _, *operands = problem(times=33, samples=4, labels=7, classes=12)

    def gradients(function):
        return torch.autograd.grad(function(x, *operands), list(model.parameters()))

    wanted, counts = gradients(model), kiln.stats()["nodes_fallback"]
    compiled = COMPILERS[compiler](model)
    for _ in range(2):
        for a, b in zip(gradients(compiled), wanted):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))
    assert kiln.stats()["nodes_fallback"] == counts
