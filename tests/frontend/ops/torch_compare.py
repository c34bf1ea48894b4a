"""Compares the reference of every row with torch in f64, on the samples of samples.cc.

Usage: torch_compare.py SAMPLE_TOOL. Exits 77, which CTest counts as skipped, when this Python has no torch.
A row that torch has no op for is in WITHOUT_TORCH with the reason; a row in neither table fails.
"""

import json
import math
import subprocess
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {sys.executable} has no torch ({error})")
    sys.exit(77)

aten = torch.ops.aten

DTYPES = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i32": torch.int32, "i64": torch.int64,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
}
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def tensor_of(described):
    if described is None:
        return None
    values = [float(v) for v in described["values"]]
    return torch.tensor(values, dtype=torch.float64).to(DTYPES[described["dtype"]]).reshape(described["dims"])


def same_name(*names):
    return {name: (lambda a, *xs, f=getattr(torch, name): f(*xs)) for name in names}


def over_dims(function):
    return lambda a, x: function(x, a["dims"], a["keep_dims"])


def reduce_each(function):
    """Torch reductions that take one dim at a time."""
    def reduce(a, x):
        for dim in sorted(a["dims"], reverse=True):
            x = function(x, dim, a["keep_dims"])
        return x
    return reduce


def clamp(a, x):
    number = float if x.is_floating_point() else int  # a float bound would make torch promote
    return torch.clamp(x, *(number(a[side]) if side in a else None for side in ("min", "max")))


def scaled(factor, x):
    return x * (factor if x.is_floating_point() else int(factor))


def pad(a, x):
    widths = []
    for low, high in reversed(list(zip(a["low"], a["high"]))):
        widths += [low, high]
    return F.pad(x, widths, value=a["value"])


def iota(a):
    shape = [1] * len(a["shape"])
    shape[a["dim"]] = -1
    line = a["start"] + a["step"] * torch.arange(a["shape"][a["dim"]], dtype=torch.float64)
    return line.to(DTYPES[a["dtype"]]).reshape(shape).expand(a["shape"])


def take(a, x, indices):
    return x[(slice(None),) * a["dim"] + (indices,)]


def index_add(a, x, indices, source):
    dim, rank = a["dim"], indices.dim()
    rows = source.movedim(list(range(dim, dim + rank)), list(range(rank)))
    return x.movedim(dim, 0).clone().index_put_((indices,), rows, accumulate=True).movedim(0, dim)


def normalized_shape(a, x):
    return list(x.shape[x.dim() - a["normalized_rank"]:])


def layer_norm_backward(a, grad, x, mean, rstd, weight):
    shape = normalized_shape(a, x)
    # Torch leaves the weight's gradient out where there is no weight: ones give it, and change nothing else.
    weight = torch.ones(shape, dtype=x.dtype) if weight is None else weight
    return aten.native_layer_norm_backward(grad, x, shape, mean, rstd, weight, torch.zeros_like(weight), [True] * 3)


def rms_norm(a, x, weight):
    shape = normalized_shape(a, x)
    dims = list(range(x.dim() - len(shape), x.dim()))
    rstd = (x.square().mean(dims, keepdim=True) + a["eps"]).rsqrt()
    return F.rms_norm(x, shape, weight, a["eps"]), rstd


def group_norm(a, x, weight, bias):
    n, c = x.shape[:2]
    return aten.native_group_norm(x, weight, bias, n, c, x.numel() // (n * c), a["groups"], a["eps"])


def attention_mask(a, q, k, bias):
    mask = torch.zeros(q.shape[-2], k.shape[-2], dtype=q.dtype)
    if a["causal"]:
        mask.masked_fill_(torch.ones_like(mask).tril(a["causal_offset"]) == 0, -math.inf)
    return mask if bias is None else mask + bias


def window(a, x):
    rank = len(a["kernel"])
    for kernel, stride, dilation, dim in zip(a["kernel"], a["stride"], a["dilation"], range(x.dim() - rank, x.dim())):
        x = x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    outer = x.dim() - 2 * rank
    return x.permute(*range(outer), *range(outer + rank, x.dim()), *range(outer, outer + rank))


def convolution_arguments(a):
    return a["stride"], a["padding"], a["dilation"], False, [0] * len(a["stride"]), a["groups"]


def convolution(a, x, w):
    return aten.convolution(x, w, None, *convolution_arguments(a))


def convolution_backward_input(a, g, w):
    x = g.new_zeros(g.shape[0], w.shape[1] * a["groups"], *a["extents"])
    return aten.convolution_backward(g, x, w, None, *convolution_arguments(a), [True, False, False])[0]


def convolution_backward_weight(a, g, x):
    w = g.new_zeros(g.shape[1], x.shape[1] // a["groups"], *a["kernel"])
    return aten.convolution_backward(g, x, w, None, *convolution_arguments(a), [False, True, False])[1]


def attention(a, q, k, v, bias):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    mask = attention_mask(a, q, k, bias)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=a["scale"])
    return out, torch.logsumexp(q @ k.transpose(-1, -2) * a["scale"] + mask, -1)


def attention_scores(a, q, k):
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2) * a["scale"]


def attention_of_scores(a, scores, v):
    if a["causal"]:
        scores = scores.masked_fill(torch.ones_like(scores).tril(a["causal_offset"]) == 0, -math.inf)
    return scores.softmax(-1) @ v.repeat_interleave(scores.shape[1] // v.shape[1], 1), scores.logsumexp(-1)


def attention_backward(a, grad, q, k, v, out, lse, bias):
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    return torch.autograd.grad(attention(a, q, k, v, bias)[0], (q, k, v), grad)


def grouped_matmul(a, x, y, ends):
    are_rows = y.dim() == 3
    groups = torch.searchsorted(ends.cummax(0).values, torch.arange(x.shape[0 if are_rows else 1]), right=True)
    belongs = F.one_hot(groups, len(ends) + 1)[:, :-1].to(x.dtype)
    return torch.einsum("tk,gkn,tg->tn" if are_rows else "mt,tn,tg->gmn", x, y, belongs)


def nll(a, log_probs, target):
    return aten.nll_loss_forward(log_probs, target, None, REDUCTIONS[a["reduction"]], a["ignore_index"])


def nll_backward(a, grad, log_probs, target, total_weight):
    reduction = REDUCTIONS[a["reduction"]]
    return aten.nll_loss_backward(grad, log_probs, target, None, reduction, a["ignore_index"], total_weight)


WITH_TORCH = {
    **same_name("neg", "abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
                "tanh", "erf", "sigmoid", "floor", "ceil", "round", "trunc", "logical_not", "bitwise_not", "add",
                "sub", "mul", "div", "remainder", "fmod", "pow", "atan2", "minimum", "maximum", "eq", "ne", "lt",
                "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or",
                "logical_xor", "relu", "matmul"),
    "is_nan": lambda a, x: torch.isnan(x),
    "is_inf": lambda a, x: torch.isinf(x),
    "floor_div": lambda a, x, y: torch.floor_divide(x, y),
    "select": lambda a, c, x, y: torch.where(c, x, y),
    "cast": lambda a, x: x.to(DTYPES[a["dtype"]]),
    "relu_backward": lambda a, g, x: aten.threshold_backward(g, x, 0),
    "gelu": lambda a, x: F.gelu(x, approximate=a["approximate"]),
    "gelu_backward": lambda a, g, x: aten.gelu_backward(g, x, approximate=a["approximate"]),
    "silu": lambda a, x: F.silu(x),
    "silu_backward": lambda a, g, x: aten.silu_backward(g, x),
    "tanh_backward": lambda a, g, y: aten.tanh_backward(g, y),
    "sigmoid_backward": lambda a, g, y: aten.sigmoid_backward(g, y),
    "softplus": lambda a, x: F.softplus(x, a["beta"], a["threshold"]),
    "elu": lambda a, x: F.elu(x, a["alpha"]),
    "leaky_relu": lambda a, x: F.leaky_relu(x, a["slope"]),
    "hard_sigmoid": lambda a, x: F.hardsigmoid(x),
    "hard_swish": lambda a, x: F.hardswish(x),
    "log_sigmoid": lambda a, x: F.logsigmoid(x),
    "mish": lambda a, x: F.mish(x),
    "clamp": clamp,
    "pow_scalar": lambda a, x: torch.pow(x, a["exponent"]),
    "dropout_apply": lambda a, x, mask: aten.native_dropout_backward(x, mask, a["scale"]),
    "sum": over_dims(torch.sum), "amax": over_dims(torch.amax), "amin": over_dims(torch.amin),
    "mean": over_dims(torch.mean), "logsumexp": over_dims(torch.logsumexp),
    "any": over_dims(torch.any), "all": over_dims(torch.all), "prod": reduce_each(torch.prod),
    "var": lambda a, x: torch.var(x, a["dims"], correction=a["correction"], keepdim=a["keep_dims"]),
    "norm2": lambda a, x: torch.linalg.vector_norm(x, 2, a["dims"], a["keep_dims"]),
    "cumsum": lambda a, x: torch.cumsum(x, a["dim"]),
    "argsort": lambda a, x: torch.argsort(x, stable=True, dim=a["dim"], descending=a["descending"]),
    "topk": lambda a, x: torch.topk(x, a["k"], a["dim"], a["descending"], a["sorted"])[1],
    "argmax": lambda a, x: torch.argmax(x, a["dim"], a["keep_dims"]),
    "argmin": lambda a, x: torch.argmin(x, a["dim"], a["keep_dims"]),
    "reshape": lambda a, x: x.reshape(a["shape"]),
    "permute": lambda a, x: x.permute(a["dims"]),
    "expand": lambda a, x: x.expand(a["shape"]),
    "slice": lambda a, x: aten.slice(x, a["dim"], a["start"], a["end"], a["step"]),
    "flip": lambda a, x: torch.flip(x, a["dims"]),
    "window": window,
    "full": lambda a: torch.full(a["shape"], a["value"], dtype=DTYPES[a["dtype"]]),
    "iota": iota,
    "take": take,
    "index_select": lambda a, x, i: torch.index_select(x, a["dim"], i),
    "index_add": index_add,
    "gather": lambda a, x, i: torch.gather(x, a["dim"], i),
    "scatter": lambda a, x, i, s: torch.scatter(x, a["dim"], i, s),
    "scatter_add": lambda a, x, i, s: torch.scatter_add(x, a["dim"], i, s),
    "embedding": lambda a, w, i: F.embedding(i, w),
    "embedding_backward": lambda a, g, i: aten.embedding_dense_backward(g, i, a["rows"], a["padding_idx"], False),
    "concat": lambda a, *xs: torch.cat(xs, a["dim"]),
    "stack": lambda a, *xs: torch.stack(xs, a["dim"]),
    "pad": pad,
    "slice_scatter": lambda a, x, s: torch.slice_scatter(x, s, a["dim"], a["start"], a["end"], a["step"]),
    "select_scatter": lambda a, x, s: torch.select_scatter(x, s, a["dim"], a["index"]),
    "tril": lambda a, x: torch.tril(x, a["diagonal"]),
    "triu": lambda a, x: torch.triu(x, a["diagonal"]),
    "addmm": lambda a, b, x, y: scaled(a["alpha"], x @ y) + scaled(a["beta"], b),
    "grouped_matmul": grouped_matmul,
    "convolution": convolution,
    "convolution_backward_input": convolution_backward_input,
    "convolution_backward_weight": convolution_backward_weight,
    "softmax": lambda a, x: torch.softmax(x, a["dim"]),
    "log_softmax": lambda a, x: torch.log_softmax(x, a["dim"]),
    "softmax_backward": lambda a, g, y: aten._softmax_backward_data(g, y, a["dim"], g.dtype),
    "log_softmax_backward": lambda a, g, y: aten._log_softmax_backward_data(g, y, a["dim"], g.dtype),
    "layer_norm": lambda a, x, w, b: aten.native_layer_norm(x, normalized_shape(a, x), w, b, a["eps"]),
    "layer_norm_backward": layer_norm_backward,
    "rms_norm": rms_norm,
    "batch_norm": lambda a, x, w, b, m, v: F.batch_norm(x, m, v, w, b, eps=a["eps"]),
    "group_norm": group_norm,
    "nll_loss": nll,
    "nll_loss_backward": nll_backward,
    "cross_entropy": lambda a, x, t: F.cross_entropy(x, t, reduction=a["reduction"], ignore_index=a["ignore_index"]),
    "mse_loss": lambda a, x, y: F.mse_loss(x, y, reduction=a["reduction"]),
    "attention": attention,
    "attention_scores": attention_scores,
    "attention_of_scores": attention_of_scores,
    "attention_backward": attention_backward,  # the samples' out and lse are those of the same attention
}

WITHOUT_TORCH = {
    "extent": "a symbolic dim as a tensor",
    "philox": "torch draws by another generator; philox_test.cc has known answers",
}


def check(name, got, expected):
    """An empty string, or what differs."""
    if list(got.shape) != list(expected.shape):
        return f"{name}: shape {list(got.shape)}, torch has {list(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"{name}: dtype {got.dtype}, torch has {expected.dtype}"
    if torch.allclose(got.double(), expected.double(), rtol=1e-11, atol=1e-12, equal_nan=True):
        return ""
    return f"{name}: differs by up to {(got.double() - expected.double()).abs().max().item()}"


def compare(sample):
    operands = [tensor_of(t) for t in sample["operands"]]
    results = WITH_TORCH[sample["op"]](sample["attributes"], *operands)
    results = results if isinstance(results, (tuple, list)) else [results]
    ours = [tensor_of(t) for t in sample["results"]]
    if len(ours) != len(results):
        return [f"{sample['op']}: {len(ours)} results, torch has {len(results)}"]
    return [check(f"{sample['op']} {sample['attributes']} result {i}", mine, torchs)
            for i, (mine, torchs) in enumerate(zip(ours, results))]


def main(tool):
    lines = subprocess.run([tool], capture_output=True, text=True, check=True).stdout.splitlines()
    samples = [json.loads(line) for line in lines]
    failures, compared = [], 0
    for sample in samples:
        if sample["op"] in WITHOUT_TORCH:
            continue
        if sample["op"] not in WITH_TORCH:
            failures.append(f"{sample['op']}: neither compared nor said why not")
            continue
        try:
            failures += [failure for failure in compare(sample) if failure]
        except Exception as error:  # one row must not hide the others
            failures.append(f"{sample['op']} {sample['attributes']}: {type(error).__name__}: {error}")
        compared += 1
    for failure in failures:
        print(failure)
    print(f"{compared} samples compared with torch {torch.__version__}, {len(failures)} differences")
    return 1 if failures or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
