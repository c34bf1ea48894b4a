#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace kiln::level_zero {

/// Whether the bytes have the form of a SPIR-V module up to version 1.4 with an entry point named k_kernel_name: header,
/// instructions that fill the module exactly. What drivers' compilers were seen to end the process for, or to accept and
/// build nothing from. Not validity: that is checked where modules are written.
/// Errors: data_loss.
Status check_spirv_form(std::span<const uint8_t> bytes);

}  // namespace kiln::level_zero
