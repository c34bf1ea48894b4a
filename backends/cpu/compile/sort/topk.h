#pragma once

#include "backends/cpu/compile/emit/kernel_emission.h"
#include "backends/cpu/compile/sort/sort_rows.h"

namespace kiln::cpu {

/// Bytes of a task's workspace that finds the first elements of rows of up to `room`.
int64_t topk_workspace_bytes(int64_t room, int64_t key_bytes);

/// Writes a kernel that finds the first elements of rows: the places that topk_places() gives.
LaunchShape emit_topk(Emitter& emitter, SortRows rows, bool sorted, int64_t room);

}  // namespace kiln::cpu
