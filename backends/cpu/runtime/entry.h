#ifndef KILN_BACKENDS_CPU_RUNTIME_ENTRY_H
#define KILN_BACKENDS_CPU_RUNTIME_ENTRY_H

#include <stdint.h>

/* The one calling convention between generated code and the process that runs it. C, because the executor of
 * candidates is.
 *
 * buffers: one pointer per KernelSpec buffer, in order. workspace: Image::workspace_bytes, 64-byte aligned, owned by
 * this call. status: set to LaunchStatus::index_out_of_range on a data error, never cleared; several threads may write
 * the same value. The call computes tasks [first_task, last_task) of the grid. extents: the sizes that the launch
 * carries (Launch.extents in jit/run/program.fbs), in its order; not read by code that takes none. */
typedef void (*kiln_entry_point)(void* const* buffers, void* workspace, uint32_t* status, int64_t first_task,
                                 int64_t last_task, const int64_t* extents);

#endif /* KILN_BACKENDS_CPU_RUNTIME_ENTRY_H */
