"""Numbers of a distribution, made of random words (draws.py) in torch's functions. Kernels compute the same functions of the same
words: expansion.py traces what is here, so there is no second form of it.

Words are integers of 32 bits in an i64, and lie along its first dim: those of an element of f64 are two, those of one of any other
dtype, which is computed in f32, one; there are twice as many where a distribution is made of two uniform numbers. Whole numbers take
as many words as their range asks for. Parameters are not looked at: what eager refuses, as a probability above 1, gives some number.
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


def fractions(words: torch.Tensor, count: int = 1, bits: int = significand(torch.float32)) -> torch.Tensor:
    """So many for each element, along the first dim: uniform in [0, 1), in steps of 2**-bits, or of 2**-53 where there are words for
    f64. These are the result's own, which is never rounded to 1."""
    if len(words) == count:
        return (words & (1 << bits) - 1).to(torch.int32).to(torch.float32) * 2.0**-bits
    high, low = words[:count] & (1 << 27) - 1, words[count:] & (1 << 26) - 1
    return (high * 2**26 + low).to(torch.float64) * 2.0**-53


def uniform(words: torch.Tensor, dtype: torch.dtype, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    x = fractions(words, bits=significand(dtype))[0]
    if (low, high) == (0, 1):
        return x.to(dtype)
    x = (x * (high - low) + low).to(dtype)
    return torch.where(x < high, x, low)  # rounding gives `high`, which is not of the range


def standard_normal(words: torch.Tensor) -> torch.Tensor:
    """By Box and Muller, of two numbers."""
    x = fractions(words, 2)
    return torch.sqrt(-2 * torch.log(1 - x[0])) * torch.cos(2 * math.pi * x[1])


def normal(words: torch.Tensor, dtype: torch.dtype, mean=0.0, std=1.0) -> torch.Tensor:
    """mean, std: numbers or tensors."""
    x = standard_normal(words)
    x = x if _is_number(std, 1) else x * std
    return (x if _is_number(mean, 0) else x + mean).to(dtype)


def _is_number(value, number: int) -> bool:
    return not isinstance(value, torch.Tensor) and value == number


def log_normal(words: torch.Tensor, dtype: torch.dtype, mean: float, std: float) -> torch.Tensor:
    return (standard_normal(words) * std + mean).exp().to(dtype)


def exponential(words: torch.Tensor, dtype: torch.dtype, lambd: float = 1.0) -> torch.Tensor:
    """Above 0, as what is divided by it in a race asks for."""
    x = -torch.log(1 - fractions(words)[0])
    return (x.clamp_min(torch.finfo(x.dtype).eps / 2) / lambd).to(dtype)


def geometric(words: torch.Tensor, dtype: torch.dtype, p: float) -> torch.Tensor:
    if p >= 1:
        return torch.ones_like(words[0], dtype=dtype)
    return (torch.log(1 - fractions(words)[0]) / math.log1p(-p)).ceil().clamp_min(1).to(dtype)


def cauchy(words: torch.Tensor, dtype: torch.dtype, median: float, sigma: float) -> torch.Tensor:
    """The cotangent of an angle in (0, pi / 2], and a bit that the angle is not made of for a sign."""
    angle = (1 - fractions(words)[0]) * (math.pi / 2)
    sign = 1 - 2 * (words[0] >> 31).to(torch.int32)
    return (angle.cos() / angle.sin() * sign * sigma + median).to(dtype)


def bernoulli(words: torch.Tensor, dtype: torch.dtype, p) -> torch.Tensor:
    """p: a number or a tensor."""
    is_one = fractions(words)[0] < p if isinstance(p, torch.Tensor) else words[0] < words_of_share(p)
    return is_one.to(dtype)


def integers(words: torch.Tensor, dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
    """Of [low, high): the words are the digits of a fraction, which is multiplied by how many numbers there are."""
    digits = (words & (1 << DIGIT) - 1).flip(0)  # the lowest first
    factors = [high - low >> DIGIT * i & (1 << DIGIT) - 1 for i in range(len(words) - 1)]
    result, carry = low, 0
    for place in range(len(words) + len(factors)):
        column = sum((digits[place - i] * factor for i, factor in enumerate(factors) if 0 <= place - i < len(words)), carry)
        carry = column >> DIGIT
        if place >= len(words):
            result = result + (column & (1 << DIGIT) - 1) * (1 << DIGIT * (place - len(words)))
    return result.to(dtype)


def words_for(count: int) -> int:
    """How many words a whole number of so many takes."""
    return math.ceil((count.bit_length() + EVENNESS) / DIGIT)


def race(words: torch.Tensor, dtype: torch.dtype, weights: torch.Tensor, num_samples: int) -> torch.Tensor:
    """The places of those that win when each of the weights waits for an exponential time: a sample without replacement."""
    speeds = weights / exponential(words, torch.float32 if len(words) == 1 else torch.float64)
    return (speeds.argmax(-1, keepdim=True) if num_samples == 1 else speeds.topk(num_samples)[1]).to(dtype)


def places(words: torch.Tensor, dtype: torch.dtype, weights: torch.Tensor) -> torch.Tensor:
    """The places where uniform numbers fall among the sums of the weights: a sample with replacement."""
    x = fractions(words)[0]
    sums = weights.to(x.dtype).cumsum(-1)
    found = torch.searchsorted(sums, x * sums[..., -1:], right=True)
    return found.clamp_max(weights.shape[-1] - 1).to(dtype)


# All that graphs call.
DISTRIBUTIONS = (uniform, normal, log_normal, exponential, geometric, cauchy, bernoulli, integers, race, places)
