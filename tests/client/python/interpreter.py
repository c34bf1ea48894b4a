"""Runs Kiln's text form with torch, op by op as docs/ops.md defines them: what the importer's graphs mean, checked without
libkiln. A Program here behaves as the extension's does."""

import re

import torch
import torch.nn.functional as F

DTYPES = {"bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i32": torch.int32, "i64": torch.int64,
          "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}  # fmt: skip


def _elementwise(function):
    return lambda *operands, **attributes: function(*operands, **attributes)


def _reduce(function):
    def run(x, dims, keep_dims=False, **more):
        for dim in sorted(dims, reverse=True):
            x = function(x, dim, keep_dims, **more)
        return x

    return run


def _slice(x, dim, start=0, end=None, step=1):
    assert 0 <= start <= end <= x.shape[dim]
    return x.narrow(dim, start, end - start)[(slice(None),) * dim + (slice(None, None, step),)]


def _slice_scatter(x, source, dim, start=0, end=None, step=1):
    result = x.clone()
    _slice(result, dim, start, end, step).copy_(source)
    return result


def _pad(x, low, high, value=0.0):
    return F.pad(x, [w for pair in reversed(list(zip(low, high))) for w in pair], value=value)


def _attention(q, k, v, bias=None, *, causal=False, causal_offset=0, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    score = q @ k.transpose(-1, -2) * scale
    if bias is not None:
        score = score + bias
    if causal:
        keep = torch.arange(k.shape[2]) <= torch.arange(q.shape[2])[:, None] + causal_offset
        score = score.masked_fill(~keep, -torch.inf)
    return score.softmax(-1) @ v, score.logsumexp(-1)


def _attention_of_scores(score, v, *, causal=False, causal_offset=0):
    if causal:
        score = score.masked_fill(torch.ones_like(score).tril(causal_offset) == 0, -torch.inf)
    return score.softmax(-1) @ v.repeat_interleave(score.shape[1] // v.shape[1], 1), score.logsumexp(-1)


def _attention_backward(grad, q, k, v, out, lse, bias=None, **attributes):
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        result, _ = _attention(*leaves, bias, **attributes)
        return torch.autograd.grad(result, leaves, grad)


def _layer_norm(x, weight=None, bias=None, *, normalized_rank, eps):
    return _with_statistics(torch.native_layer_norm(x, x.shape[x.dim() - normalized_rank :], weight, bias, eps))


def _with_statistics(results):
    """Statistics of halves are f32."""
    y, *statistics = results
    return y, *(s.float() if s.dtype in (torch.float16, torch.bfloat16) else s for s in statistics)


def _layer_norm_backward(grad, x, mean, rstd, weight=None, *, normalized_rank):
    shape = x.shape[x.dim() - normalized_rank :]
    some = torch.ones(shape, dtype=x.dtype) if weight is None else weight
    mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
    return torch.ops.aten.native_layer_norm_backward(grad, x, shape, mean, rstd, some, torch.zeros_like(some), [True] * 3)


def _reduction(name):
    return ("none", "mean", "sum").index(name)


def _embedding_backward(grad, indices, rows, padding_idx=-1):
    return torch.ops.aten.embedding_dense_backward(grad, indices, rows, padding_idx, False)


def _take(x, indices, dim):
    assert ((0 <= indices) & (indices < x.shape[dim])).all(), "an index out of range"
    return x.index_select(dim, indices.reshape(-1)).reshape(x.shape[:dim] + indices.shape + x.shape[dim + 1 :])


def _index_add(x, indices, source, dim):
    source = source.reshape(x.shape[:dim] + (-1,) + x.shape[dim + 1 :])
    return x.index_add(dim, indices.reshape(-1), source)


def _iota(shape, dim, start=0, step=1, dtype=None):
    row = (start + step * torch.arange(shape[dim], dtype=torch.float64)).to(dtype)
    return row.reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)


def _philox(key, counter):
    def word(key, counter):
        x, y, key = counter % 2**32, (counter >> 32) ^ (key >> 32), key % 2**32
        for i in range(10):
            high, low = divmod(x * 0xD256D193, 2**32)
            x, y = high ^ ((key + i * 0x9E3779B9) % 2**32) ^ y, low
        return x

    key, counter = torch.broadcast_tensors(key, counter)
    words = [word(k, c) for k, c in zip(key.flatten().tolist(), counter.flatten().tolist())]
    return torch.tensor(words).reshape(key.shape)


def _clamp(x, min=None, max=None):
    return x.clamp(min if min is None or x.is_floating_point() else int(min), max if max is None or x.is_floating_point() else int(max))


def _grouped_matmul(a, b, ends):
    are_rows = b.dim() == 3
    groups = torch.searchsorted(ends.cummax(0).values, torch.arange(a.shape[0 if are_rows else 1]), right=True)
    belongs = F.one_hot(groups, len(ends) + 1)[:, :-1].double()
    return torch.einsum("tk,gkn,tg->tn" if are_rows else "mt,tn,tg->gmn", a.double(), b.double(), belongs).to(a.dtype)


def _window(x, kernel, stride, dilation):
    outer, rank = x.dim() - len(kernel), len(kernel)
    for dim, (extent, step, apart) in enumerate(zip(kernel, stride, dilation)):
        x = x.unfold(outer + dim, apart * (extent - 1) + 1, step)[..., ::apart]
    return x.permute(*range(outer), *range(outer + rank, outer + 2 * rank), *range(outer, outer + rank))


def _convolution(x, weight, stride, padding, dilation, groups=1):
    return torch.ops.aten.convolution(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


def _convolution_backward(which, make_shape):
    """Of one operand; the other one's values do not matter."""

    def run(grad, other, stride, padding, dilation, groups=1, **extents):
        missing = grad.new_zeros(make_shape(grad, other, groups, *extents.values()))
        x, weight = (missing, other) if which == 0 else (other, missing)
        mask = [which == 0, which == 1, False]
        return torch.ops.aten.convolution_backward(
            grad, x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups, mask)[which]

    return run


OPS = {
    **{n: getattr(torch, n) for n in ("neg abs sign exp expm1 log log1p sqrt rsqrt reciprocal sin cos tanh erf sigmoid "
       "floor ceil round trunc logical_not bitwise_not add sub mul div remainder fmod pow atan2 minimum maximum eq ne lt le "
       "gt ge bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor tril triu matmul").split()},
    **{n: _reduce(getattr(torch, n)) for n in ("sum", "prod", "amax", "amin", "any", "all", "mean")},
    "philox": _philox,
    "is_nan": torch.isnan, "is_inf": torch.isinf, "floor_div": torch.floor_divide, "select": torch.where,
    "cast": lambda x, dtype: x.to(dtype),
    "reshape": lambda x, shape: x.reshape(shape), "permute": lambda x, dims: x.permute(dims),
    "expand": lambda x, shape: x.expand(shape), "slice": _slice, "flip": lambda x, dims: x.flip(dims),
    "full": lambda shape, value, dtype: torch.full(shape, value, dtype=torch.float64).to(dtype), "iota": _iota,
    "take": _take, "index_add": _index_add, "index_select": _take,
    "gather": lambda x, i, dim: x.gather(dim, i), "scatter": lambda x, i, s, dim: x.scatter(dim, i, s),
    "scatter_add": lambda x, i, s, dim: x.scatter_add(dim, i, s),
    "concat": lambda *xs, dim: torch.cat(xs, dim), "stack": lambda *xs, dim: torch.stack(xs, dim), "pad": _pad,
    "slice_scatter": _slice_scatter, "cumsum": lambda x, dim: x.cumsum(dim),
    "argsort": lambda x, dim, descending=False: x.sort(stable=True, dim=dim, descending=descending)[1],
    "topk": lambda x, dim, k, descending=True, sorted=True: torch.topk(x, k, dim, descending, sorted)[1],
    "argmax": lambda x, dim, keep_dims=False: x.argmax(dim, keep_dims),
    "argmin": lambda x, dim, keep_dims=False: x.argmin(dim, keep_dims),
    "relu": torch.relu, "silu": F.silu, "mish": F.mish, "hard_swish": F.hardswish, "hard_sigmoid": F.hardsigmoid,
    "gelu": F.gelu, "gelu_backward": torch.ops.aten.gelu_backward, "silu_backward": torch.ops.aten.silu_backward,
    "tanh_backward": torch.ops.aten.tanh_backward, "sigmoid_backward": torch.ops.aten.sigmoid_backward,
    "relu_backward": lambda g, x: torch.where(x > 0, g, 0),
    "softplus": F.softplus, "elu": F.elu, "leaky_relu": lambda x, slope: F.leaky_relu(x, slope), "clamp": _clamp,
    "pow_scalar": lambda x, exponent: x.pow(exponent), "dropout_apply": lambda x, mask, scale: x * mask * scale,
    "var": lambda x, dims, correction=1, keep_dims=False: x.var(dims, correction=correction, keepdim=keep_dims),
    "norm2": lambda x, dims, keep_dims=False: torch.linalg.vector_norm(x, 2, dims, keep_dims),
    "logsumexp": lambda x, dims, keep_dims=False: x.logsumexp(dims, keep_dims),
    "embedding": lambda w, i, padding_idx=-1: F.embedding(i, w), "embedding_backward": _embedding_backward,
    "addmm": lambda c, a, b, alpha=1, beta=1: alpha * (a @ b) + beta * c,
    "grouped_matmul": _grouped_matmul, "window": _window, "convolution": _convolution,
    "convolution_backward_input": _convolution_backward(0, lambda g, w, groups, extents: (g.shape[0], w.shape[1] * groups, *extents)),
    "convolution_backward_weight": _convolution_backward(1, lambda g, x, groups, kernel: (g.shape[1], x.shape[1] // groups, *kernel)),
    "softmax": lambda x, dim: x.softmax(dim), "log_softmax": lambda x, dim: x.log_softmax(dim),
    "softmax_backward": lambda g, o, dim: (g - (g * o).sum(dim, True)) * o,
    "log_softmax_backward": lambda g, o, dim: g - o.exp() * g.sum(dim, True),
    "layer_norm": _layer_norm, "layer_norm_backward": _layer_norm_backward,
    "group_norm": lambda x, w=None, b=None, *, groups, eps: _with_statistics(torch.native_group_norm(
        x, w, b, x.shape[0], x.shape[1], x[0, 0].numel(), groups, eps)),
    "batch_norm": lambda x, w, b, mean, var, eps: F.batch_norm(x, mean, var, w, b, False, 0.0, eps),
    "nll_loss": lambda x, t, reduction, ignore_index: torch.ops.aten.nll_loss_forward(x, t, None, _reduction(reduction), ignore_index),
    "nll_loss_backward": lambda g, x, t, total, reduction, ignore_index: torch.ops.aten.nll_loss_backward(
        g, x, t, None, _reduction(reduction), ignore_index, total),
    "mse_loss": lambda a, b, reduction: F.mse_loss(a, b, reduction=reduction),
    "attention": _attention, "attention_backward": _attention_backward, "attention_of_scores": _attention_of_scores,
    "attention_scores": lambda q, k, scale: q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2) * scale,
}  # fmt: skip

NODE = re.compile(r"  (.+?) = (\w+)\((.*?)\)(?: \{(.*)\})?$")
RESULT = re.compile(r"(%\w+)(?:: (\w+)\[([^\]]*)\])?")
OUTPUT = re.compile(r"(%\w+)(?: \{([\d, ]*)\})?")


def read_attribute(text):
    if text in DTYPES:
        return DTYPES[text]
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("["):
        return tuple(int(i) for i in text[1:-1].split(", ") if i)
    return eval(text, {"inf": float("inf"), "nan": float("nan")})  # noqa: S307: our own text


class Program:
    """Interprets one graph; checks what the extension would check."""

    def __init__(self, text, inputs, outputs, place, symbol_values=()):
        text = bind(text, symbol_values)
        self.text, self.inputs, self.outputs = text, inputs, outputs
        head, *self.lines = text.strip().split("\n")
        self.names = re.findall(r"(%in\d+):", head)
        assert len(self.names) == len(inputs)

    def __call__(self, tensors):
        values = dict(zip(self.names, tensors, strict=True))
        for tensor, (dtype, shape, strides) in zip(tensors, self.inputs):
            assert tensor.dtype == DTYPES[dtype] and tuple(tensor.shape) == shape, "an input of another type"
        values = {n: t.detach() for n, t in values.items()}
        with torch.no_grad():
            for line in self.lines[:-2]:
                self._run(line, values)
        results = [values[name] for name, _ in OUTPUT.findall(self.lines[-2])]
        return [self._lay_out(v, layout) for v, layout in zip(results, self.outputs, strict=True)]

    def _run(self, line, values):
        results, op, operands, attributes = NODE.match(line).groups()
        operands = [values.get(o) for o in operands.split(", ") if o]
        pairs = [a.split(" = ", 1) for a in re.split(r", (?=\w+ = )", attributes)] if attributes else []
        outcome = OPS[op](*operands, **{name: read_attribute(value) for name, value in pairs})
        found = RESULT.findall(results)
        for (name, dtype, shape), value in zip(found, outcome if len(found) > 1 else [outcome]):
            assert not dtype or (value.dtype, list(value.shape)) == (DTYPES[dtype], [int(d) for d in shape.split(", ") if d])
            values[name] = value

    @staticmethod
    def _lay_out(value, layout):
        dtype, shape, strides = layout
        assert value.dtype == DTYPES[dtype] and tuple(value.shape) == shape, f"{value.dtype}{list(value.shape)} is not {layout}"
        return torch.empty_strided(shape, strides, dtype=value.dtype).copy_(value)


def bind(text, values):
    """The text with numbers for its symbols."""
    found = re.search(r" symbols\(([^)]*)\)", text)
    if found is None:
        assert not values
        return text
    symbols = dict(zip(found[1].split(", "), values, strict=True))
    text = text.replace(found[0], "")
    dim = re.compile(rf"(?<=[\[{{ ])[\w*+ ]*\b(?:{'|'.join(symbols)})\b[\w*+ ]*")
    return dim.sub(lambda m: " " * m[0].startswith(" ") + str(eval(m[0], symbols.copy())), text)  # noqa: S307


def create_program(text, inputs, outputs, place, symbol_values=()):
    return Program(text, inputs, outputs, place, symbol_values)
