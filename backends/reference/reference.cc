#include "backends/reference/reference.h"

#include "backends/reference/kernels.h"

namespace kiln {

Status run_reference(const KernelSpec& spec, std::span<void* const> buffers) {
  KILN_RETURN_IF_ERROR(validate(spec));
  if (buffers.size() != spec.buffers.size()) {
    return invalid_argument("{}: {} buffers, expected {}", kernel_name(spec), buffers.size(), spec.buffers.size());
  }
  if (std::visit([&](const auto& kernel) { return run_kernel(spec, kernel, buffers); }, spec.kernel)) return {};
  return error(StatusCode::out_of_range, "{}: an index is out of range", kernel_name(spec));
}

}  // namespace kiln
