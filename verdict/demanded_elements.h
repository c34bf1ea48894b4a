#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kiln {

/// The elements (flat, row-major over `dims`) a verdict looks at: corners, points along the edges of the last two dims
/// taken as a matrix, and a lattice over it. Distinct, at most `budget`; all of them when there are no more than that.
///
/// Promise: of a matrix of E elements, every rectangle of at least 2 E / L elements, whatever its shape and place, holds
/// one, L being the largest Fibonacci number ≤ budget - 200. With 12,288: every 6x64 tile of 512x3072.
/// Order: the corners, the edges, then rows in random order, the points of one row together (the reference of a
/// normalisation costs a row, however many of its elements are asked for). A prefix sees all the matrix, thinly.
std::vector<int64_t> demanded_elements(const std::vector<int64_t>& dims, size_t budget, uint64_t seed);

}  // namespace kiln
