#pragma once

#include <string_view>

namespace kiln {

/// Names what makes kernels for one backend: a digest over the sources that decide them (frontend, verdict, jit/build, the
/// common part of backends/, and the backend's own folder), computed at build time by cmake/BuildId.cmake. It is part of
/// every key of the backend, so a changed generator never meets old code, and a change of one backend leaves what the
/// others made. A backend that is not in the tree has the digest over the common sources.
std::string_view generator_build_id(std::string_view backend);
/// Names all of them: a digest over the sources of every backend.
std::string_view generator_build_id();

}  // namespace kiln
