"""Random numbers that kernels draw: `random: fast`."""

import collections
import math

import pytest
import torch
from test_joint import saved_by
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import kiln
from kiln import _session
from kiln.torch import backend
from kiln.torch import distributions as of
from kiln.torch._names_2_13 import NAMES
from kiln.torch.draws import draw_seed, random_words
from kiln.torch.expansion import first_partition
from kiln.torch.partition import prepare

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LARGEST_WORD = 2**32 - 1


@pytest.fixture(autouse=True)
def fast(fresh):
    _session.session().random, _session.session().check = "fast", "always"


def all_in_kiln():
    stats = kiln.stats()
    assert stats["nodes_fallback"] == 0 and stats["checks_failed"] == 0 and stats["checked"] > 0, stats
    return stats


def words(value, count=4, size=(3,)):
    return torch.full((count, *size), value, dtype=torch.int64)


# ---- what is drawn

# By what draws into a tensor: the cumulative distribution.
CONTINUOUS = {
    "rand": (torch.rand_like, lambda x: x),
    "uniform": (lambda x: x.clone().uniform_(-3, 5), lambda x: (x + 3) / 8),
    "randn": (torch.randn_like, torch.special.ndtr),
    "normal": (lambda x: x.clone().normal_(2, 3), lambda x: torch.special.ndtr((x - 2) / 3)),
    "normal of tensors": (lambda x: torch.normal(x - 1, x * 0 + 2), lambda x: torch.special.ndtr(x / 2)),
    "log_normal": (lambda x: x.clone().log_normal_(0.5, 0.25), lambda x: torch.special.ndtr((x.log() - 0.5) / 0.25)),
    "exponential": (lambda x: x.clone().exponential_(0.5), lambda x: 1 - (-x / 2).exp()),
    "cauchy": (lambda x: x.clone().cauchy_(1, 2), lambda x: 0.5 + ((x - 1) / 2).atan() / math.pi),
}


def distance(x, cumulative):
    """Kolmogorov's and Smirnov's, times the square root of the sample's size: above 2 once in 1500 samples."""
    x, n = x.double().flatten().sort()[0], x.numel()
    below = torch.arange(n, dtype=torch.float64) / n
    return max((cumulative(x) - below).max(), (below + 1 / n - cumulative(x)).max()).item() * math.sqrt(n)


@pytest.mark.parametrize("dtype", FLOATING)
def test_numbers_are_of_their_distribution(dtype):
    x = torch.ones(37, 53, dtype=dtype)
    drawn = torch.compile(lambda x: [draw(x) for draw, _ in CONTINUOUS.values()], backend=backend)(x)
    resolution = math.sqrt(x.numel()) * 2 * torch.finfo(dtype).eps  # of halves many are equal
    for (name, (_, cumulative)), numbers in zip(CONTINUOUS.items(), drawn, strict=True):
        assert numbers.dtype == dtype and numbers.isfinite().all(), name
        assert distance(numbers, cumulative) < 2 + resolution, name
    assert all_in_kiln()["nodes_compiled"] > len(CONTINUOUS)


def frequencies(drawn, shares):
    """Pearson's statistic for what 0, 1, … are expected to be, in standard deviations above its mean."""
    count = torch.bincount(drawn.flatten().long(), minlength=len(shares)).double()
    assert len(count) == len(shares), count
    expected = torch.tensor(shares, dtype=torch.float64) * drawn.numel()
    freedom = len(shares) - 1
    return (((count - expected) ** 2 / expected).sum().item() - freedom) / math.sqrt(2 * freedom)


DISCRETE = {
    "bernoulli": (torch.bernoulli, (0.7, 0.3)),
    "bernoulli of a number": (lambda x: torch.bernoulli(x, 0.85), (0.15, 0.85)),
    "bernoulli of a tensor": (lambda x: x.clone().bernoulli_(x * 2), (0.4, 0.6)),
    "randint_like": (lambda x: torch.randint_like(x, 7), (1 / 7,) * 7),
    "randint_like from": (lambda x: torch.randint_like(x, -3, 2) + 3, (0.2,) * 5),
    "random": (lambda x: x.clone().random_(1, 4) - 1, (1 / 3,) * 3),
    "geometric": (lambda x: x.clone().geometric_(0.4).clamp(max=9) - 1, (*(0.4 * 0.6**k for k in range(8)), 0.6**8)),
}


@pytest.mark.parametrize("dtype", FLOATING)
def test_whole_numbers_are_met_as_often_as_asked_for(dtype):
    x = torch.full((41, 33), 0.3, dtype=dtype)
    drawn = torch.compile(lambda x: [draw(x) for draw, _ in DISCRETE.values()], backend=backend)(x)
    for (name, (_, shares)), numbers in zip(DISCRETE.items(), drawn, strict=True):
        assert numbers.dtype == dtype and frequencies(numbers, shares) < 5, name
    all_in_kiln()


RANGES = [(0, 2), (-5, 1000), (0, 2**20), (3, 2**21 + 5), (0, 2**26), (-7, 2**40), (0, 2**53 + 1), (-(2**62), 2**63 - 1), (-(2**63), 2**63 - 1)]


@pytest.mark.parametrize("low, high", RANGES)
def test_whole_numbers_are_the_product_of_a_fraction_and_the_range(low, high):
    count = of.words_for(high - low)
    drawn = random_words(torch.tensor(9), (count, 50), (50, 1))
    numbers = of.integers(drawn, torch.int64, low, high)
    mask = (1 << of.DIGIT) - 1
    for place, number in enumerate(numbers.tolist()):
        fraction = 0
        for word in drawn:
            fraction = (fraction << of.DIGIT) + (word[place].item() & mask)
        assert number == low + ((high - low) * fraction >> of.DIGIT * count)
    assert (high - low) / 2 ** (of.DIGIT * count) <= 2**-of.EVENNESS
    assert of.integers(words(0, count), torch.int64, low, high).eq(low).all()
    assert of.integers(words(LARGEST_WORD, count), torch.int64, low, high).eq(high - 1).all()


def test_whole_numbers_of_all_ranges_and_dtypes():
    def draw():
        wide = [torch.randint(low, high, (45, 23)) for low, high in RANGES[:6]]
        narrow = [torch.randint(0, 100, (801,), dtype=dtype) for dtype in (torch.int32, torch.uint8, torch.int8, torch.float32)]
        return wide, narrow, torch.empty(9, 31, dtype=torch.int32).random_(), torch.empty(11, dtype=torch.int64).random_()

    wide, narrow, *whole = torch.compile(draw, backend=backend)()
    for numbers, (low, high) in zip(wide, RANGES):
        share = (numbers.double() - low) / (high - low)
        assert low <= numbers.min() and numbers.max() < high and (high > 5000 or numbers.min() < low + 10)
        assert abs(share.mean() - 0.5 + 0.5 / (high - low)) < 5 / math.sqrt(12 * numbers.numel())
    assert all(0 <= n.min() < 5 and 95 <= n.max() < 100 for n in narrow)
    assert all(n.min() >= 0 and n.max() > torch.iinfo(n.dtype).max * 0.7 for n in whole)
    all_in_kiln()


@pytest.mark.parametrize("dtype", FLOATING)
def test_nothing_is_rounded_out_of_its_range(dtype):
    count = 2 if dtype == torch.float64 else 1
    assert of.uniform(words(LARGEST_WORD, count), dtype).lt(1).all() and of.uniform(words(0, count), dtype).eq(0).all()
    for low, high in ((0.1, 0.7), (-3.3, -3.2), (5.0, 5.0)):
        numbers = of.uniform(words(LARGEST_WORD, count), dtype, low, high)
        assert (numbers.lt(high) | torch.tensor(low == high)).all() and numbers.ge(torch.tensor(low, dtype=dtype)).all()
    for value in (0, 1, LARGEST_WORD - 1, LARGEST_WORD):
        assert of.normal(words(value, 2 * count), dtype).isfinite().all()
        assert of.exponential(words(value, count), dtype, 1.0).gt(0).all()
        assert of.exponential(words(value, count), dtype, 1.0).isfinite().all()
        assert of.geometric(words(value, count), dtype, 0.5).ge(1).all()
        assert not of.bernoulli(words(value, count), dtype, 0.0).any() and of.bernoulli(words(value, count), dtype, 1.0).all()
        for p in (0, 1):
            assert of.bernoulli(words(value, count), dtype, torch.tensor(p, dtype=dtype)).eq(p).all()
        assert of.cauchy(words(value, count), torch.promote_types(dtype, torch.float32), 0.0, 1.0).isfinite().all()


@pytest.mark.parametrize("size", [(), (1,), (3, 1, 7), (257,), (2, 33, 5)])
def test_kernels_compute_what_torch_does_of_the_same_words(size):
    draws = {
        "randn": (lambda: torch.randn(size), of.normal, 2, ()),
        "randn, f64": (lambda: torch.randn(size, dtype=torch.float64), of.normal, 4, ()),
        "rand": (lambda: torch.rand(size, dtype=torch.bfloat16), of.uniform, 1, ()),
        "randint": (lambda: torch.randint(-4, 2**33, size), of.integers, 3, (-4, 2**33)),
        "bernoulli": (lambda: torch.empty(size).bernoulli_(0.3), of.bernoulli, 1, (0.3,)),
        "exponential": (lambda: torch.empty(size).exponential_(2), of.exponential, 1, (2.0,)),
    }
    torch.manual_seed(4)
    results = torch.compile(lambda: [draw() for draw, *_ in draws.values()], backend=backend)()
    torch.manual_seed(4)
    for result, (name, (_, function, count, more)) in zip(results, draws.items()):
        shape = (count, *size)
        expected = function(random_words(draw_seed(), shape, torch.empty(shape).stride()), result.dtype, *more)
        exact = dict(rtol=0, atol=0) if name in ("rand", "randint", "bernoulli") else {}
        torch.testing.assert_close(result, expected, **exact)
    all_in_kiln()


def test_captures_may_name_all_distributions():
    assert {(function.__module__, function.__name__) for function in of.DISTRIBUTIONS} <= NAMES


def test_words_of_torch_have_the_strides_asked_for():
    transposed, straight = (random_words(torch.tensor(5), (2, 4, 6), strides) for strides in ((24, 1, 4), (24, 6, 1)))
    assert transposed.stride() == (24, 1, 4) and torch.equal(transposed, straight) and straight.unique().numel() == 48


def test_numbers_lie_as_eagers_do():
    def draw(x):
        return torch.randn_like(x.transpose(0, 2)), torch.rand_like(x[:, :1].expand(3, 5, 7))

    x = torch.randn(3, 5, 7)
    torch.manual_seed(1)
    results = torch.compile(draw, backend=backend)(x)
    for got, eagers in zip(results, draw(x), strict=True):
        assert got.stride() == eagers.stride()
    torch.manual_seed(1)
    straight = torch.compile(lambda x: torch.randn_like(x), backend=backend)(torch.empty(7, 5, 3))
    torch.testing.assert_close(results[0], straight)  # where elements lie changes nothing
    assert kiln.stats()["checks_failed"] == 0


# ---- samples


def test_samples_without_replacement_are_different_and_as_frequent_as_asked_for():
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0]).expand(900, 4).contiguous()
    one, three = torch.compile(lambda w: (torch.multinomial(w, 1), torch.multinomial(w, 3)), backend=backend)(weights)
    assert one.shape == (900, 1) and three.dtype == torch.int64
    assert frequencies(one[one != 1] - (one[one != 1] > 1).long(), (1 / 8, 3 / 8, 1 / 2)) < 5 and one.ne(1).all()
    assert three.sort(-1)[0].eq(torch.tensor([0, 2, 3])).all()
    first = three[:, 0]
    assert frequencies(first - (first > 1).long(), (1 / 8, 3 / 8, 1 / 2)) < 5
    all_in_kiln()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_with_replacement_are_as_frequent_as_asked_for(dtype):
    weights = torch.tensor([[0.0, 2.0, 0.0, 6.0, 0.0], [5.0, 0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    rows, row = torch.compile(
        lambda w: (torch.multinomial(w, 1200, replacement=True), torch.multinomial(w[0], 1200, True)), backend=backend
    )(weights)
    assert rows.shape == (2, 1200) and rows[1].eq(0).all()
    for numbers in (rows[0], row):
        assert (numbers.eq(1) | numbers.eq(3)).all() and frequencies((numbers - 1) // 2, (0.25, 0.75)) < 5
    all_in_kiln()


# ---- when


def test_a_seed_gives_numbers_and_draws_differ():
    run = torch.compile(lambda: torch.stack([torch.randn(70), torch.randn(70)]), backend=backend)
    torch.manual_seed(3)
    first, second = run(), run()
    torch.manual_seed(3)
    assert torch.equal(run(), first)
    draws = [*first, *second]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_a_draw_of_what_was_drawn():
    def draw(x):
        shares = torch.rand_like(x)
        return shares, torch.bernoulli(shares), torch.normal(shares, 1e-3)

    shares, hits, near = torch.compile(draw, backend=backend)(torch.empty(4000))
    assert abs((hits * shares).mean() - 1 / 3) < 0.04 and (near - shares).abs().max() < 0.01
    all_in_kiln()


def test_another_configuration_draws_what_eager_draws():
    _session.session().random = "torch"
    x = torch.ones(50)

    def draw(x):
        return torch.randn_like(x) + torch.rand(50), torch.randint(0, 9, (20,)), torch.multinomial(x, 4)

    torch.manual_seed(3)
    expected = draw(x)
    torch.manual_seed(3)
    for got, want in zip(torch.compile(draw, backend=backend)(x), expected):
        assert torch.equal(got, want)


def test_numbers_of_many_sizes_and_of_other_kinds_are_torchs():
    def draw(x):
        return torch.randn_like(x) * 2 + torch.poisson(x.exp()), torch.randn(6)

    run = torch.compile(draw, backend=backend, dynamic=True)
    assert run(torch.ones(50))[0].std() > 1 and run(torch.ones(61))[0].shape == (61,)
    left = collections.Counter(kiln.stats()["fallback_ops"])
    assert {name.split(".")[1] for name in left} == {"randn_like", "poisson"}, left


def test_draws_split_no_subgraph():
    def draw(x, w):
        return (torch.randn(8, 8) @ w).relu() @ (x + torch.rand_like(x))

    graph = make_fx(draw, tracing_mode="fake")(torch.ones(8, 8), torch.ones(8, 8)).graph
    plan = first_partition(graph, prepare(graph))
    assert len(plan.subgraphs) == 1 and {node.target for node in plan.reasons} == {draw_seed}


def test_counts_name_what_is_drawn():
    torch.compile(lambda x: torch.randn_like(x) * torch.poisson(x), backend=backend)(torch.ones(400, 300))
    stats = kiln.stats()
    assert stats["nodes_compiled"] == 2 and stats["fallback_ops"] == {"aten.poisson.default": 1}


# ---- training


def test_no_noise_is_saved_and_the_backward_has_the_forwards(monkeypatch):
    class Scaled(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y * torch.randn_like(y)

    saved = saved_by(torch.nn.Sequential(Scaled(8, 8), Scaled(8, 8)), monkeypatch, torch.randn(6, 8))
    assert [shape for name, shape in saved if "draw" in name or "normal" in name or "words" in name] == [()] * 2
    x = torch.randn(33, 17, dtype=torch.float64, requires_grad=True)
    y = torch.compile(lambda x: x * torch.randn_like(x) + torch.rand_like(x), backend=backend)(x)
    y.sum().backward()
    rest = y - x * x.grad
    assert (0 <= rest).all() and (rest < 1).all() and x.grad.std() > 0.9


def test_what_is_checkpointed_has_the_gradients_of_its_noise():
    def block(x):
        return x * torch.rand_like(x)

    x = torch.randn(40, 11, requires_grad=True)
    y = torch.compile(lambda x: checkpoint(block, x, use_reentrant=False), backend=backend)(x)
    y.sum().backward()
    torch.testing.assert_close(y, x * x.grad)
    x.grad = None
    compiled = torch.compile(block, backend=backend)
    y = checkpoint(compiled, x, use_reentrant=False)  # the forward runs twice
    y.sum().backward()
    torch.testing.assert_close(y, x * x.grad)
    assert kiln.stats()["checks_failed"] == 0


def test_gradients_of_noise_are_differentiated_by_nobody():
    x = torch.randn(9, 5, requires_grad=True)
    y = torch.compile(lambda x: x.square() * torch.rand_like(x), backend=backend)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient * x, 2 * y)
    with pytest.raises(RuntimeError, match="kernels drew its random numbers"):
        gradient.sum().backward()


class Autoencoder(torch.nn.Module):
    """Its loss, and the noise that it drew."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = torch.nn.Linear(21, 14), torch.nn.Linear(7, 21)

    def forward(self, x, noise=None):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        noise = torch.randn_like(mean) if noise is None else noise
        y = self.decoder(mean + noise * (0.5 * log_variance).exp())
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return functional.mse_loss(y, x) + divergence, noise


class Diffusion(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.up, self.down = torch.nn.Embedding(10, 19), torch.nn.Linear(19, 40), torch.nn.Linear(40, 19)

    def forward(self, x, drawn=None):
        noise, t = (torch.randn_like(x), torch.randint(0, 10, (x.shape[0],))) if drawn is None else drawn
        share = ((t + 1) / 11)[:, None]
        mixed = share.sqrt() * x + (1 - share).sqrt() * noise
        y = self.down(functional.silu(self.up(mixed + self.places(t))))
        return functional.mse_loss(y, noise), (noise, t)


def compiled_for_backend(model):
    return torch.compile(model, backend=backend)


def compiled_by_itself(model):
    kiln.compile(model)
    return model


@pytest.mark.parametrize("compiled", [compiled_for_backend, compiled_by_itself])
@pytest.mark.parametrize("make, width", [(Autoencoder, 21), (Diffusion, 19)])
def test_a_step_has_the_gradients_of_the_noise_it_drew(make, width, compiled):
    model, x = make(), torch.randn(13, width)
    run, noises = compiled(model), []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        loss, drawn = run(x)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        expected, _ = make.forward(model, x, drawn)
        expected.backward()
        torch.testing.assert_close(loss, expected)
        for got, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(got, parameter.grad, rtol=1e-4, atol=1e-5)
        noises.append(drawn if make is Autoencoder else drawn[0])
    assert not torch.equal(*noises)
    all_in_kiln()


def test_equal_layers_draw_different_numbers():
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    model = torch.nn.Sequential(Noise(), Noise(), Noise())
    kiln.compile(model)
    seen = [torch.zeros(9, 5)]
    for layer in model:
        layer.register_forward_hook(lambda _, inputs, result: seen.append(result - inputs[0]))
    model(torch.zeros(9, 5))
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])
