#pragma once

#include <span>

#include "frontend/fuse/lowering.h"

namespace kiln {

/// A kernel spec and which values its buffers hold.
struct LoweredKernel {
  KernelSpec spec;
  std::vector<KernelBuffers::Entry> buffers;  // one per spec.buffers
};

/// The kernels that make a group's stored values, in order; or why there are none.
struct LoweringResult {
  std::vector<LoweredKernel> kernels;
  std::optional<LoweringFailure> failure;
  bool ok() const { return !failure.has_value(); }
};

/// Pointwise ops, reductions, copies: one loops kernel storing `roots`, later ones in the graph first.
LoweringResult lower_loops(const FusionState& state, GroupId group, std::span<const ValueId> roots);

/// A matrix product, its operands' expressions and its epilogue, storing `roots`, later ones in the graph first.
LoweringResult lower_gemm(const FusionState& state, GroupId group, NodeId product, std::span<const ValueId> roots);

/// attention or attention_backward.
LoweringResult lower_attention(const FusionState& state, GroupId group, NodeId node);

/// argsort, topk.
LoweringResult lower_sort(const FusionState& state, GroupId group, NodeId node);

/// index_add, scatter, scatter_add: a kernel that stores the first operand, one that adds to it.
LoweringResult lower_scatter(const FusionState& state, GroupId group, NodeId node);

/// Copies the value from its first home to another one.
LoweringResult lower_copy(const FusionState& state, ValueId value, uint32_t home);

/// Elements from a buffer's first to the last that the value has with these strides.
int64_t footprint(std::span<const int64_t> extents, std::span<const int64_t> strides);

/// The spec's buffers for what the bodies referred to.
std::vector<BufferSpec> buffer_specs(const FusionState& state, const KernelBuffers& buffers);

inline LoweringResult lowering_failed(LoweringFailure failure) { return {{}, std::move(failure)}; }
inline LoweringResult lowering_failed(ValueId materialise, std::string why) {
  return {{}, LoweringFailure{std::nullopt, std::nullopt, materialise, std::move(why)}};
}

}  // namespace kiln
