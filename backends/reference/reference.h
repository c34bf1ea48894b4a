#pragma once

#include <span>

#include "base/status.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// Executes a kernel spec on host memory, straightforwardly and in f64: what every other backend is compared
/// with. Stores round to the buffer's dtype, explicit casts round to theirs, nothing else does.
///
/// `buffers` are in KernelSpec order, each with BufferSpec::elements elements, not overlapping.
/// Threading: any thread; buffers belong to the call.
/// Errors: what validate() finds; out_of_range when an indirect index is outside its bound (such a load gave
///   0, such a store did nothing, everything else was done).
/// Cost: one virtual machine step per expression and point; meant for tests and verdicts, not for work.
Status run_reference(const KernelSpec& spec, std::span<void* const> buffers);

}  // namespace kiln
