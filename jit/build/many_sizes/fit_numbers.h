#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/expected.h"
#include "jit/build/many_sizes/sample_sizes.h"

namespace kiln {

/// What makes one plan, or program, of several that differ in sizes: their bytes are equally many and differ in 64-bit numbers,
/// each of which is a polynomial over the sizes: a single term of degree 4 or less, or a sum of terms of degree 2 or less, with
/// integer coefficients. `samples[i]` are the bytes for sizes[i]. Errors: unimplemented where that is not so.
Expected<std::vector<SizedNumber>> fit_numbers(std::span<const Sizes> sizes,
                                               std::span<const std::vector<uint8_t>> samples);

/// How many terms such a sum over so many symbols has at most.
size_t sum_terms(size_t symbols);

}  // namespace kiln
