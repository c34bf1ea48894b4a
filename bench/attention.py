#!/usr/bin/env python3
"""How fast is our attention, forward and backward, beside torch's best on the CPU: scaled_dot_product_attention in each form
that serves the case, flex_attention compiled where a mask cuts keys away or scores are capped? Alternating in one process, on
one OpenMP pool; each is checked against f64 first. Ours is the analytic pick, or with --tuned the best of all candidates in
a race before. Work: pairs of query and key that causality and window leave; backward as 2.5 times forward.

--dtype f32|bf16|f16; --threads N; --shapes FILE or --case B,Hq,Hkv,Sq,Skv,D,Dv,variant; --forward
"""
import argparse
from typing import NamedTuple

import common
import kernels
import torch
from torch.nn import functional as F

FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class Attention(NamedTuple):
    """Variants: "none"; "causal"; "causal-offset", queries stand at the end of the keys; "causal window N", the last N keys;
    "padding", a mask of keys for each batch; "relative bias" for each head, query and key; "softcap N" of scores."""
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    variant: str = "none"

    def __str__(self):
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        length = f"{self.queries}" if self.queries == self.keys else f"{self.queries}x{self.keys}"
        dim = f"{self.dim}" if self.dim == self.value_dim else f"{self.dim}/{self.value_dim}"
        return f"{self.batch}x{heads}x{length}x{dim}" + (f" {self.variant}" if self.variant != "none" else "")

    @property
    def group(self):
        return self.heads // self.kv_heads

    @property
    def scale(self):
        return self.dim**-0.5

    @property
    def is_causal(self):
        return self.variant.startswith("causal")

    @property
    def offset(self):
        return self.keys - self.queries if self.variant == "causal-offset" else 0

    @property
    def window(self):
        """0: none, or one that cuts nothing."""
        window = int(self.variant.split()[-1]) if "window" in self.variant else 0
        return window if window < self.keys else 0

    @property
    def kind(self):
        """full, causal, or masked by anything else."""
        if self.variant in ("causal", "causal-offset") or (self.is_causal and not self.window):
            return "causal"
        return "full" if self.variant == "none" else "masked"

    @property
    def is_long(self):
        return min(self.queries, self.keys) >= 1024

    @property
    def cap(self):
        return float(self.variant.split()[-1]) if "softcap" in self.variant else 0.0

    def kept(self):
        """What causality and window leave, [queries, keys]; None for all."""
        if not self.is_causal:
            return None
        distance = torch.arange(self.queries)[:, None] + self.offset - torch.arange(self.keys)[None, :]
        return (distance >= 0) & (distance < self.window) if self.window else distance >= 0

    def work(self):
        """Floating-point operations forward."""
        pairs = self.queries * self.keys if self.kept() is None else self.kept().sum().item()
        return 2.0 * self.batch * self.heads * pairs * (self.dim + self.value_dim)

    def operands(self, dtype):
        """q, k, v, and the mask or bias that the caller hands over, or None."""
        q = torch.randn(self.batch, self.heads, self.queries, self.dim).to(dtype)
        k = torch.randn(self.batch, self.kv_heads, self.keys, self.dim).to(dtype)
        v = torch.randn(self.batch, self.kv_heads, self.keys, self.value_dim).to(dtype)
        extra = None
        if self.variant == "padding":  # a quarter of the keys at most
            lengths = self.keys - torch.arange(1, self.batch + 1) * self.keys // (4 * self.batch)
            extra = (torch.arange(self.keys)[None, :] < lengths[:, None])[:, None, None, :]
        if self.variant == "relative bias":
            extra = torch.randn(1, self.heads, self.queries, self.keys).to(dtype)
        return q, k, v, extra

    def inputs(self, dtype):
        """Of the graph: types of q, k, v and the mask or bias."""
        keys = f"{self.batch}, {self.kv_heads}, {self.keys}"
        result = [f"%q: {dtype}[{self.batch}, {self.heads}, {self.queries}, {self.dim}]", f"%k: {dtype}[{keys}, {self.dim}]",
                  f"%v: {dtype}[{keys}, {self.value_dim}]"]
        if self.variant == "padding":
            result.append(f"%mask: bool[{self.batch}, 1, 1, {self.keys}]")
        if self.variant == "relative bias":
            result.append(f"%bias: {dtype}[1, {self.heads}, {self.queries}, {self.keys}]")
        return result

    def bias(self, dtype):
        """(statements, operand): what is added to scores."""
        def number(value, dtype):
            return f"full() {{shape = [], value = {value}, dtype = {dtype}}}"

        choice = ["%least = " + number("-inf", dtype), "%nothing = " + number("0.0", dtype)]
        if self.variant == "padding":
            return [*choice, "%bias = select(%mask, %nothing, %least)"], "%bias"
        if self.variant == "relative bias":
            return [], "%bias"
        if not self.window:
            return [], "none"
        return [*choice, f"%query = iota() {{shape = [1, 1, {self.queries}, 1], dim = 2, dtype = i64}}",
                f"%key = iota() {{shape = [1, 1, 1, {self.keys}], dim = 3, dtype = i64}}", "%distance = sub(%query, %key)",
                "%window = " + number(f"{self.window}.0", "i64"), "%far = ge(%distance, %window)",
                "%bias = select(%far, %least, %nothing)"], "%bias"

    def text(self, dtype, backward=False):
        """In Kiln's text form: [gradient,] q, k, v, [out, lse,] [mask] to out and lse, or to three gradients."""
        inputs = self.inputs(dtype)
        if self.cap:
            lines, results = self.capped(dtype), "%out"
        else:
            lines, bias = self.bias(dtype)
            causal = "true" if self.is_causal else "false"
            attributes = f"{{causal = {causal}, causal_offset = {self.offset}, scale = {self.scale!r}}}"
            if backward:
                out = f"[{self.batch}, {self.heads}, {self.queries}, {self.value_dim}]"
                lse = f"%lse: f32[{self.batch}, {self.heads}, {self.queries}]"
                inputs = [f"%grad: {dtype}{out}", *inputs[:3], f"%out: {dtype}{out}", lse, *inputs[3:]]
                results = "%dq, %dk, %dv"
                lines.append(f"{results} = attention_backward(%grad, %q, %k, %v, %out, %lse, {bias}) {attributes}")
            else:
                results = "%out, %lse"
                lines.append(f"{results} = attention(%q, %k, %v, {bias}) {attributes}")
        return f"graph({', '.join(inputs)}) {{\n" + "".join(f"  {line}\n" for line in lines) + f"  return {results}\n}}\n"

    def capped(self, dtype):
        """Attention's op has no cap: products, tanh and softmax, in f32 in between."""
        rows = self.group * self.queries
        shape = f"[{self.batch}, {self.kv_heads}, {rows}, {self.dim}]"
        back = f"[{self.batch}, {self.heads}, {self.queries}, {self.value_dim}]"
        return [f"%rows = reshape(%q) {{shape = {shape}}}", "%columns = permute(%k) {dims = [0, 1, 3, 2]}",
                "%product = matmul(%rows, %columns)", "%wide = cast(%product) {dtype = f32}",
                f"%scale = full() {{shape = [], value = {self.scale / self.cap!r}, dtype = f32}}", "%scaled = mul(%wide, %scale)",
                f"%cap = full() {{shape = [], value = {self.cap!r}, dtype = f32}}", "%bent = tanh(%scaled)",
                "%scores = mul(%bent, %cap)", "%shares = softmax(%scores) {dim = 3}", f"%narrow = cast(%shares) {{dtype = {dtype}}}",
                "%mixed = matmul(%narrow, %v)", f"%out = reshape(%mixed) {{shape = {back}}}"]


KINDS = ("forward full", "forward causal", "forward masked", "backward")

# Attention of a small GPT-2, and longer or odder ones.
CASES = [Attention(1, 12, 12, 512, 512, 64, 64, "causal"), Attention(1, 12, 12, 512, 512, 64, 64),
         Attention(1, 4, 4, 1024, 1024, 64, 64, "causal"), Attention(1, 4, 4, 2048, 2048, 64, 64, "causal"),
         Attention(1, 4, 4, 2048, 2048, 64, 64), Attention(1, 4, 4, 1024, 1024, 128, 128, "causal"),
         Attention(2, 4, 4, 300, 300, 80, 80, "causal")]


def exact(case, q, k, v, extra, grad=None):
    """In f64, a head of keys at a time: out and lse; with a gradient of out: those of q, k, v."""
    kept, results = case.kept(), [[] for _ in range(2 if grad is None else 3)]
    for b in range(case.batch):
        for h in range(case.kv_heads):
            heads = slice(h * case.group, (h + 1) * case.group)
            mine = [each.double().requires_grad_(grad is not None) for each in (q[b, heads], k[b, h], v[b, h])]
            scores = mine[0] @ mine[1].mT * case.scale
            scores = case.cap * torch.tanh(scores / case.cap) if case.cap else scores
            if extra is not None and extra.dtype == torch.bool:
                scores = scores.masked_fill(~extra[b, 0], -torch.inf)
            elif extra is not None:
                scores = scores + extra[0, heads].double()
            scores = scores if kept is None else scores.masked_fill(~kept, -torch.inf)
            out = scores.softmax(-1) @ mine[2]
            found = [out, scores.logsumexp(-1)] if grad is None else torch.autograd.grad(out, mine, grad[b, heads].double())
            for list_, value in zip(results, found):
                list_.append(value)
    shapes = (q.shape[:3] + v.shape[3:], q.shape[:3]) if grad is None else (q.shape, k.shape, v.shape)
    return [torch.stack(list_).reshape(shape) for list_, shape in zip(results, shapes)]


def masks(case, extra, dtype):
    """Forms in which torch takes what scores are masked with: {name: keywords}."""
    if case.is_causal and not case.window and not case.offset:
        return {"sdpa": {"is_causal": True}}
    mask = extra if extra is not None else case.kept()
    if mask is None or mask.dtype != torch.bool:
        return {"sdpa": {"attn_mask": mask}}
    added = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)
    return {"sdpa mask": {"attn_mask": mask}, "sdpa bias": {"attn_mask": added}}


def torch_forms(case, extra, dtype):
    """{name: function of q, k, v}: every way to write the case in torch."""
    if case.cap:
        return {"eager": lambda q, k, v: eager_capped(case, q, k, v), **flex_forms(case)}
    forms = {}
    for name, keywords in masks(case, extra, dtype).items():
        def call(q, k, v, keywords=keywords):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=case.group > 1, **keywords)

        def unfused(q, k, v, call=call):
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                return call(q, k, v)

        def repeated(q, k, v, keywords=keywords):
            k, v = (each.repeat_interleave(case.group, 1) for each in (k, v))
            return F.scaled_dot_product_attention(q, k, v, **keywords)

        forms |= {name: call, f"{name} math": unfused}
        if case.group > 1:
            forms[f"{name} repeated"] = repeated
    if case.group > 1 and case.variant == "none":  # the queries of a group as queries of one head
        def folded(q, k, v):
            rows = q.reshape(case.batch, case.kv_heads, case.group * case.queries, case.dim)
            out = F.scaled_dot_product_attention(rows, k, v)
            return out.reshape(case.batch, case.heads, case.queries, case.value_dim)
        forms["sdpa folded"] = folded
    return {**forms, **(flex_forms(case) if case.window else {})}


def eager_capped(case, q, k, v):
    rows = q.reshape(case.batch, case.kv_heads, case.group * case.queries, case.dim)
    scores = (rows @ k.mT).float().mul_(case.scale / case.cap).tanh_().mul_(case.cap)
    return (scores.softmax(-1).to(q.dtype) @ v).reshape(case.batch, case.heads, case.queries, case.value_dim)


def flex_forms(case):
    """flex_attention as Inductor compiles it: forward only, on the CPU."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex = torch.compile(flex_attention, dynamic=False)
    cap, window = case.cap, case.window
    keywords = {"enable_gqa": case.group > 1}
    if cap:
        keywords["score_mod"] = lambda score, b, h, q, k: cap * torch.tanh(score / cap)
    else:
        keywords["block_mask"] = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < window), None, None, case.queries,
                                                   case.keys, device="cpu")

    def call(q, k, v):
        with torch.no_grad():
            return flex(q, k, v, **keywords)
    return {"flex": call}


def served(name, forms, reference, allowed):
    """Those of torch's forms that there are for the case, and are right."""
    found = {}
    for form, call in forms.items():
        try:
            result = call()
        except (RuntimeError, NotImplementedError) as why:
            print(f"{name}: no {form}: {str(why).splitlines()[0][:100]}", flush=True)
            continue
        results = [result] if torch.is_tensor(result) else result
        kernels.require_right(f"{name} {form}", results, reference, kernels.OF_PEERS * allowed)
        found[form] = call
    return found


def forward(case, operands, options):
    """The row, and our out and lse."""
    dtype, allowed = kernels.DTYPES[options.dtype]
    q, k, v, extra = operands
    reference = exact(case, *operands)[:1 if case.cap else 2]
    forms = {name: lambda form=form: form(q, k, v) for name, form in torch_forms(case, extra, dtype).items()}
    peers = served(str(case), forms, reference[:1], allowed)
    results = [torch.empty(reference[0].shape, dtype=dtype), torch.empty(case.batch, case.heads, case.queries)]
    mine, facts = kernels.ours(case.text(options.dtype), [each for each in operands if each is not None],
                               results[:len(reference)], reference, allowed, options)
    return kernels.race(f"forward {case}", mine, peers, case.work(), options, of=f"forward {case.kind}",
                        is_long=case.is_long, **facts), results


def backward_forms(case, q, k, v, extra, grad):
    """torch's gradients of each of its forms, and by its flash kernel alone."""
    leaves = [each.detach().requires_grad_() for each in (q, k, v)]

    def gradients(form):
        outs = []  # made by the first call

        def call():
            if not outs:
                outs.append(form(*leaves))
            return torch.autograd.grad(outs[0], leaves, grad, retain_graph=True)
        return call

    forms = {name: gradients(form) for name, form in torch_forms(case, extra, q.dtype).items() if name != "flex"}
    if case.group == 1 and case.dim == case.value_dim and case.variant in ("none", "causal"):
        out, lse = FLASH(q, k, v, 0.0, case.is_causal)
        forms["flash"] = lambda: FLASH_BACKWARD(grad, q, k, v, out, lse, 0.0, case.is_causal)
    return forms


def backward(case, operands, results, options):
    dtype, allowed = kernels.DTYPES[options.dtype]
    q, k, v, extra = operands
    grad = torch.randn(results[0].shape).to(dtype)
    reference = exact(case, *operands, grad=grad)
    peers = served(f"backward {case}", backward_forms(case, q, k, v, extra, grad), reference, 2 * allowed)
    inputs = [grad, q, k, v, *results, *([] if extra is None else [extra])]
    mine, facts = kernels.ours(case.text(options.dtype, backward=True), inputs, [torch.empty_like(each) for each in (q, k, v)],
                               reference, 2 * allowed, options)
    return kernels.race(f"backward {case}", mine, peers, 2.5 * case.work(), options, of="backward",
                        is_long=case.is_long, **facts)


def measure(case, options):
    """Its rows."""
    torch.compiler.reset()
    operands = case.operands(kernels.DTYPES[options.dtype][0])
    row, results = forward(case, operands, options)
    yield row
    if not options.forward and not case.cap:
        yield backward(case, operands, results, options)


def cases_in(file, dtype):
    return [Attention(*(row[name] for name in ("B", "Hq", "Hkv", "Sq", "Skv", "D", "Dv", "variant")))
            for row in kernels.shapes(file, "attention", dtype)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kernels.add_options(parser)
    parser.add_argument("--case", help="B,Hq,Hkv,Sq,Skv,D,Dv,variant")
    parser.add_argument("--forward", action="store_true", help="no backward")
    options = parser.parse_args()
    kernels.set_up(options)
    cases = cases_in(options.shapes, options.dtype) if options.shapes else CASES
    if options.case:
        *numbers, variant = options.case.split(",")
        cases = [Attention(*map(int, numbers), variant)]
    rows = common.until_interrupted(row for case in cases for row in measure(case, options))
    groups = {name: [row for row in rows if row["of"] == name] for name in KINDS}
    common.report(f"attention {options.dtype}", rows, {
        **{name: common.ratios(group) for name, group in groups.items()},
        "share of the roof, 1024 queries and keys or more": {
            name: common.share_of_roof(row for row in group if row["is_long"]) for name, group in groups.items()}})


if __name__ == "__main__":
    main()
