#pragma once

#include <random>
#include <string>

#include "frontend/kernel/kernel_spec.h"
#include "tests/conformance/backend_under_test.h"

namespace kiln::conformance {

struct CheckOptions {
  /// For sums of many terms and the like: multiplies tolerance_of(the accumulator). 0: results are exact.
  double tolerance_factor = 1;
  bool special_values = false;  // among inputs: NaN, infinities, zeros; the ends of integers' ranges
  /// Buffers whose integers are indices: values in [0, bound). 0: any small numbers.
  std::vector<int64_t> index_bounds;
  bool bad_indices = false;        // some of them out of range
  bool off_by_an_element = false;  // buffers begin one element behind a multiple of 16 bytes
};

/// Relative error a result may have that a few operations in the dtype give; of the half precisions, that rounding to
/// them gives.
double tolerance_of(DType dtype);

/// Compiles `spec` with every candidate of the backend, that which takes sizes from its launches included, runs each on random inputs (on the host as slices of the grid in
/// random order), and compares buffers and status with the reference. Reports as GoogleTest failures. Empty, or why
/// nothing was run: this host lacks the target (the kernel was compiled all the same), or the target lacks f64.
std::string check_kernel(const BackendUnderTest& backend, const KernelSpec& spec, std::mt19937_64& random,
                         const CheckOptions& options = {});

}  // namespace kiln::conformance
