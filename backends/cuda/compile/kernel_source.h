#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/launch_record.h"
#include "backends/cuda/targets.h"

namespace kiln::cuda {

/// What every text calls its entry point: a macro of the kernel's own name, by which profilers and debuggers list it.
inline constexpr std::string_view k_entry = "KILN_ENTRY";

/// One kernel as text, to stand after prelude.cuh and scalar.cuh, and how it is launched (resources and cubin are the
/// compiler's to fill in).
struct KernelSource {
  std::string text;
  KernelRecord record;
};

/// What a launch's code is made of: the kernels of its record, and the parts of its workspace.
struct LaunchSource {
  std::vector<KernelSource> kernels;
  std::vector<uint64_t> workspace_parts;
};

}  // namespace kiln::cuda
