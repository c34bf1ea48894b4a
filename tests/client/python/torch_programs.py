"""Random torch programs as sources: what torch_fuzz.py runs. function_source(seed) and module_source(seed) give the same text
for a seed in every process; read(source) defines what is in it. Seeds from WIDE_SEED on draw dtypes, attention, casts, lazy
bits and hooks, too; those below keep the programs that records of runs name."""

from __future__ import annotations

import hashlib
import linecache
import random
import sys
import types

import alike
import torch

MOST_STATEMENTS, MOST_ELEMENTS = 14, 4000
WIDE_SEED = 1_000_000

UNARY = ["torch.tanh({a})", "torch.relu({a})", "F.gelu({a})", "torch.sigmoid({a})", "F.silu({a})", "-{a}", "{a}.abs()",
         "torch.exp(-{a}.abs())", "{a} * 2.5", "{a} - 0.5", "{a} / 3", "torch.sqrt({a}.abs() + 1)", "{a}.clamp(-1, 1)",
         "{a} ** 2", "F.softplus({a})", "{a}.sin()", "torch.where({a} > 0, {a}, {a} * 0.1)", "F.leaky_relu({a}, 0.2)",
         "torch.zeros_like({a}) + {a}.mean()", "F.hardswish({a})", "{a}.detach() * {a}", "torch.log1p({a}.abs())"]  # fmt: skip
BINARY = ["{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b}.abs() + 1)", "torch.maximum({a}, {b})", "{a} @ {b}",
          "torch.where({a} > {b}, {a}, {b})", "{a}.lerp({b}, 0.3)", "torch.addcmul({a}, {a}, {b}, value=0.5)",
          "torch.outer({a}.reshape(-1)[:7], {b}.reshape(-1)[:5])", "torch.cat([{a}, {b}], {d})", "torch.stack([{a}, {b}], {d})",
          "{a} * ({b} > 0)", "F.mse_loss({a}, {b}, reduction='none')", "{a}.masked_fill({b} > 0.5, 0.25)"]  # fmt: skip
VIEW = ["{a}.transpose({d}, {e})", "{a}.reshape(-1)", "{a}.unsqueeze({d})", "{a}.squeeze()", "{a}[..., ::2]", "{a}[1:]",
        "{a}.select({d}, 0)", "{a}.movedim({d}, {e})", "{a}.expand(2, *{a}.shape)", "{a}.chunk(2, {d})[0]", "{a}.narrow({d}, 0, 1)",
        "{a}.unbind({d})[-1]", "{a}.contiguous()", "{a}.clone()", "{a}.flip({d})", "{a}.flatten()", "{a}.diagonal()",
        "{a}.view(-1)", "torch.roll({a}, 1, {d})", "F.pad({a}, (1, 2))", "{a}.repeat(2, *[1] * {a}.dim())[1:]",
        "{a}.transpose({d}, {e}).contiguous()", "{a}.tril()"]  # fmt: skip
REDUCE = ["{a}.sum({d})", "{a}.mean({d}, keepdim=True)", "{a}.amax({d})", "{a}.var({d}, correction=0)", "F.softmax({a}, {d})",
          "F.log_softmax({a}, {d})", "{a}.cumsum({d})", "F.layer_norm({a}, {a}.shape[-1:])", "{a}.sum()", "{a}.std()",
          "torch.logsumexp({a}, {d})", "{a}.norm(dim={d})", "F.normalize({a}, dim={d})", "({a} - {a}.mean({d}, True)) * 2",
          "F.rms_norm({a}, {a}.shape[-1:])"]  # fmt: skip
WRITE = ["{a}.mul_(0.5)", "{a}.add_({b})", "{a}.relu_()", "{a}[0] = 0.25", "{a}[..., 1:].mul_(2)", "{a}.copy_({b})",
         "{a}.clamp_(-2, 2)", "{a}.transpose({d}, {e}).add_(1)", "{a}.view(-1)[1:3].zero_()", "{a}.sin_()"]  # fmt: skip
INDEX = ["{a}[torch.tensor([0, -1, 0])]", "{a}.index_select({d}, torch.tensor([0, 0]))", "{a}.gather({d}, {a}.argsort({d}) * 0)",
         "{a}.index_add({d}, torch.tensor([0]), {a}.narrow({d}, 0, 1))", "F.embedding(torch.tensor([[0, 1], [1, 0]]), {a})",
         "{a}.scatter_add({d}, ({a} > 0).long() * 0, {a})", "F.one_hot({a}.argmax({d}).clamp(0, 3), 4).float()"]  # fmt: skip
GROUPS = [(UNARY, 6), (BINARY, 6), (VIEW, 7), (REDUCE, 4), (WRITE, 2), (INDEX, 1)]

DTYPES = {"float32": 6, "float64": 2, "bfloat16": 1, "float16": 1}  # of a program, and how often
ATTENTION = ["F.scaled_dot_product_attention({a}, {b}, {b})", "F.scaled_dot_product_attention({a}, {a}, {b}, is_causal=True)",
             "F.scaled_dot_product_attention({a}, {b}, {a}, attn_mask={a} @ {b}.mT > -0.5)",
             "F.scaled_dot_product_attention({a}.mT, {b}.mT, {b}.mT, scale=0.3)"]  # fmt: skip
BITS = ["torch.complex({a}, {b}).conj().imag", "torch._neg_view({a})", "torch.complex({a}, {b}).conj()",
        "torch.view_as_real({a}.conj())", "{a}.conj().real", "{a}.abs()", "torch.view_as_real(torch.complex({a}, {b}).conj() * 2)"]  # fmt: skip
CASTS = ["{a}.float()", "{a}.double()", "{a}.to(torch.bfloat16)", "{a}.half()", "({a} * 3).long()", "{a} > 0", "{a}.int()"]
WIDE_GROUPS = [*GROUPS, (ATTENTION, 2), (BITS, 1), (CASTS, 1)]
HOOKS = ["pass", "self.blocks[0].register_forward_hook(lambda module, inputs, output: output * 0.5)",
         "self.blocks[-1].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.25,))",
         "self.blocks[0].up.register_forward_hook(lambda module, inputs, output: output.clamp(-1, 1))",
         "self.blocks[-1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))",
         "self.head.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] - 0.5,))"]  # fmt: skip


class Draws:
    """What a seed's program is drawn from, and the dtype of its floating tensors."""

    def __init__(self, seed: int) -> None:
        self.seed, self.is_wide, self.choose = seed, seed >= WIDE_SEED, random.Random(seed)
        self.groups = WIDE_GROUPS if self.is_wide else GROUPS
        self.dtype = self.choose.choices(list(DTYPES), list(DTYPES.values()))[0] if self.is_wide else "float32"

    def head(self) -> str:
        cast = "" if self.dtype == "float32" else f".to(torch.{self.dtype})"
        return HEAD.format(seed=self.seed, cast=cast) + (INTEGERS if self.is_wide else "")


class Writer:
    """Statements that eager runs, found by trying; names of what they made."""

    def __init__(self, draws: Draws, scope: dict) -> None:
        self.choose, self.groups, self.scope, self.lines, self.names = draws.choose, draws.groups, dict(scope), [], list(scope)
        self.scope.update(torch=torch, F=torch.nn.functional)

    def add_some(self, count: int) -> None:
        for _ in range(count * 3):
            if len(self.lines) < count:
                self._try()

    def _try(self) -> None:
        group = self.choose.choices([g for g, _ in self.groups], [w for _, w in self.groups])[0]
        names = [n for n in self.names if n not in ("self",)]
        a = self.choose.choice(names[-4:] if self.choose.random() < 0.7 else names)
        rank = max(self.scope[a].dim(), 1)
        fill = {"a": a, "b": self.choose.choice(names), "d": self.choose.randrange(rank), "e": self.choose.randrange(rank)}
        name, line = f"v{len(self.lines)}", self.choose.choice(group).format(**fill)
        is_write = group is WRITE
        trial = dict(self.scope)
        try:
            exec(line if is_write else f"{name} = {line}", trial)
        except Exception:
            return
        if not is_write:
            result = trial[name]
            if not isinstance(result, torch.Tensor) or not 0 < result.numel() <= MOST_ELEMENTS or not result.isfinite().all():
                return
            self.names.append(name)
        self.scope = trial
        self.lines.append(line if is_write else f"{name} = {line}")

    def results(self) -> list[str]:
        made = [n for n in self.names if n.startswith("v")] or self.names
        return self.choose.sample(made, min(len(made), self.choose.randrange(1, 4)))


def random_input(draws: Draws) -> str:
    """An expression of a tensor: dense, strided, with an offset, expanded, overlapping; a leaf or none."""
    choose = draws.choose
    shape = [choose.choice([1, 2, 3, 4, 5, 7, 8, 16, 17]) for _ in range(choose.choice([1, 2, 2, 3, 4]))]
    grown = [e + choose.choice([0, 0, 1, 3]) for e in shape]
    form = choose.randrange(6)
    dims = list(range(len(shape)))
    choose.shuffle(dims)
    text = {
        0: f"r({shape})", 1: f"r({grown})[{', '.join(f'{g - e}:' for e, g in zip(shape, grown))}]",
        2: f"r({[shape[d] for d in dims]}).permute({[dims.index(i) for i in range(len(dims))]})",
        3: f"r({shape[:-1] + [shape[-1] * 2]})[..., 1::2]", 4: f"r({shape[:-1] + [1]}).expand({shape})", 5: f"r({shape})",
    }[form]  # fmt: skip
    if draws.is_wide and choose.random() < 0.15:
        return f"i{text.removeprefix('r')}"
    return f"{text}.requires_grad_()" if choose.random() < 0.5 else text


HEAD = '''import torch
import torch.nn as nn
import torch.nn.functional as F

_generator = torch.Generator().manual_seed({seed})


def r(shape):
    return torch.randn(shape, generator=_generator){cast}

'''
INTEGERS = '''
def i(shape):
    return torch.randint(-3, 4, shape, generator=_generator)

'''


def read(source: str) -> dict:
    """What the source defines, in a module of its own: Dynamo reads sources by file, and classes by module."""
    name, file = _place_of(source)
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = file  # by which a capture finds the module that code is of
    exec(compile(source, file, "exec"), module.__dict__)
    return module.__dict__


def forget(source: str) -> None:
    """Lets go of what read() made of the source."""
    name, file = _place_of(source)
    sys.modules.pop(name, None)
    linecache.cache.pop(file, None)


def _place_of(source: str) -> tuple[str, str]:
    """(module, file)."""
    name = f"fuzzed_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    return name, f"<{name}>"


def function_source(seed: int) -> str:
    draws = Draws(seed)
    choose = draws.choose
    inputs = [random_input(draws) for _ in range(choose.randrange(1, 4))]
    head = draws.head() + f"\ndef inputs():\n    return [{', '.join(inputs)}]\n\n\n"
    tensors = read(head)["inputs"]()
    names = [f"x{i}" for i in range(len(tensors))]
    writer = Writer(draws, dict(zip(names, alike.clone_inputs(tensors))))
    writer.add_some(choose.randrange(2, MOST_STATEMENTS))
    body = "".join(f"    {line}\n" for line in writer.lines)
    arguments = ", ".join(names)
    return head + f'''def function({arguments}):
{body}    return {", ".join(writer.results())},


class Model(nn.Module):
    def forward(self, {arguments}):
        return function({arguments})
'''


def module_source(seed: int) -> str:
    """Blocks that differ in attributes that are no parameters, in a model around them."""
    draws = Draws(seed)
    choose = draws.choose
    width, blocks = choose.choice([4, 8, 9]), choose.randrange(2, 5)
    activations = ["torch.relu", "F.gelu", "torch.tanh", "F.silu", "nn.ReLU(inplace=True)", "lambda t: t * 0.5"]
    is_varied = choose.random() < 0.5
    chosen = [choose.choice(activations) for _ in range(blocks)] if is_varied else [choose.choice(activations)] * blocks
    norms = ["nn.LayerNorm({w})", "nn.BatchNorm1d({w})", "nn.Identity()", "nn.LayerNorm({w}, eps=0.1)"]
    made = [f"Block({a}, {choose.choice([0.5, 1.0]) if is_varied else 0.5})" for a in chosen]
    x = torch.randn(6, width, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, draws.dtype))
    writer = Writer(draws, {"x": x, "y": x * 1})
    writer.add_some(choose.randrange(1, 5))
    keep = [line for line in writer.lines if not line.startswith("x")]  # blocks' inputs are others' outputs: some are written
    lines = "".join(f"        {line}\n" for line in (writer.lines if choose.random() < 0.3 else keep))
    last = next((n for n in reversed(writer.names) if writer.scope[n].shape == x.shape), "y")
    if any(n not in lines + "xy" for n in [last]):
        lines, last = "", "y"
    wide = f"        {choose.choice(HOOKS)}\n        self.to(torch.{draws.dtype})\n" if draws.is_wide else ""
    return draws.head() + f'''
class Block(nn.Module):
    def __init__(self, act, scale):
        super().__init__()
        self.norm, self.up, self.down = {choose.choice(norms).format(w=width)}, nn.Linear({width}, {width * 2}), nn.Linear({width * 2}, {width})
        self.act, self.scale = act, scale
        self.register_buffer("seen", torch.zeros({width}))

    def forward(self, x):
        y = self.down(self.act(self.up(self.norm(x))))
{lines}        {choose.choice(["self.seen.add_(x.detach().mean(0))", "pass", "y = y - self.seen; self.seen.mul_(0.5).add_(0.1)"])}
        return x + {last} * self.scale


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([{", ".join(made)}]), nn.Linear({width}, 3)
{wide}
    def forward(self, x):
        x = x * 1.5
        for block in self.blocks:
            x = block(x)
        return self.head(x), x{choose.choice(["", "[1:]", ".t()"])}


def inputs():
    return [r([6, {width}])]
'''
