"""One GPT-2 124M forward in bf16: linear layers with their epilogues and layer norms by our kernels, embedding and
attention by torch; beside the same model by torch alone, and in f32 as the measure of both.

python gpt2.py OUT.json. Weights are random: what is looked at is the error of the logits, and the time.
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as functional

from device import Library, milliseconds

LAYERS, HEADS, WIDTH, WORDS, LENGTH = 12, 12, 768, 50257, 512


def weights(dtype):
    torch.manual_seed(0)
    draw = lambda *shape, scale: torch.randn(shape, device="cuda") * scale
    layers = [{"ln1": (1 + draw(WIDTH, scale=.1), draw(WIDTH, scale=.1)), "ln2": (1 + draw(WIDTH, scale=.1), draw(WIDTH, scale=.1)),
               "qkv": (draw(WIDTH, 3 * WIDTH, scale=.03), draw(3 * WIDTH, scale=.02)),
               "out": (draw(WIDTH, WIDTH, scale=.02), draw(WIDTH, scale=.02)),
               "up": (draw(WIDTH, 4 * WIDTH, scale=.03), draw(4 * WIDTH, scale=.02)),
               "down": (draw(4 * WIDTH, WIDTH, scale=.02), draw(WIDTH, scale=.02))} for _ in range(LAYERS)]
    tables = {"words": draw(WORDS, WIDTH, scale=.03), "places": draw(LENGTH, WIDTH, scale=.03),
              "ln": (1 + draw(WIDTH, scale=.1), draw(WIDTH, scale=.1))}
    # The bf16 values are everyone's weights, so that only arithmetic differs.
    convert = lambda tensor: tensor.to(torch.bfloat16).to(dtype)
    each = lambda entry: {name: tuple(map(convert, value)) if isinstance(value, tuple) else convert(value)
                          for name, value in entry.items()}
    return [each(layer) for layer in layers], each(tables)


class Torch:
    def norm(self, x, parameters):
        return functional.layer_norm(x, (WIDTH,), *parameters)

    def linear(self, x, parameters, gelu=False, residual=None):
        y = torch.addmm(parameters[1], x, parameters[0])
        y = functional.gelu(y, approximate="tanh") if gelu else y
        return y if residual is None else y + residual

    def logits(self, x, words):
        return x @ words.t()


class Kiln:
    def __init__(self, library):
        self.library, self.kernels = library, {}

    def kernel(self, kind, *arguments, **options):
        key = (kind, arguments, tuple(options.items()))
        if key not in self.kernels:
            self.kernels[key] = getattr(self.library, kind)(torch.bfloat16, *arguments, **options)
        return self.kernels[key]

    def norm(self, x, parameters):
        y, means = torch.empty_like(x), torch.empty(x.shape[0], device="cuda")
        self.kernel("layer_norm", *x.shape)(x, *parameters, y, means)
        return y

    def linear(self, x, parameters, gelu=False, residual=None):
        w, bias = parameters
        y = torch.empty((x.shape[0], w.shape[1]), device="cuda", dtype=x.dtype)
        kernel = self.kernel("linear", x.shape[0], w.shape[1], w.shape[0], bias=True, gelu=gelu, residual=residual is not None)
        kernel(x, w, bias, *([] if residual is None else [residual]), y)
        return y

    def logits(self, x, words):
        y = torch.empty((x.shape[0], WORDS), device="cuda", dtype=x.dtype)
        self.kernel("linear", x.shape[0], WORDS, WIDTH, w_transposed=True)(x, words, y)
        return y


def attention(qkv):
    q, k, v = (part.reshape(LENGTH, HEADS, -1).transpose(0, 1)[None] for part in qkv.split(WIDTH, dim=1))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1).reshape(LENGTH, WIDTH)


def forward(ops, layers, tables, tokens):
    x = tables["words"][tokens] + tables["places"]
    for layer in layers:
        x = ops.linear(attention(ops.linear(ops.norm(x, layer["ln1"]), layer["qkv"])), layer["out"], residual=x)
        x = ops.linear(ops.linear(ops.norm(x, layer["ln2"]), layer["up"], gelu=True), layer["down"], residual=x)
    return ops.logits(ops.norm(x, tables["ln"]), tables["words"])


@torch.no_grad()
def main():
    tokens = torch.randint(WORDS, (LENGTH,), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    exact = forward(Torch(), *weights(torch.float32), tokens)
    model, ways = weights(torch.bfloat16), {"torch": Torch(), "kiln": Kiln(Library())}
    error = lambda got: float((got.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    errors = {name: error(forward(ops, *model, tokens)) for name, ops in ways.items()}
    samples = {name: [] for name in ways}
    for _ in range(9):
        for name, ops in ways.items():
            samples[name].append(milliseconds(lambda ops=ops: forward(ops, *model, tokens), 10))
    times = {name: statistics.median(values) for name, values in samples.items()}
    # As near to f32 as torch's own bf16, give or take; NaN is neither.
    is_right = errors["kiln"] <= 1.5 * errors["torch"] + 1e-3
    result = {"what": "GPT-2 124M forward, 512 tokens, bf16; attention and embedding by torch", "relative_error": errors,
              "ms": times, "is_right": is_right}
    print(json.dumps(result))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
