#pragma once

#include "backends/cpu/compile/emit/kernel_emission.h"
#include "backends/cpu/compile/sort/sort_rows.h"

namespace kiln::cpu {

/// Bytes of a task's workspace that sorts rows of up to `room` elements by their bytes.
int64_t radix_workspace_bytes(int64_t room, int64_t key_bytes);

/// Writes a kernel that sorts whole rows, equal elements as they stand.
LaunchShape emit_radix_sort(Emitter& emitter, SortRows rows, int64_t room);

}  // namespace kiln::cpu
