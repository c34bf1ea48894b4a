"""Numbers of a distribution, made of random words (draws.py) in torch's functions. Kernels compute the same functions of the same
words: expansion.py traces what is here, so there is no second form of it.

Words are tensors of integers of 32 bits, which are i64. A number of f64 takes two words, one of any other dtype a single one, which
is computed in f32; there are twice as many words where a distribution is made of two uniform numbers. Whole numbers take as many
words as their range asks for. Parameters are not looked at: what eager refuses, as a probability above 1, gives some number.
"""

from __future__ import annotations

import math

import torch

from .draws import words_of_share

# Whole numbers are scaled in digits of so many bits: f64, which Kiln's reference computes integers in, holds their products.
DIGIT = 26
# An element of a range is met so many bits less or more often than another at most, as a share of how often it is met.
EVENNESS = 32


def significand(dtype: torch.dtype) -> int:
    """Its bits."""
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def fraction(words: list[torch.Tensor], bits: int = significand(torch.float32)) -> torch.Tensor:
    """Uniform in [0, 1), in steps of 2**-bits, which are the result's own: it is never rounded to 1."""
    if len(words) == 1:
        return (words[0] & (1 << bits) - 1).to(torch.int32).to(torch.float32) * 2.0**-bits
    high, low = words
    return ((high & (1 << 27) - 1) * 2**26 + (low & (1 << 26) - 1)).to(torch.float64) * 2.0**-53


def uniform(words: list, dtype: torch.dtype, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    x = fraction(words, significand(dtype)) if len(words) == 1 else fraction(words)
    if (low, high) == (0, 1):
        return x.to(dtype)
    x = (x * (high - low) + low).to(dtype)
    return torch.where(x < high, x, low)  # rounding gives `high`, which is not of the range


def standard_normal(words: list) -> torch.Tensor:
    """By Box and Muller, of two numbers."""
    half = len(words) // 2
    radius = torch.sqrt(-2 * torch.log(1 - fraction(words[:half])))
    return radius * torch.cos(2 * math.pi * fraction(words[half:]))


def normal(words: list, dtype: torch.dtype, mean=0.0, std=1.0) -> torch.Tensor:
    """mean, std: numbers or tensors."""
    x = standard_normal(words)
    x = x if _is_number(std, 1) else x * std
    return (x if _is_number(mean, 0) else x + mean).to(dtype)


def _is_number(value, number: int) -> bool:
    return not isinstance(value, torch.Tensor) and value == number


def log_normal(words: list, dtype: torch.dtype, mean: float, std: float) -> torch.Tensor:
    return (standard_normal(words) * std + mean).exp().to(dtype)


def exponential(words: list, dtype: torch.dtype, lambd: float = 1.0) -> torch.Tensor:
    """Above 0, as what is divided by it in a race asks for."""
    x = -torch.log(1 - fraction(words))
    return (x.clamp_min(torch.finfo(x.dtype).eps / 2) / lambd).to(dtype)


def geometric(words: list, dtype: torch.dtype, p: float) -> torch.Tensor:
    if p >= 1:
        return torch.ones_like(words[0], dtype=dtype)
    return (torch.log(1 - fraction(words)) / math.log1p(-p)).ceil().clamp_min(1).to(dtype)


def cauchy(words: list, dtype: torch.dtype, median: float, sigma: float) -> torch.Tensor:
    """The cotangent of an angle in (0, pi / 2], and a bit that the angle is not made of for a sign."""
    angle = (1 - fraction(words)) * (math.pi / 2)
    sign = 1 - 2 * (words[0] >> 31).to(torch.int32)
    return (angle.cos() / angle.sin() * sign * sigma + median).to(dtype)


def bernoulli(words: list, dtype: torch.dtype, p) -> torch.Tensor:
    """p: a number or a tensor."""
    is_one = fraction(words) < p if isinstance(p, torch.Tensor) else words[0] < words_of_share(p)
    return is_one.to(dtype)


def integers(words: list, dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
    """Of [low, high): the words are the digits of a fraction, which is multiplied by how many numbers there are."""
    digits = [word & (1 << DIGIT) - 1 for word in reversed(words)]  # the lowest first
    factors = [high - low >> DIGIT * i & (1 << DIGIT) - 1 for i in range(words_for(high - low) - 1)]
    result = carry = 0
    for place in range(len(digits) + len(factors)):
        pairs = [(digits[place - i], factor) for i, factor in enumerate(factors) if factor and 0 <= place - i < len(digits)]
        column = carry + sum(digit * factor for digit, factor in pairs)
        carry = column >> DIGIT
        if place >= len(digits):
            result = result + (column & (1 << DIGIT) - 1) * (1 << DIGIT * (place - len(digits)))
    return (result + low).to(dtype)


def words_for(count: int) -> int:
    """How many words a whole number of so many takes."""
    return math.ceil((count.bit_length() + EVENNESS) / DIGIT)


def race(words: list, dtype: torch.dtype, weights: torch.Tensor, num_samples: int) -> torch.Tensor:
    """The places of those that win when each of the weights waits for an exponential time: a sample without replacement."""
    speeds = weights / exponential(words, torch.float32 if len(words) == 1 else torch.float64)
    return (speeds.argmax(-1, keepdim=True) if num_samples == 1 else speeds.topk(num_samples)[1]).to(dtype)


def places(words: list, dtype: torch.dtype, weights: torch.Tensor) -> torch.Tensor:
    """The places where uniform numbers fall among the sums of the weights: a sample with replacement."""
    x = fraction(words)
    sums = weights.to(x.dtype).cumsum(-1)
    found = torch.searchsorted(sums, x * sums[..., -1:], right=True)
    return found.clamp_max(weights.shape[-1] - 1).to(dtype)


# All that graphs call.
DISTRIBUTIONS = (uniform, normal, log_normal, exponential, geometric, cauchy, bernoulli, integers, race, places)
