#pragma once

#include <cstdint>

namespace kiln::cpu {

/// The one calling convention between generated code and the process that runs it.
///
/// buffers: one pointer per KernelSpec buffer, in order. workspace: Image::workspace_bytes, 64-byte aligned,
/// owned by this call. status: set to LaunchStatus::index_out_of_range on a data error, never cleared;
/// several threads may write the same value. Computes tasks [first_task, last_task) of the grid.
using EntryPoint = void (*)(void* const* buffers, void* workspace, uint32_t* status, int64_t first_task,
                            int64_t last_task);

}  // namespace kiln::cpu
