#pragma once

#include <functional>
#include <vector>

#include "backends/backend.h"
#include "backends/level_zero/compile/emitter.h"
#include "backends/level_zero/target.h"

namespace kiln::level_zero {

/// How a kernel is launched, and the features that it needs beside those of its whole family.
struct EmittedKernel {
  LaunchForm launch;
  uint64_t features = 0;
};

/// What every kind of kernel offers: a row of the table in write_kernel.cc.
///
/// The spec is valid. claims: unimplemented with the reason. emit: the kernel whole, from its parameters on; errors
/// with invalid_argument for bytes that are no schedule that fits the spec.
Status loops_claims(const KernelSpec& spec, const DeviceFamily& family);
std::vector<Schedule> loops_candidates(const KernelSpec& spec, const DeviceFamily& family, const Machine& machine);
Expected<EmittedKernel> emit_loops(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                   const DeviceFamily& family);

Status gemm_claims(const KernelSpec& spec, const DeviceFamily& family);
std::vector<Schedule> gemm_candidates(const KernelSpec& spec, const DeviceFamily& family, const Machine& machine);
Expected<EmittedKernel> emit_gemm(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                  const DeviceFamily& family);

Status attention_claims(const KernelSpec& spec, const DeviceFamily& family);
std::vector<Schedule> attention_candidates(const KernelSpec& spec, const DeviceFamily& family, const Machine& machine);
Expected<EmittedKernel> emit_attention(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                       const DeviceFamily& family);

/// Whether the family has what the body's operations need.
Status claims_body(const Body& body, const DeviceFamily& family);
/// The same for the dtypes in memory.
Status claims_buffers(const KernelSpec& spec, const DeviceFamily& family);

/// Opens iteration dims: `dims` (outermost first) get the indices of point `number`, counted in row-major order.
/// `number` has 32 or 64 bits; the arithmetic is as narrow.
void open_dims(Emitter& emitter, Ids& index, const std::vector<size_t>& dims, const std::vector<int64_t>& extents,
               Id number);
/// The narrowest type that counts to `count`.
Id counter_type(Emitter& emitter, int64_t count);

/// The total of a value of every lane of a sub-group, for each of them.
Id combine_lanes(Emitter& emitter, Id value, const std::function<Id(Id, Id)>& combine,
                 uint32_t lanes = k_sub_group_size);

/// The points of `dims`.
int64_t points_of(const std::vector<int64_t>& extents, const std::vector<size_t>& dims);

/// The most groups of one launch.
inline constexpr int64_t k_max_groups = INT32_MAX;

}  // namespace kiln::level_zero
