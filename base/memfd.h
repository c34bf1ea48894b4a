#pragma once

#include <cstdint>
#include <span>

#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// Memory that can be sent to another process. Executable where the kernel asks to be told (memfd_noexec).
/// Errors: resource_exhausted.
Expected<UniqueFd> make_memfd(const char* name, bool executable = false);

/// A memfd that holds `bytes`, which nobody can change any more.
Expected<UniqueFd> sealed_memfd(const char* name, std::span<const uint8_t> bytes, bool executable = false);

}  // namespace kiln
