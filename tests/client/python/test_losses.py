"""Losses of torch.nn.functional that a model computes between its blocks have captures, backward included."""

import copy
import pickle

import pytest
import torch
from conftest import OVER_DOUBLE
from regional_models import MAKERS, VOCABULARY, Model, difference, make_ids
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import kiln
from kiln import regional
from kiln.torch.between import losses

pytestmark = pytest.mark.skipif(OVER_DOUBLE, reason="captures are kept by libkiln")

TOLERANCE = 5e-6  # f32, sums of at most 200 terms; relative to each tensor's largest element


@pytest.fixture(autouse=True)
def no_captures():
    """As in a new process."""
    regional._captures.clear()


class Scored(Model):
    """Gives the loss of its scores."""

    def __init__(self, loss, depth=2):
        super().__init__([MAKERS["gpt"]() for _ in range(depth)])
        self.loss = loss

    def forward(self, ids, targets):
        return self.loss(super().forward(ids), targets)


def cross_entropy(scores, targets):
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=3, label_smoothing=0.1)


def weighted(scores, targets):
    weight = torch.linspace(0.5, 2, VOCABULARY)
    return torch.nn.CrossEntropyLoss(weight, reduction="none")(scores.flatten(0, 1), targets.flatten()).square().mean()


def of_log_probabilities(scores, targets):
    return functional.nll_loss(functional.log_softmax(scores, -1).flatten(0, 1), targets.flatten(), reduction="sum")


def regression(scores, targets):
    return functional.smooth_l1_loss(scores, functional.one_hot(targets, VOCABULARY).float(), beta=0.3)


def divergence(scores, targets):
    other = functional.one_hot(targets, VOCABULARY).float().softmax(-1)
    return torch.nn.KLDivLoss(reduction="batchmean")(scores.log_softmax(-1), other)


def step(model, ids, targets):
    model.zero_grad(set_to_none=True)
    loss = model(ids, targets)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


def pair(loss):
    model = Scored(loss)
    return kiln.compile(copy.deepcopy(model)), model


@pytest.mark.parametrize("loss", [cross_entropy, weighted, of_log_probabilities, regression, divergence])
def test_a_loss_between_blocks_is_captured_with_its_backward(loss):
    compiled, model = pair(loss)
    ids, targets = make_ids(), make_ids(seed=4)
    assert difference(step(compiled, ids, targets), step(model, ids, targets)) < TOLERANCE
    (entry,) = regional.entries_of(compiled._compiled_call_impl)
    assert entry.modules[0] in losses() and entry.capture_counts()["kept"] > 0
    assert kiln.report(compiled).nodes_in_torch == 0 and not kiln.report(compiled).capture_causes
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids, targets), model(ids, targets))
    for length in (7, 19):
        ids, targets = make_ids(length), make_ids(length, seed=4)
        assert difference(step(compiled, ids, targets), step(model, ids, targets)) < TOLERANCE


def test_scores_of_a_loss_have_one_gradient_and_nothing_else_of_their_size():
    """Torch keeps their logarithms, too, and makes a gradient of these."""
    compiled, _ = pair(cross_entropy)
    ids, targets = make_ids(17), make_ids(17, seed=4)
    step(compiled, ids, targets)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        compiled(ids, targets)
    of_scores = {t.data_ptr() for t in saved if t.numel() == ids.numel() * VOCABULARY}
    assert len(of_scores) == 1


def test_the_callers_mistakes_in_a_loss_are_torchs_own_exceptions():
    compiled, model = pair(cross_entropy)
    ids, wrong = make_ids(), make_ids(seed=4)
    wrong[1, 3] = VOCABULARY
    for each in (model, compiled):
        with pytest.raises(IndexError, match="out of bounds"):
            each(ids, wrong)
        with pytest.raises(ValueError, match="batch_size"):
            each(ids, wrong[:, 1:])
    assert difference(step(compiled, ids, ids), step(model, ids, ids)) < TOLERANCE


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        self.functions.append(function)
        return function(*arguments, **(keywords or {}))


def test_a_mode_of_the_models_own_sees_its_functions():
    ids, targets = make_ids(), make_ids(seed=4)

    def within(scores, targets):
        with Counting() as inner:
            result = functional.mse_loss(scores, functional.one_hot(targets, VOCABULARY).to(scores.dtype))
        seen.append(inner.functions)
        return result

    (compiled, model), seen = pair(within), []
    with torch.device("cpu"):
        got = step(compiled, ids, targets)
        assert difference(got, step(model, ids, targets)) < TOLERANCE
    in_compiled, in_eager = seen
    assert in_compiled == in_eager and functional.mse_loss in in_eager


def test_what_the_model_compiles_by_itself_is_compiled_as_ever():
    counted = torch._dynamo.testing.CompileCounter()
    own = torch.compile(cross_entropy, backend=counted)
    compiled, model = pair(own)
    ids, targets = make_ids(), make_ids(seed=4)
    assert difference(step(compiled, ids, targets), step(model, ids, targets)) < TOLERANCE
    assert counted.frame_count == 2  # within the compiled model there is a mode that Dynamo guards


def test_a_model_with_a_captured_loss_is_copied_and_pickled_without_it():
    compiled, model = pair(cross_entropy)
    ids, targets = make_ids(), make_ids(seed=4)
    want = step(compiled, ids, targets)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert difference(step(other, ids, targets), want) < TOLERANCE


def test_losses_are_those_of_torch():
    assert {functional.cross_entropy, functional.nll_loss, functional.mse_loss, functional.ctc_loss} <= losses()
    assert functional.linear not in losses() and functional.softmax not in losses()
