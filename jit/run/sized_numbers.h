#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/dim.h"

namespace kiln {

/// A plan or program for many sizes is one for some sizes, and says of each of its numbers that depends on them how: a number is a
/// polynomial over the symbols of the graph. Its form for other sizes is a copy with other numbers.

/// The sizes of one symbol that a program serves, both included.
struct SizeRange {
  int64_t first = 0, last = 0;
  bool operator==(const SizeRange&) const = default;
};

/// A 64-bit number that begins so many bytes before the end of a plan's or program's bytes.
struct SizedNumber {
  uint32_t before_end = 0;
  Dim value;
};

/// The copy for these sizes, one for each symbol. Whoever uses it verifies it: any number may have changed.
/// Errors: failed_precondition for sizes outside the program's ranges, or for a program of one size; data_loss.
Expected<std::vector<uint8_t>> resized_program(std::span<const uint8_t> program, std::span<const int64_t> sizes);
Expected<std::vector<uint8_t>> resized_plan(std::span<const uint8_t> plan, std::span<const int64_t> sizes);

}  // namespace kiln
