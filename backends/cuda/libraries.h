#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/libraries.h"

namespace kiln::cuda {

/// Where the vendor's libraries may lie: the configured folders; nvidia/*/lib of the packages of the configured Python, of
/// VIRTUAL_ENV, and where none is configured of the first python in PATH; CUDA_HOME, CUDA_PATH and /usr/local/cuda.
SearchPath search_path();

/// The same, and ahead of all else the folder of a library that this process has already, under one of these names.
SearchPath search_path_of_process(const std::vector<std::string>& names);

/// "9.19.0" of 91900, as cuDNN and cuBLASLt number their versions.
std::string version_text(uint64_t version);

}  // namespace kiln::cuda
