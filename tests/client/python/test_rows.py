"""Every row of the importer's table says what torch computes."""

import itertools

import pytest
import torch

from capture import assert_close, captured, compiled
from kiln.torch import compile_graph
from kiln.torch.rows import ROWS

aten = torch.ops.aten


def f32(*shape):
    return torch.randn(*shape)


def f64(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def i64(*shape, below=10):
    return torch.randint(0, below, shape)


def i8(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def flag(*shape):
    return torch.rand(*shape) < 0.5


def positive(*shape):
    return torch.rand(*shape) + 0.1


def of_one(name):
    return lambda x: getattr(aten, name)(x)


def of_two(name):
    return lambda x, y: getattr(aten, name)(x, y)


def attention_and_its_gradients(grad, q, k, v):
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    return out, *aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, lse, 0.0, True)


def bags(mode, padding):
    """All that is more than bare memory."""

    def run(w, i, o):
        out, *rest = aten._embedding_bag(w, i, o, False, mode, False, None, False, padding)
        return (out, *rest[: 3 if mode else 1], aten._embedding_bag(w, i, o, False, mode, False, None, True, padding)[0],
                aten._embedding_bag_forward_only(w, i.int(), o.int(), False, mode, False, None, False, padding)[0])  # fmt: skip

    return run


def gradients_of_bags(mode):
    def run(g, w, i, o):
        made = {p: aten._embedding_bag(w, i, o, False, mode, False, None, False, p)[1:] for p in (-1, 2)}
        return tuple(aten._embedding_bag_backward(g, i, o, *made[p], 7, False, mode, False, None, p) for p in made)

    return run


def sampling(mode, padding, aligned):
    return lambda g, x, points: (aten.grid_sampler_2d(x, points, mode, padding, aligned),
                                 *aten.grid_sampler_2d_backward(g, x, points, mode, padding, aligned, [True, True]))  # fmt: skip


def sampling_of_volumes(mode, padding, aligned):
    return lambda g, x, points: (aten.grid_sampler_3d(x, points, mode, padding, aligned),
                                 *aten.grid_sampler_3d_backward(g, x, points, mode, padding, aligned, [True, True]))  # fmt: skip


def resizing(name, height, width, aligned, *factors):
    """An image of 9 by 8, and a gradient of what is made of it."""
    forward, backward = (getattr(aten, f"_upsample_{name}2d_aa{end}") for end in ("", "_backward"))
    return (lambda x, g: (forward(x, [height, width], aligned, *factors), backward(g, [height, width], [2, 3, 9, 8], aligned, *factors)),
            lambda: [f32(2, 3, 9, 8), f32(2, 3, height, width)])  # fmt: skip


SAMPLINGS = list(itertools.product((0, 1), (0, 1, 2), (False, True)))
X, Y = (3, 1, 5), (4, 1)  # broadcast to (3, 4, 5)
UNARY = "neg abs sign exp expm1 sin cos tanh erf sigmoid silu mish hardswish hardsigmoid relu floor ceil round trunc"
CASES = {
    **{f"{n} {d.__name__}": (of_one(n), lambda d=d: [d(3, 7) * 4]) for n in UNARY.split() for d in (f32, f64)},
    **{n: (of_one(n), lambda: [positive(17)]) for n in "log log1p sqrt rsqrt reciprocal".split()},
    "integers through a floating function": (lambda x: aten.exp(x), lambda: [i64(9)]),
    "floor of integers": (lambda x: aten.floor(x + 1), lambda: [i64(9)]),
    "isnan": (lambda x: (aten.isnan(x), aten.isinf(x)), lambda: [torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])]),
    "what no integer holds": (lambda x: tuple(aten._to_copy(x, dtype=t) for t in (torch.int64, torch.int32, torch.int8, torch.uint8)),
        lambda: [torch.tensor([1.5, float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 3e9, -3e9])]),
    "isnan of integers": (lambda x: aten.isnan(x), lambda: [i64(5)]),
    "not": (lambda x, b: (aten.bitwise_not(x), aten.bitwise_not(b), aten.logical_not(x), aten.logical_not(b)), lambda: [i64(9), flag(9)]),
    **{n: (of_two(n), lambda: [f32(*X), f32(*Y)]) for n in "add sub mul div minimum maximum atan2".split()},
    **{f"{n} of integers": (of_two(n), lambda: [i64(*X) - 5, i64(*Y) + 1])
       for n in "add sub mul div minimum maximum remainder fmod floor_divide bitwise_and bitwise_or bitwise_xor".split()},
    "shifts": (lambda x, y, n: (x >> 0, x >> 3, x >> 6, y >> 4, y >> 6, n >> 40, aten.bitwise_right_shift(x, 2)), lambda: [i8(40), i8(40).view(torch.uint8), i64(20) - 5]),
    "remainder": (lambda x, y: (aten.remainder(x, y), aten.fmod(x, y)), lambda: [f32(40) * 5, positive(40)]),
    "add with alpha": (lambda x, y: (aten.add(x, y, alpha=3), aten.sub(x, y, alpha=-2), aten.rsub(x, y, alpha=2)), lambda: [f32(*X), f32(*Y)]),
    "scalars": (lambda x: (aten.add(x, 2), aten.sub(x, 2.5), aten.mul(x, 3), aten.div(x, 3), aten.rsub(x, 1), aten.remainder(x, 1.5)), lambda: [f32(3, 4)]),
    "overloads for numbers": (lambda x: (aten.add.Scalar(x, 2, 3), aten.sub.Scalar(x, 2.5), aten.mul.Scalar(x, 3), aten.div.Scalar(x, 3), aten.fmod.Scalar(x, 1.5),
        aten.div.Scalar_mode(x, 0.7, rounding_mode="floor"), aten.ge.Scalar(x, 0), aten.lt.Scalar(x, 0.5), aten.ne.Scalar(x, 1), aten.clamp_max.Tensor(x, x[0])), lambda: [f32(8, 4)]),
    "bits and numbers": (lambda n: (aten.bitwise_and.Scalar(n, 6), aten.bitwise_or.Scalar(n, 6), aten.bitwise_xor.Scalar(n, -3), aten.bitwise_left_shift.Tensor_Scalar(n, 3),
        aten.__lshift__.Tensor(n, n.abs()), aten.floor_divide.Scalar(n, 4)), lambda: [i64(40) - 5]),
    "choices of numbers": (lambda c, x: (aten.where.Scalar(c, 1, 2), aten.where.ScalarOther(c, x, 2.0), aten.where.ScalarSelf(c, 2.0, x)), lambda: [flag(20), f32(20)]),
    "of all elements": (lambda x, b: (aten.all.default(b), aten.all.dims(b, [0, 2]), aten.prod.default(x)), lambda: [positive(3, 4, 2), flag(3, 4, 2)]),
    "mixed dtypes": (lambda x, n, b: (aten.add(x, n), aten.mul(n, 2.5), aten.mul(x, b), aten.add(n, b), aten.div(n, n + 1)), lambda: [f32(6), i64(6), flag(6)]),
    "arithmetic of booleans": (lambda a, b: (aten.add(a, b), aten.mul(a, b), aten.bitwise_and(a, b)), lambda: [flag(20), flag(20)]),
    "division modes": (lambda x, y: (aten.div(x, y, rounding_mode="floor"), aten.div(x, y, rounding_mode="trunc")), lambda: [f32(40) * 9, f32(40)]),
    "product added": (lambda x, y, z, t: (aten.addcmul(x, y, z), aten.addcmul(x, y, z, value=-0.5), aten.addcdiv(x, y, t, value=2)),
        lambda: [f32(*X), f32(*Y), f32(*X), positive(*X)]),
    "lerp": (lambda x, y, w: (aten.lerp(x, y, 0.1), aten.lerp(x, y, 0.9), aten.lerp(x, y, w)), lambda: [f32(*X), f32(*X), f32(*X)]),
    "attention of the CPU": (attention_and_its_gradients, lambda: [f32(2, 3, 9, 8) for _ in range(4)]),
    "fma": (lambda x, y, z: torch.ops.prims.fma(x, y, z), lambda: [f32(3, 4), f32(3, 4), f32(3, 4)]),
    "comparisons": (lambda x, y: tuple(getattr(aten, n)(x, y) for n in "eq ne lt le gt ge".split()), lambda: [i64(*X, below=3), i64(*Y, below=3)]),
    "comparisons with numbers": (lambda x, n: (aten.gt(x, 0), aten.le(n, 2.5), aten.eq(n, 3)), lambda: [f32(20), i64(20)]),
    "logic": (lambda a, b: (aten.logical_and(a, b), aten.logical_or(a, b), aten.logical_xor(a, b)), lambda: [i64(20, below=2), flag(20)]),
    "powers": (lambda x: (aten.pow(x, 2.0), aten.pow(x, 3), aten.pow(x, 0.5), aten.pow(x, -1), aten.pow(2.0, x), aten.pow(x, x)), lambda: [positive(20)]),
    "integer square": (lambda x: aten.pow(x, 2), lambda: [i64(9)]),
    "clamp": (lambda x: (aten.clamp(x, -0.5, 0.5), aten.clamp_min(x, 0), aten.clamp_max(x, 0.25), aten.hardtanh(x)), lambda: [f32(40)]),
    "clamp by tensors": (lambda x, y: (aten.clamp(x, y), aten.clamp_min(x, y), aten.clamp(x, None, y)), lambda: [f32(5, 6), f32(6)]),
    "where": (lambda c, x, y: (aten.where(c, x, y), aten.where(c, x, 2.0)), lambda: [flag(*X), f32(*X), f32(*Y)]),
    "masked_fill": (lambda x, m: (aten.masked_fill(x, m, -1e9), aten.masked_fill(x, m, torch.tensor(2.0))), lambda: [f32(3, 4), flag(4)]),
    "_to_copy": (lambda x: (aten._to_copy(x, dtype=torch.float64), aten._to_copy(x, dtype=torch.int64), aten._to_copy(x, dtype=torch.bool)), lambda: [f32(9) * 3]),
    "copy": (lambda x, y: aten.copy(x, y), lambda: [f32(3, 4), i64(4)]),
    "leaky activations": (lambda x: (aten.leaky_relu(x, 0.2), aten.elu(x), aten.softplus(x, 2)), lambda: [f32(40) * 3]),
    "gelu": (lambda x: (aten.gelu(x), aten.gelu(x, approximate="tanh")), lambda: [f32(40) * 3]),
    "activation gradients": (lambda g, x: (aten.gelu_backward(g, x), aten.gelu_backward(g, x, approximate="tanh"), aten.silu_backward(g, x),
                             aten.tanh_backward(g, x), aten.sigmoid_backward(g, x), aten.threshold_backward(g, x, 0), aten.threshold_backward(g, x, 0.3)), lambda: [f32(40), f32(40)]),
    "gradients at the bends": (lambda g, x: (aten.leaky_relu_backward(g, x, 0.2, False), aten.softplus_backward(g, x, 2, 3), aten.softplus_backward(g, x, 1, 20),
                               aten.hardtanh_backward(g, x, -1, 2), aten.hardsigmoid_backward(g, x), aten.hardswish_backward(g, x), aten.mish_backward(g, x)),
                               lambda: [f32(57), torch.cat([torch.tensor([-3.0, 3.0, 0.0, -1.0, 2.0, 1.5]), f32(51) * 4])]),
    "gradients of elu": (lambda g, x: (aten.elu_backward(g, 1, 1, 1, False, x), aten.elu_backward(g, 1.7, 1.05, 0.5, False, x), aten.elu_backward(g, 1, 1, 1, True, x.clamp(-0.9))), lambda: [f32(40), f32(40) * 3]),
    "log_sigmoid": (lambda g, x: (lambda y: (y[0], aten.log_sigmoid_backward(g, x, y[1])))(aten.log_sigmoid_forward(x)), lambda: [f32(40), f32(40) * 9]),
    "dropout gradient": (lambda g, m: aten.native_dropout_backward(g, m, 1.25), lambda: [f32(40), flag(40)]),
    "copies": (lambda x: aten.clone(aten.add(x, 1).t(), memory_format=torch.contiguous_format), lambda: [f32(3, 4)]),
    "reshapes": (lambda x: (aten.view(x * 2, [4, 6]) + 1, aten._unsafe_view(x * 3, [-1]) + 1, aten.unsqueeze(x, 1) + 1, aten.squeeze(aten.unsqueeze(x, 0) + 1)), lambda: [f32(2, 3, 4)]),
    "expand": (lambda x: aten.mul(aten.expand(x, [2, 3, 4]), 2), lambda: [f32(3, 1)]),
    "permutations": (lambda x: (aten.permute(x, [2, 0, -2]) + 1, aten.transpose(x, 0, -1) + 1, aten.t(aten.select(x, 0, 1)) + 1, aten.t(aten.select(aten.select(x, 0, 0), 0, 0)) * 2), lambda: [f32(2, 3, 4)]),
    "slices": (lambda x: (aten.slice(x, 0, 1, 3) + 1, aten.slice(x, 1, -3, -1) + 1, aten.slice(x, 1, 0, 2**63 - 1, 2) + 1, aten.slice(x, 0, 2, 100) + 1, aten.select(x, 1, -1) + 1), lambda: [f32(4, 7)]),
    "pieces": (lambda x: tuple(p + 1 for p in (*aten.split(x, 3, 1), *aten.split_with_sizes(x, [1, 6], -1), *aten.unbind(x, 0))), lambda: [f32(4, 7)]),
    "cat": (lambda x, n: (aten.cat([x, x, n], 1), aten.stack([x, x], -1), aten.cat([torch.empty(0), x * 2])), lambda: [f32(3, 2), i64(3, 4)]),
    "flip and repeat": (lambda x: (aten.flip(x, [0, -1]), aten.repeat(x * 2, [2, 3, 1])), lambda: [f32(2, 3)]),
    "pad": (lambda x: (aten.constant_pad_nd(x, [1, 2, 0, 3], -7.0), aten.constant_pad_nd(x + 1, [-1, 2])), lambda: [f32(3, 4)]),
    "scattered slices": (lambda x, y: (aten.slice_scatter(x, y, 1, 1, 3), aten.slice_backward(y, [3, 9], 1, 2, 6, 2), aten.select_backward(y, [3, 5, 2], 1, -1)), lambda: [f32(3, 5), f32(3, 2)]),
    "triangles": (lambda x, b: (aten.tril(x), aten.triu(x, 1), aten.tril(b, -1)), lambda: [f32(5, 5), flag(5, 5)]),
    "constants": (lambda x: (aten.full([2, 3], 2.5), aten.zeros([4], dtype=torch.int64), aten.ones([2], dtype=torch.bool), aten.zeros_like(x), aten.full_like(x, 3),
                  aten.new_ones(x, [3]), aten.new_full(x, [2], 7.0), aten.scalar_tensor(1.5), aten.new_zeros(x, [2])), lambda: [f64(2, 2)]),
    "arange": (lambda: (aten.arange(7), aten.arange(2, 9), aten.arange(1, 20, 3), aten.arange(0, 1, 0.125)), lambda: []),
    "sums": (lambda x, n, b: (aten.sum(x, [0, -1]), aten.sum(x, [1], True), aten.sum(x), aten.sum(n, [0]), aten.sum(b), aten.sum(n, [0], dtype=torch.float32)), lambda: [f32(3, 4, 5), i64(4, 3), flag(30)]),
    "other reductions": (lambda x: (aten.mean(x, [1], True), aten.mean(x), aten.amax(x, [0]), aten.amin(x, [0, 1], True), aten.prod(x, 2), aten.logsumexp(x, [1]),
                         aten.linalg_vector_norm(x, 2, [0, 2]), aten.var(x, [1], correction=0, keepdim=True), aten.var(x, [0, 1], correction=1)), lambda: [f32(3, 4, 5)]),
    "reductions of a scalar": (lambda x: (aten.sum(x), aten.mean(x), aten.amax(x, [0]), aten.prod(x, 0), aten.logsumexp(x, [0]), aten.linalg_vector_norm(x, 2, [0]),
                               aten.norm(x, 2, [0], True), aten.var(x, [0], correction=0)), lambda: [torch.tensor(-1.7)]),
    "any and all": (lambda b: (aten.any(b, 1), aten.any(b), aten.all(b, 0, True), aten.any(b, [0, 1]), aten._is_all_true(b)), lambda: [flag(4, 5)]),
    "extremes of truths": (lambda b, t: (*aten.max(b, 1), *aten.min(b, 0, True), aten.max(b), aten.min(t), aten.amax(b, [0]), aten.amin(b, [1], True)), lambda: [flag(4, 5), flag(2) | True]),
    "extremes": (lambda x: (*aten.max(x, 1), *aten.min(x, 0, True), aten.argmax(x, 1), aten.argmin(x)), lambda: [torch.randperm(20).float().view(4, 5)]),
    "cumsum": (lambda x, b: (aten.cumsum(x, 1), aten.cumsum(b, 0)), lambda: [f32(3, 9), flag(7)]),
    "products": (lambda a, b, v: (aten.mm(a, b), aten.mv(a, v), aten.addmm(b[0], a, b), aten.addmm(b[:1], a, b, beta=0.5, alpha=2)), lambda: [f32(5, 7), f32(7, 3), f32(7)]),
    "products of whole numbers": (lambda a, b, c: (aten.mm(a, b), aten.mv(a, b[:, 0]), aten.bmm(a[None], b[None]), aten.addmm(c, a, b, beta=-3, alpha=2), aten._int_mm(a, b)), lambda: [i8(5, 70), i8(70, 3), i8(3)]),
    "products of whole numbers as they lie": (lambda a, b: (aten._int_mm(a, b.t()), aten._int_mm(b, a.t()), aten.mm(a[:, :33], b)), lambda: [i8(9, 130), i8(33, 130)]),
    "sums of batched products": (lambda c, x, y: (aten.addbmm(c, x, y), aten.addbmm(c[0], x, y, beta=0.5, alpha=2)), lambda: [f32(3, 5), f32(2, 3, 4), f32(2, 4, 5)]),
    "deviations": (lambda x: (aten.var(x, [1], correction=0.5), aten.std(x, None, correction=1.5), *aten.std_mean(x, [0], correction=0.25, keepdim=True)), lambda: [f32(4, 9)]),
    "shifts by each": (lambda x, y, n: (aten.bitwise_left_shift(x, y), aten.bitwise_right_shift(x, y), aten.__lshift__(x, 3), aten.__rshift__(x, y), aten.bitwise_right_shift(n, n + 12), aten.bitwise_left_shift(n, n - 120)),
               lambda: [torch.randint(-(2**62), 2**62, (99,)), torch.randint(0, 64, (99,)), i8(99) // 8]),
    "batched products": (lambda a, b, c: (aten.bmm(a, b), aten.baddbmm(c, a, b, beta=2, alpha=0.5)), lambda: [f32(2, 5, 7), f32(2, 7, 3), f32(2, 5, 3)]),
    "products of groups": (lambda x, w, e: (aten._grouped_mm(x, w, e), aten._grouped_mm(w, x.t(), e), aten._grouped_mm(x.t(), x, e), aten._grouped_mm(w, w)),
                           lambda: [torch.randn(24, 16).bfloat16(), torch.randn(3, 16, 16).bfloat16(), torch.tensor([5, 5, 24], dtype=torch.int32)]),
    "embedding": (lambda w, i: aten.embedding(w, i, 3), lambda: [f32(10, 4), i64(2, 6)]),
    "embedding gradient by frequency": (lambda g, i: (aten.embedding_dense_backward(g, i, 10, -1, True), aten.embedding_dense_backward(g, i, 10, 3, True)), lambda: [f32(2, 6, 4), i64(2, 6)]),
    "embedding gradient": (lambda g, i: (aten.embedding_dense_backward(g, i, 10, -1, False), aten.embedding_dense_backward(g, i, 10, 3, False), aten.embedding_dense_backward(g, i, 40, 3, False)), lambda: [f32(2, 6, 4), i64(2, 6)]),
    "rows by number": (lambda x, i: (aten.index_select(x, 1, i), aten.index(x, [None, i]), aten.index(x, [i - 7])), lambda: [f32(8, 9), i64(6, below=7)]),
    "rows by floats": (lambda t, x: (aten.embedding(t, aten._to_copy(x * 16, dtype=torch.int64)), aten.index_select(t, 0, aten._to_copy(aten.floor(x * 15), dtype=torch.int32)),
                       aten.gather(t, 0, aten._to_copy(x[:10].view(2, 5) * 16, dtype=torch.int64))), lambda: [f32(16, 5), torch.rand(70)]),
    **{f"several indices {n}": (lambda x, i, j: (
        aten.index(x, [i, j]), aten.index(x, [None, i, j - 4]), aten.index(x, [i[:, :1], None, j]), aten.index(x, [None, i, None, j]),
        aten.index(x, [i, j, i, j]), aten._unsafe_index(x, [i - 4, j[0]])), lambda d=d: [d(4, 5, 4, 6), i64(3, 2, below=4), i64(3, 2, below=4)])
       for n, d in (("f32", f32), ("f64", f64), ("i64", i64))},
    "indices of other kinds": (lambda x, i, j: (aten.index(x, [i.to(torch.int32), j]), aten.index(x, [None, j[0, 0], i]), aten.index(x, [i[0, 0], j[0, 0], i[0, 0]])),
                               lambda: [f32(4, 5, 4), i64(3, 2, below=4), i64(3, 1, below=4)]),
    "numbers that are minus zero": (lambda x: (torch.copysign(torch.ones(4), torch.full((4,), -0.0)), 1 / (x * 0).clamp(min=-0.0, max=-0.0)), lambda: [positive(4)]),
    "index_put": (lambda x, i, s: (aten.index_put(x, [i], s[0, 0]), aten.index_put(x, [None, i - 4], s[:, :4]), aten.index_put(x, [None, None, i.view(2, 2)], s[0, 0, 0])),
                  lambda: [f32(4, 5, 6), torch.randperm(4), f32(4, 5, 6)]),
    "index_put at a mask": (lambda x, m, n: (aten.index_put(x, [m], torch.tensor(2.5)), aten.index_put(x, [n], torch.tensor([-1.0]))), lambda: [f32(4, 5), flag(4), flag(4, 5)]),
    "gather and scatter": (lambda x, i, s: (aten.gather(x, 1, i), aten.scatter_add(x, 1, i, s), aten.scatter(x, 1, i[:, :1], 2.0), aten.scatter(x, 1, i[:, :1], s[:, :1])), lambda: [f32(4, 9), i64(4, 3, below=9), f32(4, 3)]),
    "index_add": (lambda x, i, s: (aten.index_add(x, 1, i, s), aten.index_put(x, [None, i - 9], s, True)), lambda: [f32(4, 9), i64(3, below=9), f32(4, 3)]),
    "layer_norm": (lambda x, w, b: (*aten.native_layer_norm(x, [8], w, b, 1e-5), aten.native_layer_norm(x, [5, 8], None, None, 1e-3)[0]), lambda: [f32(3, 5, 8), f32(8), f32(8)]),
    "layer_norm gradient": (lambda g, x, w, b: aten.native_layer_norm_backward(g, x, [8], *aten.native_layer_norm(x, [8], w, b, 1e-5)[1:], w, b, [True] * 3), lambda: [f32(3, 5, 8), f32(3, 5, 8), f32(8), f32(8)]),
    "group_norm": (lambda x, w, b: aten.native_group_norm(x, w, b, 2, 6, 35, 3, 1e-5), lambda: [f32(2, 6, 5, 7), f32(6), f32(6)]),
    "group_norm gradient": (lambda g, x, w, b: (*aten.native_group_norm_backward(g, x, *aten.native_group_norm(x, w, b, 2, 6, 35, 3, 1e-5)[1:], w, 2, 6, 35, 3, [True] * 3),
                            aten.native_group_norm_backward(g, x, *aten.native_group_norm(x, None, None, 2, 6, 35, 1, 1e-3)[1:], None, 2, 6, 35, 1, [True, False, False])[0]), lambda: [f32(2, 6, 5, 7), f32(2, 6, 5, 7), f32(6), f32(6)]),
    "weight norm": (lambda v, g: aten._weight_norm_interface(v, g, 0), lambda: [f32(6, 5, 7), positive(6, 1, 1)]),
    "weight norm gradient": (lambda d, v, g: aten._weight_norm_interface_backward(d, v, g, aten._weight_norm_interface(v, g, 0)[1], 0), lambda: [f32(6, 5, 7), f32(6, 5, 7), positive(6, 1, 1)]),
    "weight norm of the last": (lambda d, v, g: (*aten._weight_norm_interface(v, g, 2), *aten._weight_norm_interface_backward(d, v, g, aten._weight_norm_interface(v, g, 2)[1], 2)), lambda: [f32(6, 5, 7), f32(6, 5, 7), positive(1, 1, 7)]),
    "glu": (lambda x: (aten.glu(x), aten.glu(x, 0)), lambda: [f32(4, 5, 6)]),
    "glu gradient": (lambda g, h, x: (aten.glu_backward(g, x, -1), aten.glu_backward(h, x, 0)), lambda: [f32(4, 5, 3), f32(2, 5, 6), f32(4, 5, 6)]),
    "roll": (lambda x, n: (aten.roll(x, [2], [1]), aten.roll(x, [-1, 7, 1], [0, -1, 0]), aten.roll(x, [3]), aten.roll(x * 2, [0], [0]), aten.roll(n, [-9])), lambda: [f32(3, 4, 5), i64(7)]),
    "scattered selections": (lambda x, y: (aten.select_scatter(x, y, 1, 2), aten.select_scatter(x * 2, y, -2, -1), aten.select_backward(y, [3, 4, 5], 1, -2)), lambda: [f32(3, 4, 5), f32(3, 5)]),
    "batch_norm": (lambda x, w, m, v: aten._native_batch_norm_legit_no_training(x, w, None, m, v, 0.1, 1e-5)[0], lambda: [f32(2, 6, 5), f32(6), f32(6), positive(6)]),
    "batch_norm that only reads statistics": (lambda x, w, m, v: aten._native_batch_norm_legit_functional(x, w, None, m, v, False, 0.1, 1e-5), lambda: [f32(2, 6, 5), f32(6), f32(6), positive(6)]),
    "average pools": (lambda x: (aten.avg_pool2d(x, [2, 2]), aten.avg_pool2d(x, [3, 2], [2, 1], [1, 0]), aten.avg_pool2d(x, [3], [2], [1], True, False), aten.avg_pool2d(x, [2, 2], [2, 2], [0, 0], True, True),
                      aten.avg_pool2d(x, [3, 3], [1, 1], [1, 1], False, True, 4), aten.avg_pool3d(x, [2, 3, 3], [1, 2, 2], [0, 1, 1])), lambda: [f32(2, 3, 9, 8)]),
    "average pools' gradients": (lambda g, h, i, x: (aten.avg_pool2d_backward(g, x, [2, 2], [], [0, 0], False, True, None), aten.avg_pool2d_backward(h, x, [3, 2], [2, 1], [1, 0], False, False, None),
                                 aten.avg_pool2d_backward(i, x, [3, 3], [2, 2], [1, 1], True, False, None), aten.avg_pool2d_backward(h, x, [3, 2], [2, 1], [1, 0], False, True, 5)), lambda: [f32(2, 3, 4, 4), f32(2, 3, 5, 7), f32(2, 3, 5, 5), f32(2, 3, 9, 8)]),
    "pools of kernels far larger than planes": (lambda x, g: (aten.avg_pool2d(x, [40000], [], [0], True), aten.avg_pool2d(x, [40000, 4], [40000, 3], [0, 1], True, False), aten.max_pool2d_with_indices(x, [20001, 3], [1, 2], [10000, 1])[0][:, :, :9],
                                                              aten.avg_pool2d_backward(g, x, [40000], [], [0], True, True, None), aten.avg_pool2d_backward(g, x, [40000], [], [3], True, False, None)), lambda: [f32(2, 3, 7, 6), f32(2, 3, 1, 1)]),
    "adaptive averages": (lambda x, g: (aten._adaptive_avg_pool2d(x, [3, 2]), aten._adaptive_avg_pool2d(x, [1, 8]), aten._adaptive_avg_pool2d_backward(g, x)), lambda: [f32(2, 3, 9, 8), f32(2, 3, 3, 4)]),
    "adaptive averages of uneven parts": (lambda x, g, h: (aten._adaptive_avg_pool3d(x, [3, 2, 5]), aten._adaptive_avg_pool2d(x, [5, 3]), aten._adaptive_avg_pool2d(x, [8, 4]), aten._adaptive_avg_pool2d(x, [14, 9]),
                                          aten._adaptive_avg_pool3d_backward(g, x), aten._adaptive_avg_pool2d_backward(h, x)), lambda: [f32(2, 3, 4, 7, 9)[0], f32(3, 3, 2, 5), f32(3, 4, 5, 18)]),
    "adaptive maxima": (lambda x, g: (*aten.adaptive_max_pool2d(x, [3, 2]), *aten.adaptive_max_pool2d(x, [7, 3]), *aten.adaptive_max_pool3d(x, [2, 3, 4]), aten.adaptive_max_pool2d_backward(g, x, aten.adaptive_max_pool2d(x, [3, 2])[1])),
                        lambda: [f32(3, 4, 7, 9), f32(3, 4, 3, 2)]),
    "average pools of integers": (lambda x: (aten.avg_pool2d(x, [2, 2]), aten.avg_pool2d(x, [3, 2], [2, 1], [1, 0], False, False)), lambda: [i64(2, 9, 8) - 5]),
    "running extremes": (lambda x, n, y: (*aten.cummax(x, 1), *aten.cummin(x, 0), *aten.cummax(n, 1), *aten.cummin(n, -1), *aten.cummax(y, 0), *aten.cummin(n > 2, 1), aten.logcumsumexp(x, 1), aten.logcumsumexp(x * 50, 0), aten.logcumsumexp(y, 0)),
                         lambda: [f32(3, 9, 2), i64(4, 20, below=5), torch.tensor([1.0, torch.inf, -torch.inf, torch.nan, 2.0, torch.nan])]),
    "long running extremes": (lambda x, n, e: (*aten.cummax(x, 1), *aten.cummin(x, 1), *aten.cummax(n, 0), *aten.cummin(n, 0), *aten.cummax(e, 0), *aten.cummin(e, 0), *aten.cummax(n > 4, 0), aten.logcumsumexp(x, 1)),
                              lambda: [torch.stack([f32(500), f32(500).round(), torch.cat([f32(300), torch.tensor([torch.nan, torch.inf] * 100)]), torch.full((500,), -torch.inf)]), i64(333),
                                       torch.tensor([-(2**63), 2**63 - 1, -5] * 20)]),
    "maxima of windows": (lambda x, y: (*aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]), *aten.max_pool2d_with_indices(y, [2, 3]), *aten.max_pool2d_with_indices(x, [2, 2], [1, 2], [0, 1], [2, 3], True),
                          *aten.max_pool3d_with_indices(x, [2, 2, 2], [1, 2, 2])), lambda: [f32(2, 3, 9, 8), i64(3, 9, 8).float()]),
    "maxima's gradients": (lambda g, x: aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])[1]), lambda: [f32(2, 3, 5, 4), f32(2, 3, 9, 8)]),
    "sums at pairs of indices": (lambda x, v, i, j: (aten._unsafe_index_put(x, [None, None, i, j], v, True), aten._unsafe_index_put(x, [i, j], v[0, 0, :, :, None, None], True)), lambda: [f32(4, 5, 6, 7), f32(4, 5, 3, 2), i64(3, 1, below=4), i64(2, below=5)]),
    "softmax": (lambda x: (aten._softmax(x, -1, False), aten._log_softmax(x, 1, False)), lambda: [f32(3, 4, 9)]),
    "safe softmax of masked rows": (lambda x: aten._safe_softmax(x, -1), lambda: [torch.stack([torch.full((9,), -torch.inf), torch.randn(9)])]),
    "softmax gradient": (lambda g, x: (aten._softmax_backward_data(g, x.softmax(-1), -1, torch.float32), aten._log_softmax_backward_data(g, x.log_softmax(1), 1, torch.float32)), lambda: [f32(3, 9), f32(3, 9)]),
    "nll_loss": (lambda x, t: (*aten.nll_loss_forward(x, t, None, 1, -100), *aten.nll_loss_forward(x, t, None, 2, 3)), lambda: [f32(6, 9).log_softmax(1), torch.tensor([0, 8, 3, 3, -100, 2]).clamp(0)]),
    "nll_loss gradient": (lambda g, x, t: aten.nll_loss_backward(g, x, t, None, 1, 3, aten.nll_loss_forward(x, t, None, 1, 3)[1]), lambda: [f32(1)[0], f32(6, 9), i64(6, below=9)]),
    "mse_loss": (lambda x, y: (aten.mse_loss(x, y), aten.mse_loss(x, y, 2), aten.mse_loss(x, y, 0)), lambda: [f32(4, 5), f32(4, 5)]),
    "copies of inputs": (lambda x, n, b: (aten.clone(x), aten.clone(x.t()), aten.clone(n), aten._to_copy(b), aten.clone(b)), lambda: [f32(3, 4), i64(5), flag(2, 3)]),
    "a copy of a copy": (lambda x: (lambda y: (y, aten.clone(y), aten.clone(y, memory_format=torch.contiguous_format).view([12])))(x * 2), lambda: [f32(3, 4)]),
    "writes of nothing": (lambda x, none, at: (aten.slice_backward(none * 2, [3, 4], 1, 0, 0, 1), aten.slice_scatter(x, none, 1, 4, 4, 1), aten.constant_pad_nd(none, [3, 1], 2.5),
                          aten.index_put(x, [at], x[:0]), aten.index_add(x, 0, at, x[:0]), aten.scatter_add(x, 1, at.view(0, 1).expand(0, 4), x[:0]), aten.embedding_dense_backward(x[:0], at, 10, -1, False)),
                          lambda: [f32(3, 4), f32(3, 0), i64(0)]),
    "parts that are empty": (lambda x, none: (aten.cat([none, x * 2, x[:, 4:]], 1), aten.cat([x * 2, torch.empty(0, dtype=torch.float64)], 1), aten.stack([none, none]).sum(2),
                             *(p + 1 for p in aten.split_with_sizes(x * 2, [0, 4, 0], 1)[1:2])), lambda: [f32(3, 4), f32(3, 0)]),
    "reductions of nothing": (lambda x, n: (aten.sum(x, [0]), aten.sum(n, [0]), aten.mean(x, [0]), aten.prod(x, 0), aten.any(n, 0), aten.all(n, 0), aten.logsumexp(x, [0]), aten.linalg_vector_norm(x, 2, [0]), aten.mse_loss(x, x, 2)),
                              lambda: [f32(0, 5), i64(0, 5)]),
    "triangular systems": (lambda a, b, c: (aten.linalg_solve_triangular(a, b, upper=False), aten.linalg_solve_triangular(a, c, upper=True, left=False, unitriangular=True), aten.cholesky_solve(b, a), aten.cholesky_inverse(a, True)), lambda: [3 * torch.eye(4) + f32(2, 4, 4), f32(2, 4, 3), f32(1, 5, 4)]),
    "products over nothing": (lambda a, b, c: (aten.mm(a, b), aten.addmm(c, a, b), aten.bmm(a.view(1, 3, 0), b.view(1, 0, 4))), lambda: [f32(3, 0), f32(0, 4), f32(4)]),
    "gradients of no rows": (lambda g, w, r: aten.native_layer_norm_backward(g, g, [8], r, r, w, w, [True] * 3), lambda: [f32(0, 8), f32(8), f32(0, 1)]),
    "lift_fresh_copy": (lambda x: aten.lift_fresh_copy(x * 2), lambda: [f32(3)]),
    **{f"{n} {d.__name__}": (of_one(n), lambda d=d: [d(3, 7) * 4]) for n in "atan sinh cosh asinh exp2 isposinf isneginf sgn".split() for d in (f32, f64)},
    **{f"{n} {d.__name__}": (of_one(n), lambda d=d: [d(21).clamp(-1, 1)]) for n in "acos asin atanh tan".split() for d in (f32, f64)},
    **{n: (of_one(n), lambda: [torch.cat([f32(40) * 4, torch.tensor([0.0, torch.nan, torch.inf, -torch.inf])])]) for n in "isposinf isneginf cosh sinh asinh exp2 angle".split()},
    **{f"{n} {d.__name__}": (of_one(n), lambda d=d: [torch.cat([d(60) * 9, d(9) * 40, torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1.0, -3.0, 0.5])])])
       for n in "erfc i0 special_i0e special_i1 special_i1e lgamma digamma".split() for d in (f32, f64)},
    **{f"erfinv {d.__name__}": (of_one("erfinv"), lambda d=d: [torch.cat([d(40).sigmoid() * 2 - 1, torch.tensor([1.0, -1.0, 0.99999, -0.9999, 0.0, 1.5, torch.nan])])]) for d in (f32, f64)},
    **{f"erfcx {d.__name__}": (of_one("special_erfcx"), lambda d=d: [torch.cat([d(40) * 3, torch.tensor([0.0, 80.0, -5.0, torch.inf])])]) for d in (f32, f64)},
    **{f"polygamma {d.__name__}": (lambda x: tuple(aten.polygamma(n, x) for n in (1, 2, 5)), lambda d=d: [torch.cat([d(20).abs() * 9 + 0.1, -d(20).abs() * 5 - 0.03, torch.tensor([0.0, torch.nan])])]) for d in (f32, f64)},
    "logarithms of powers": (lambda x, y: (aten.log2(x), aten.log10(y), aten.floor(aten.log2(x)), aten.log2(y), aten.acosh(y + 1)), lambda: [2.0 ** torch.arange(-20, 21), 10.0 ** torch.arange(-9, 10)]),
    "beyond squares": (lambda x, y: (aten.hypot(x, y), aten.asinh(x), aten.acosh(aten.abs(x)), aten.cosh(y), aten.sinh(y)), lambda: [f32(9) * 1e30, f32(9) + 88.5]),
    "two that may not be numbers": (lambda x, y, z: (aten.fmax(x, y), aten.fmin(x, y), aten.hypot(x, y), aten.copysign(x, z), aten.copysign(x, -0.0), aten.copysign(x, 2.0)),
                                    lambda: [torch.tensor([1.0, torch.nan, 3.0, torch.nan, -torch.inf, 0.0, 0.0]), torch.tensor([-2.0, 5.0, torch.nan, torch.nan, torch.nan, -0.0, 0.0]), torch.tensor([-1.0, 1.0, -0.0, 0.0, torch.inf, -torch.inf, -2.0])]),
    "fmax of integers": (lambda x, y: (aten.fmax(x, y), aten.fmin(x, y), aten.sgn(x - 5), aten.relu(x - 5), aten.isposinf(x)), lambda: [i64(9), i64(9)]),
    "quotients towards 0": (lambda x, y: aten.div(x, y, rounding_mode="trunc"), lambda: [i64(40) - 5, (i64(40) - 5) * 2 + 1]),
    "integer powers": (lambda x: tuple(aten.pow(x, n) for n in (1, 2, 3, 7, 10)), lambda: [i64(9) - 5]),
    "norms": (lambda x: tuple(aten.linalg_vector_norm(x, p, d) for p in (0, 1, 2, 3, 0.5, torch.inf, -torch.inf) for d in (None, [1], [0, 2])), lambda: [f32(3, 4, 5)]),
    "extremes of all": (lambda x, s: (aten.max(x), aten.min(x), *aten.max(s, 0), aten.argmin(s), aten.cumsum(s, 0)), lambda: [f32(4, 5), torch.tensor(2.5)]),
    "distances": (lambda x, y: tuple(aten._cdist_forward(x, y, p, 2) for p in (0.0, 1.0, 2.0, 3.0, 0.5, torch.inf)), lambda: [f32(2, 5, 4), f32(2, 3, 4)]),
    "distances' gradients": (lambda g, x, y: tuple(aten._cdist_backward(g, x, y, p, aten._cdist_forward(x, y, p, 2)) for p in (0.0, 1.0, 2.0, 3.0, 0.5, torch.inf)), lambda: [f32(2, 5, 3), f32(2, 5, 4), f32(2, 3, 4)]),
    "bilinear": (lambda x, w, y: aten._trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3]), lambda: [f32(6, 3), f32(4, 3, 5), f32(6, 5)]),
    "diagonals": (lambda x, s, g: (aten.diagonal(x) * 2, aten.diagonal(x, 1, 0, 2) + 1, aten.diagonal(x, -2, 2, 1) + 1, aten.diagonal_scatter(x, s, 1, 0, 2), aten.diagonal_backward(g, [3, 4, 5], -1, 1, 2)),
                  lambda: [f32(3, 4, 5), f32(4, 3), f32(3, 3)]),
    "windows": (lambda x: (aten.unfold(x, 1, 3, 2) * 2, aten.unfold(x, 0, 2, 1) + 1, aten.unfold(x, -1, 4, 3) + 1), lambda: [f32(3, 7, 8)]),
    "reductions by index": (lambda x, i, s: tuple(aten.scatter_reduce(x, 1, i, s, r, include_self=k) for r in ("sum", "mean", "prod", "amax", "amin") for k in (True, False)), lambda: [f32(4, 9), i64(4, 3, below=9), f32(5, 4)]),
    "reductions of integers by index": (lambda x, i, s: tuple(aten.scatter_reduce(x, 0, i, s, r, include_self=k) for r in ("sum", "amax", "amin") for k in (True, False)), lambda: [i64(6, 4), i64(9, 4, below=6), i64(9, 4) - 5]),
    "reductions of truths by index": (lambda x, i, s: tuple(aten.scatter_reduce(x, 1, i, s, r, include_self=k) for r in ("sum", "prod", "amax", "amin") for k in (True, False)), lambda: [flag(4, 9), i64(4, 20, below=9), flag(4, 20)]),
    "scatters that add and multiply": (lambda x, i, s: (aten.scatter(x, 1, i, s, reduce="add"), aten.scatter(x, 1, i, s, reduce="multiply"), aten.scatter(x, 1, i, 2.5, reduce="multiply")), lambda: [f32(4, 9), i64(4, 5, below=9), f32(4, 6)]),
    "gradients of edges repeated": (lambda g, h, k, x: (aten.replication_pad2d_backward(g, x, [1, 2, 3, 0]), aten.replication_pad1d_backward(h, x[0], [4, -1]), aten.replication_pad3d_backward(k, x, [1, 0, 0, 2, 1, 1])),
                                    lambda: [f32(2, 3, 8, 9), f32(3, 5, 9), f32(2, 5, 7, 7), f32(2, 3, 5, 6)]),
    "reductions of rows by index": (lambda x, i, s: tuple(aten.index_reduce(x, 1, i, s, r, include_self=k) for r in ("mean", "prod", "amax", "amin") for k in (True, False)), lambda: [f32(4, 9), i64(5, below=9), f32(4, 5)]),
    "places of all": (lambda x, i, s: (aten.take(x, i - 20), aten.put(x, i - 20, s), aten.put(x, i, s, True)), lambda: [f32(4, 5), torch.randperm(20)[:6].view(2, 3), f32(2, 3)]),
    "index_fill": (lambda x, i, v: (aten.index_fill(x, 1, i, 2.5), aten.index_fill(x, 0, i - 4, v), aten.index_copy(x, 1, i, x[:, :3])), lambda: [f32(4, 5), torch.tensor([3, 0, 2]), torch.tensor(7.0)]),
    "index_put at several indices": (lambda x, i, j, s: (aten.index_put(x, [i, j - 5], s[0]), aten.index_put(x, [None, i, j], s[:, 0, :3].t()[:1], True), aten.index_put(x, [i[:, None], j], s, True)),
                                     lambda: [f32(4, 5, 6), torch.randperm(4)[:3], torch.randperm(5)[:3], f32(3, 3, 6)]),
    "parts of sources": (lambda x, i, s: (aten.scatter_add(x, 1, i, s), aten.scatter(x, 1, i[:, :1], s), aten.index_add(x, 1, i[0], s[:4, :3], alpha=-2)), lambda: [f32(4, 9), i64(4, 3, below=9), f32(5, 4)]),
    "indices of scalars": (lambda x, i, s: (aten.index_select(x, 0, i), aten.gather(x, 0, i.view([])), aten.scatter_add(x, 0, i.view([]), s), aten.scatter(x, 0, i.view([]), 2.0), aten.index_add(x, 0, i, s),
                           aten.index_fill(x, 0, i, 3.0), aten.scatter_reduce(x, 0, i.view([]), s, "amax"), aten.index_put(s.view([1]), [i - 1], x.view([1]))), lambda: [torch.tensor(1.5), torch.tensor([0]), torch.tensor(2.5)]),
    "masked_scatter of many": (lambda x, m, s, g: (aten.masked_scatter(x, m, s), aten.masked_scatter_backward(g, m, [50, 20])), lambda: [f32(20, 50), flag(20, 50), f32(50, 20), f32(20, 50)]),
    "masked_scatter": (lambda x, m, s, g: (aten.masked_scatter(x, m, s), aten.masked_scatter(x, m[:, :1], s), aten.masked_scatter_backward(g, m, [3, 9])), lambda: [f32(4, 5), flag(4, 5), f32(3, 9), f32(4, 5)]),
    "places among ordered": (lambda t, u, x: (aten.searchsorted(t, x), aten.searchsorted(t, x, right=True, out_int32=True), aten.searchsorted(u, x), aten.searchsorted(u.flip(-1), x, sorter=torch.arange(7, -1, -1).expand(3, 8).contiguous()), aten.searchsorted(t, 0.25), aten.bucketize(x, t), aten.bucketize(x, t, right=True)),
                             lambda: [torch.tensor([-1.0, 0.0, 0.25, 0.25, 2.0]), f32(3, 8).sort(-1)[0], torch.cat([f32(3, 6), torch.full((3, 1), 0.25), torch.full((3, 1), torch.nan)], 1)]),
    "extremes of many by index": (lambda x, i, s, n: tuple(aten.scatter_reduce(t, 1, i, u, r, include_self=k) for t, u in ((x, s), (n, n[:, :70])) for r in ("amax", "amin") for k in (True, False)),
                                  lambda: [torch.cat([f32(3, 100), torch.full((3, 1), torch.nan)], 1), i64(3, 70, below=40), torch.cat([f32(3, 200), torch.full((3, 5), torch.nan)], 1)[:, torch.randperm(205)], i64(3, 100)]),
    "extremes of parts by index": (lambda x, i, s: (aten.scatter_reduce(x, 0, i, s, "amax"), aten.scatter_reduce(x, 1, i, s, "amin", include_self=False)), lambda: [f32(9, 8), i64(4, 5, below=8), f32(6, 7)]),
    "sorts": (lambda x: (*aten.sort.stable(x, stable=True, dim=0, descending=True), aten.median(x), aten.nanmedian(x)), lambda: [f32(4, 9)]),
    "running products": (lambda x, s, n: (aten.cumprod(x, 1), aten.cumprod(x, -2), aten.cumprod(s, 0), aten.cumprod(n, 0), aten.cumprod(x, 0, dtype=torch.float64)),
                         lambda: [f32(3, 7), torch.tensor(1.5), i64(5)]),
    "long scans": (lambda x, n, b: (aten.cumsum(x, 1), aten.cumsum(x.t(), 0), aten.cumsum(n, 0), aten.cumsum(b, 0), aten.cumprod(torch.where(x > 1, x, 1), 1)),
                   lambda: [f32(2, 1000).abs(), i64(20000), flag(257)]),
    "looks at memory": (lambda x: (aten.as_strided(x * 2, [2, 3], [1, 4]) + 1, aten.as_strided((x * 2).t(), [5, 2], [2, 2], 1) + 1, aten.as_strided(x + 1, [3, 0, 2], [1, 1, 1]), aten.as_strided(x, [], [], 7) * 3),
                        lambda: [f32(3, 4)]),
    "writes to memory": (lambda x, y: (aten.as_strided_scatter(x * 2, y, [2, 3], [1, 4]), aten.as_strided_scatter((x * 2).t(), y, [2, 3], [3, 1], 2)), lambda: [f32(3, 4), f32(2, 3)]),
    "distances of pairs": (lambda x: tuple(d for p in (0.0, 1.0, 2.0, 3.0, 0.5, torch.inf) for d in (aten._pdist_forward(x, p), aten._pdist_forward(x[:2], p))), lambda: [f32(7, 4)[[0, 1, 2, 3, 2, 4, 5]]]),
    "gradients of pairs' distances": (lambda g, x: tuple(aten._pdist_backward(g, x, p, aten._pdist_forward(x, p)) for p in (0.0, 1.0, 2.0, 3.0, 0.5, torch.inf)), lambda: [f32(21), f32(7, 4)[[0, 1, 2, 3, 2, 4, 5]]]),
    "filled and cut": (lambda x, v: (aten.fill(x, v), *aten.unsafe_split(x, 2, 1), *aten.unsafe_split_with_sizes(x, [1, 2]), aten.true_divide(x, v)), lambda: [f32(3, 5), torch.tensor(2.5)]),
    "writes along dims that stand apart": (lambda x, i, j, v: (aten.index_put(x, [i, None, j], v), aten.index_put(x, [None, i, None, j], v[:, :, :4, :6], True)), lambda: [f32(4, 5, 6, 7), torch.tensor([0, -1, 2]), torch.tensor([[3], [5]]), f32(2, 3, 5, 7)]),
    "segments": (lambda x, n: tuple(aten.segment_reduce(x, how, lengths=n, initial=first) for how in ("sum", "mean", "max", "min") for first in (None, 0.5)), lambda: [f32(9, 4), torch.tensor([3, 0, 5, 1])]),
    "segments between places": (lambda x, n: tuple(aten.segment_reduce(x, how, offsets=n) for how in ("sum", "mean", "max", "min")), lambda: [f32(9), torch.tensor([1, 3, 7], dtype=torch.int32)]),
    "gradients of segments": (lambda g, x, n: tuple(aten._segment_reduce_backward(g, aten.segment_reduce(x, how, lengths=n), x, how, lengths=n) for how in ("sum", "mean", "max", "min")), lambda: [f32(4, 3), f32(9, 3).round(), torch.tensor([3, 0, 5, 1])]),
    "histograms": (lambda x: (aten.histc(x, 7, -1, 2), aten.histc(x * 3, 4, 0, 3), aten.histc(x.round(), 3, 0, 2)), lambda: [torch.cat([torch.randn(50).to(torch.float32), torch.tensor([torch.nan, torch.inf, -1.0, 2.0])])]),
    "sign of truths": (of_one("sgn"), lambda: [flag(9)]),
    **{f"bags {mode} {padding}": (bags(mode, padding), lambda: [f32(7, 5), i64(12, below=7), torch.tensor([0, 3, 3, 9, 12])]) for mode in (0, 1, 2) for padding in (-1, 2)},
    "bags of scaled rows": (lambda w, i, o, s: (aten._embedding_bag(w, i, o, False, 0, False, s)[0], aten._embedding_bag(w, i, o, False, 0, False, s, False, 3)[0]),
                            lambda: [f32(7, 5), i64(12, below=7), torch.tensor([0, 3, 3, 9]), f32(12)]),
    **{f"gradients of bags {mode}": (gradients_of_bags(mode), lambda: [f32(4, 5), f32(7, 5), i64(12, below=7), torch.tensor([0, 3, 3, 9])]) for mode in (0, 1, 2)},
    "gradients of scales": (lambda g, w, i, o, s: (aten._embedding_bag_per_sample_weights_backward(g, w, i, o, aten._embedding_bag(w, i, o, False, 0, False, s, False, 2)[1], 0, 2),
                            aten._embedding_bag_backward(g, i, o, *aten._embedding_bag(w, i, o, False, 0, False, s)[1:], 7, False, 0, False, s, -1)),
                            lambda: [f32(4, 5), f32(7, 5), i64(12, below=7), torch.tensor([0, 3, 3, 9]), f32(12)]),
    **{f"resizing {o}": resizing(*o) for name in ("bilinear", "bicubic") for o in ((name, 5, 17, False), (name, 1, 6, True), (name, 13, 6, False, 1.5, 0.8))},
    **{f"sampling {o}": (sampling(*o), lambda: [f32(2, 3, 4, 2), f32(2, 3, 5, 6), f32(2, 4, 2, 2) * 1.5]) for o in (*SAMPLINGS, *itertools.product((2,), (0, 1, 2), (False, True)))},
    "sampling of which one gradient is wanted": (lambda g, x, points: (aten.grid_sampler_2d_backward(g, x, points, 0, 0, False, [True, False])[0],
        aten.grid_sampler_2d_backward(g, x, points, 0, 0, False, [False, True])[1]), lambda: [f32(2, 3, 4, 2), f32(2, 3, 5, 6), f32(2, 4, 2, 2)]),
    **{f"sampling of volumes {o}": (sampling_of_volumes(*o), lambda: [f32(2, 3, 4, 2, 3), f32(2, 3, 5, 6, 4), f32(2, 4, 2, 3, 3) * 1.5]) for o in SAMPLINGS},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_row_agrees_with_torch(name):
    function, inputs = CASES[name]
    got, expected, stats = compiled(function, *inputs())
    assert_close(got, expected, factor=4)
    assert stats["fallback_ops"] == {} and stats["graphs_eager"] == stats["checks_failed"] == 0


HEADS = [(2, 4, 4), (1, 4, 2)]
OPTIONS = [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": "float"}, {"attn_mask": "bool"}]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scale_of_inputs", [1.0, 8.0])
def test_attention_and_its_gradients_agree_with_the_formula_in_f64(heads, options, scale_of_inputs):
    # The trap: tables of decompositions that open the forward but keep the fused backward give wrong gradients at
    # large scores, silently.
    batch, query_heads, kv_heads = heads
    q = torch.randn(batch, query_heads, 9, 16) * scale_of_inputs
    k, v = (torch.randn(batch, kv_heads, 9, 16) * scale_of_inputs for _ in range(2))
    mask = {"float": torch.randn(9, 9), "bool": torch.rand(9, 9) < 0.7}.get(options.get("attn_mask"))
    if mask is not None and mask.dtype == torch.bool:
        mask.fill_diagonal_(True)
    options = {name: value for name, value in options.items() if name != "attn_mask"}

    def step(q, k, v, *masks):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        out = torch.nn.functional.scaled_dot_product_attention(
            *leaves, *masks, **options, enable_gqa=query_heads != kv_heads)
        return (out.detach(), *torch.autograd.grad(out.square().sum(), leaves))

    expected = formula(*(t.double() for t in (q, k, v)), mask, **options)
    got, _, stats = compiled(step, q, k, v, *([] if mask is None else [mask]))
    assert stats["fallback_ops"] == {}
    # Scores grow with the square of the inputs, and their rounding is the error of every probability.
    tolerance = 1e-5 + 3e-6 * scale_of_inputs**2
    for g, e in zip(got, expected):
        assert (g.double() - e).abs().max() <= tolerance * e.abs().max()


def formula(q, k, v, attn_mask=None, is_causal=False, scale=None):
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    keys, values = (t.repeat_interleave(group, 1) for t in leaves[1:])
    score = leaves[0] @ keys.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if is_causal:
        score = score.masked_fill(torch.ones(score.shape[-2:]).tril() == 0, -torch.inf)
    if attn_mask is not None:
        score = score.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else score + attn_mask
    out = score.softmax(-1) @ values
    return (out.detach(), *torch.autograd.grad(out.square().sum(), leaves))


def test_an_index_out_of_range_is_torchs_own_error():
    weight = torch.randn(10, 4)
    run = compile_graph(captured(lambda w, i: (aten.embedding(w, i),), weight, torch.tensor([1, 2])), ())
    assert torch.equal(run([weight, torch.tensor([3, 9])])[0], weight[[3, 9]])
    with pytest.raises(IndexError, match="index out of range in self"):
        run([weight, torch.tensor([3, 10])])


def test_one_of_several_indices_out_of_range_is_torchs_own_error():
    x, i, j = torch.randn(3, 4, 5), torch.tensor([0, 2]), torch.tensor([3, -4])
    run = compile_graph(captured(lambda x, i, j: (aten.index(x, [i, j]),), x, i, j), ())
    assert torch.equal(run([x, i, j])[0], x[i, j])
    for bad in ([x, torch.tensor([0, 3]), j], [x, torch.tensor([-4, 0]), j], [x, i, torch.tensor([4, 0])], [x, i, torch.tensor([0, -5])]):
        with pytest.raises(IndexError, match="out of bounds"):
            run(bad)


def test_no_row_is_registered_for_an_op_that_mutates():
    for target in ROWS:
        assert not getattr(getattr(target, "_schema", None), "is_mutable", False), target
