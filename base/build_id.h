#pragma once

#include <string_view>

namespace kiln {

/// Names the code generator: a digest over the sources that decide kernels (frontend, backends, autotune,
/// jit/build), computed at build time, and LLVM's version. Part of every key, so a changed generator never
/// meets old code, and the same in client, daemon and workers of one build.
std::string_view generator_build_id();

}  // namespace kiln
