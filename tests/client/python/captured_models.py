"""Blocks of one class and one set of parameters that differ by what guards cannot hold in another process, or by what they find
around them; and small models of the architectures that people run. A file of its own, so that each process of a test names the
same classes."""

import collections
import dataclasses
import enum
import functools
import sys
import types

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

WIDTH = 16


class Kind(enum.Enum):
    SUM = 1
    DIFFERENCE = 2


class Way(str, enum.Enum):
    SUM = "sum"
    DIFFERENCE = "difference"


@dataclasses.dataclass
class Configuration:
    activation: object
    factors: dict


class Options:
    """A configuration that is no dataclass."""

    def __init__(self, activation, factors):
        self.activation, self.factors = activation, factors


class Block(nn.Module):
    """Does with its first argument what the attribute says."""

    def __init__(self, what):
        super().__init__()
        self.linear, self.what = nn.Linear(WIDTH, WIDTH), what

    def forward(self, x):
        y, what = self.linear(x), self.what
        if isinstance(what, Kind):
            return x + y if what is Kind.SUM else x - y
        if isinstance(what, Way):
            return x + y if what is Way.SUM else x - y
        if isinstance(what, (Configuration, Options)):
            return what.activation(y) * what.factors["k"][0]
        if isinstance(what, list):
            return what[1](what[0](y))
        return what(y)


class Overridden(Block):
    def forward(self, x):
        return self.then(super().forward(x))

    def then(self, x):
        return x


class Tripled(Overridden):
    def then(self, x):
        return 3 * x


class Factored(Block):
    """Reads a number of its class, or what its property makes of one of its own."""

    factor = 2.0

    def __init__(self, what, own=1.0):
        super().__init__(what)
        self._own = own

    @property
    def own(self):
        return self._own + 1

    def forward(self, x):
        return super().forward(x) * self.factor * self.own


class Thrice(Factored):
    factor = 3.0


class Measured(Block):
    """Reads its buffer's value, or its extent."""

    def __init__(self, what, measure, is_shape=False):
        super().__init__(what)
        self.is_shape = is_shape
        self.register_buffer("measure", torch.zeros(measure) if is_shape else torch.tensor(measure))

    def forward(self, x):
        return super().forward(x) * (self.measure.shape[0] if self.is_shape else self.measure.item())


class Comparing(Block):
    """Asks whether two things that it has are one."""

    def __init__(self, what, first, second):
        super().__init__(what)
        self.first, self.second = first, second

    def forward(self, x):
        y = super().forward(x)
        return y * 2 if self.first is self.second else y * 3


class Scaling:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, x):
        return x * self.factor


def scaling(factor):
    return lambda x: x * factor


def with_default(factor):
    def scale(x, k=factor):
        return x * k

    return scale


def with_keyword_default(factor):
    def scale(x, *, k=factor):
        return x * k

    return scale


def scale_by(x, k):
    return x * k


def scale_first(k, x):
    return x * k


def hooked(factor):
    block = Block(functional.relu)
    block.linear.register_forward_hook(lambda module, inputs, output: output * factor)
    return block


def with_bound_method(factor):
    block = Overridden(torch.tanh)
    block.then = types.MethodType(lambda self, x: self.linear(x) * factor, block)
    return block


def comparing(make, is_one):
    first = make()
    return Comparing(torch.tanh, first, first if is_one else make())


def encoder(activation):
    return nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, activation=activation, batch_first=True)


class Multiplied(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, weight):
        return weight * self.factor


def parametrized(factor):
    """A block with a weight that is computed: torch makes a class without a name for the layer."""
    block = Block(torch.tanh)
    parametrize.register_parametrization(block.linear, "weight", Multiplied(factor))
    return block


class AsComplex(nn.Module):
    def forward(self, x):
        return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


class Leaves(nn.Module):
    """Takes a structure apart, which torch does by a table that Dynamo finds through an import."""

    def forward(self, x):
        return torch.utils._pytree.tree_flatten({"a": [x * 2, x * 3]})[0][1].tanh()


class Ordered(collections.OrderedDict):
    """As outputs of transformers are, which one part of a model gives to another one."""


class OfOrdered(nn.Module):
    def forward(self, parts):
        return torch.stack([part.cos() for part in parts.values()]) * len(parts)


class Sized(nn.Module):
    """Gives a number that depends on what size it is called with, once that changes."""

    def forward(self, x):
        return x.sum(1).cos(), 2 * x.shape[1]


# A module, and arguments that it is called with in turn.
CALLS = {
    "leaves": (Leaves, lambda: [torch.ones(2, 3)]),
    "ordered": (OfOrdered, lambda: [Ordered(a=torch.ones(3), b=torch.zeros(3))]),
    "sizes": (Sized, lambda: [torch.ones(2, extent, 3) for extent in (3, 5, 6)]),
}

PAIRS = {
    "function": (lambda: Block(functional.relu), lambda: Block(functional.silu)),
    "builtin": (lambda: Block(torch.tanh), lambda: Block(torch.sigmoid)),
    "enum": (lambda: Block(Kind.SUM), lambda: Block(Kind.DIFFERENCE)),
    "enum_of_strings": (lambda: Block(Way.SUM), lambda: Block(Way.DIFFERENCE)),
    "closure": (lambda: Block(scaling(2.0)), lambda: Block(scaling(3.0))),
    "default": (lambda: Block(with_default(2.0)), lambda: Block(with_default(3.0))),
    "keyword_default": (lambda: Block(with_keyword_default(2.0)), lambda: Block(with_keyword_default(3.0))),
    "partial": tuple(lambda k=k: Block(functools.partial(scale_by, k=k)) for k in (2.0, 3.0)),
    "partial_of_a_place": tuple(lambda k=k: Block(functools.partial(scale_first, k)) for k in (2.0, 3.0)),
    "partial_of_a_default": tuple(lambda k=k: Block(functools.partial(with_default(k))) for k in (2.0, 3.0)),
    "method": (lambda: Block(Scaling(2.0).apply), lambda: Block(Scaling(3.0).apply)),
    "list": (lambda: Block([torch.tanh, scaling(2.0)]), lambda: Block([torch.tanh, scaling(3.0)])),
    "dataclass": tuple(lambda k=k: Block(Configuration(functional.relu, {"k": [k]})) for k in (2.0, 3.0)),
    "plain_object": tuple(lambda k=k: Block(Options(functional.relu, {"k": [k]})) for k in (2.0, 3.0)),
    "function_of_a_plain_object": tuple(lambda f=f: Block(Options(f, {"k": [2.0]})) for f in (functional.relu, torch.tanh)),
    "subclass": (lambda: Overridden(torch.tanh), lambda: Tripled(torch.tanh)),
    "class_attribute": (lambda: Factored(torch.tanh), lambda: Thrice(torch.tanh)),
    "property": tuple(lambda k=k: Factored(torch.tanh, k) for k in (2.0, 3.0)),
    "value_of_a_buffer": tuple(lambda k=k: Measured(torch.tanh, k) for k in (2, 3)),
    "fraction_of_a_buffer": tuple(lambda k=k: Measured(torch.tanh, k) for k in (2.5, 3.5)),
    "extent_of_a_buffer": tuple(lambda k=k: Measured(torch.tanh, k, is_shape=True) for k in (2, 3)),
    "bound_method": (lambda: with_bound_method(2.0), lambda: with_bound_method(3.0)),
    "one_object": tuple(lambda is_one=o: comparing(lambda: Scaling(2.0), is_one) for o in (False, True)),
    "one_module": tuple(lambda is_one=o: comparing(nn.Tanh, is_one) for o in (False, True)),
    "one_list": tuple(lambda is_one=o: comparing(lambda: [2.0], is_one) for o in (False, True)),
    "hook": (lambda: hooked(2.0), lambda: hooked(3.0)),
    "encoder": (lambda: encoder("relu"), lambda: encoder("gelu")),
}


# What blocks find around them.
FACTOR, TABLE, SCALE, OPTIONS = 2.0, {"k": [2.0]}, scaling(2.0), Options(torch.tanh, {"k": [2.0]})


def by_number(x):
    return x * FACTOR


def by_table(x):
    return x * TABLE["k"][0]


def by_nested_function(x):
    return SCALE(x)


def by_plain_object(x):
    return OPTIONS.activation(x) * OPTIONS.factors["k"][0]


def by_default(x, k=2.0):
    return x * k


def by_function_of_a_module(x):
    return functional.softplus(x)


_SELF = sys.modules[__name__]
# A block, and how what it finds is set to a number.
SURROUNDINGS = {
    "number": (by_number, lambda patch, k: patch.setattr(_SELF, "FACTOR", k)),
    "table": (by_table, lambda patch, k: patch.setitem(TABLE, "k", [k])),
    "nested_function": (by_nested_function, lambda patch, k: patch.setattr(_SELF, "SCALE", scaling(k))),
    "plain_object": (by_plain_object, lambda patch, k: patch.setitem(OPTIONS.factors, "k", [k])),
    "function_of_a_plain_object": (by_plain_object, lambda patch, k: patch.setattr(OPTIONS, "activation", scaling(k))),
    "default": (by_default, lambda patch, k: patch.setattr(by_default, "__defaults__", (k,))),
    "function_of_a_module": (by_function_of_a_module, lambda patch, k: patch.setattr(functional, "softplus", scaling(k))),
    "class_attribute": (Factored, lambda patch, k: patch.setattr(Factored, "factor", k)),
    "property": (Factored, lambda patch, k: patch.setattr(Factored, "own", property(lambda self: k))),
    "method": (Overridden, lambda patch, k: patch.setattr(Overridden, "then", lambda self, x: x * k)),
}


def make_surrounded(kind):
    """(model, what sets a number that it finds around it)."""
    torch.manual_seed(1)
    reads, change = SURROUNDINGS[kind]
    return Stack([reads(torch.tanh) if isinstance(reads, type) else Block(reads) for _ in range(2)]), change


class Naming(nn.Module):
    """Has bytecode and guards name a module, a class and a builtin that none of its own globals is."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x)
        factor = 2.0 if isinstance(y, type(x)) else 3.0
        return collections.OrderedDict(y=y * factor, size=len)


class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Naming(), Naming()])

    def forward(self, x):
        for block in self.blocks:
            found = block(x)
            x = found["y"]
            assert found["size"] is len
        return x


class Stack(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make(kind, which):
    """Of blocks alike ("A", "B"), or of both ("MIX")."""
    torch.manual_seed(1)
    first, second = PAIRS[kind]
    return Stack([{"A": first, "B": second, "MIX": first}[which](), {"A": first, "B": second, "MIX": second}[which]()])


class Loss(nn.Module):
    """A projection to so many classes that its loss is computed in rows."""

    def __init__(self):
        super().__init__()
        self.first, self.projection = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 20011, bias=False)

    def forward(self, x, labels):
        scores = self.projection(functional.gelu(self.first(x)))
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class Factor(nn.Module):
    """Ends in an error where torch finds that there is no factor."""

    def forward(self, x):
        return torch.linalg.cholesky(x @ x.mT - 1e-3) * 2


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRU(WIDTH, 24, batch_first=True, bidirectional=True), nn.LSTM(48, WIDTH, batch_first=True)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)[0]))[0]


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores, self.loss = nn.Linear(WIDTH, 20), nn.CTCLoss()

    def forward(self, x, targets, input_lengths, target_lengths):
        return self.loss(self.scores(x).log_softmax(2), targets, input_lengths, target_lengths)


def make_architecture(name):
    """(model, inputs), small and with random weights."""
    torch.manual_seed(1)
    if name == "names":
        return Names(), {"x": torch.randn(2, 5, WIDTH)}
    if name == "recurrent":
        return Recurrent(), {"x": torch.randn(2, 5, WIDTH)}
    if name == "speech":
        lengths = {"input_lengths": torch.tensor([40, 33, 20, 9]), "target_lengths": torch.tensor([20, 13, 8, 2])}
        return Speech(), {"x": torch.randn(40, 4, WIDTH), "targets": torch.randint(1, 20, (4, 20)), **lengths}
    if name == "loss":
        return Loss(), {"x": torch.randn(2, 300, WIDTH), "labels": torch.randint(20011, (2, 300))}
    if name == "encoder":
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, activation="gelu")
        return nn.TransformerEncoder(layer, 2), {"src": torch.randn(2, 5, 32)}
    import transformers as t

    ids = torch.randint(1, 100, (2, 16))
    text = {"input_ids": ids, "labels": ids}
    wide = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    still = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    if name == "gpt2":
        sizes = dict(n_embd=32, n_layer=2, n_head=2, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0)
        still = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        return t.GPT2LMHeadModel(t.GPT2Config(**sizes, **still)), text
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**wide, vocab_size=100)), text
    if name == "bert":
        return t.BertForMaskedLM(t.BertConfig(**wide, **still, vocab_size=100)), text
    if name == "t5":
        sizes = dict(d_model=32, num_layers=2, num_heads=2, d_ff=64, d_kv=16, vocab_size=100, decoder_start_token_id=0)
        return t.T5ForConditionalGeneration(t.T5Config(**sizes, dropout_rate=0.0)), text
    assert name == "vit"
    pixels = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(0, 2, (2,))}
    return t.ViTForImageClassification(t.ViTConfig(**wide, **still, image_size=32, patch_size=8)), pixels
