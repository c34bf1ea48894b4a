#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/compile/library_choice.h"
#include "backends/cuda/cublaslt/library.h"
#include "backends/cuda/launch_record.h"
#include "backends/cuda/targets.h"

/// Products by cuBLASLt, beside the kernels of gemm_schedule.h: the specs that it computes as they stand.
namespace kiln::cuda {

/// One of the algorithms that cuBLASLt proposes where the code is loaded, by its place in their order.
struct CublasltChoice : LibraryChoice {
  static constexpr std::string_view k_implementation = "cublaslt";
};

/// The spec as the library is asked for it, without its version and a place: operands of f16, bf16, f32 or f64 that are loaded
/// as they are, in rows or columns; results stored once, in rows or columns, as the operands' dtype or, of halves, f32. What
/// follows the product may be a factor, a matrix like the result with a factor of its own, a bias, and behind these, stored as
/// halves, GELU in its tanh form, whose input may be stored as well; or, stored as halves, the gradient of that GELU at a matrix
/// like the result. Else nothing.
std::optional<ProductRecord> cublaslt_product_of(const KernelSpec& spec);

/// cuBLASLt, where this host has it and it computes the spec. Else null.
const Cublaslt* cublaslt_for(const KernelSpec& spec);

/// What it may propose for such a spec, best first; named before any device is asked.
std::vector<Schedule> cublaslt_schedules();

/// What stands in the image for it.
/// Errors: failed_precondition where there is no cuBLASLt, or not for such a product.
Expected<ProductRecord> cublaslt_product(const KernelSpec& spec, const CublasltChoice& choice);

}  // namespace kiln::cuda
