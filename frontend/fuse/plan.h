#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "base/expected.h"
#include "frontend/fuse/fuse_choices.h"
#include "frontend/ir/graph.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// Where a plan's buffer comes from.
enum class BufferKind : uint8_t { input = 0, output = 1, temporary = 2, constant = 3 };

struct PlanBuffer {
  BufferKind kind = BufferKind::temporary;
  uint32_t index = 0;  // which input or output of the region; for constants, into Plan::constants
  DType dtype = DType::f32;
  int64_t elements = 0;
  /// Strides, in elements, of the values that launches name for it.
  std::vector<int64_t> strides;
  uint64_t bytes() const { return static_cast<uint64_t>(elements) * size_of(dtype); }
};

struct Launch {
  uint32_t spec = 0;              // index into Plan::specs
  std::vector<uint32_t> buffers;  // index into Plan::buffers, one per KernelSpec::buffers
  /// The nodes of Plan::graph this launch computes, ascending.
  std::vector<NodeId> nodes;
  /// The value of Plan::graph that each kernel buffer holds, after the launch where it is stored to.
  std::vector<ValueId> values;
  /// The value that each inout buffer holds before the launch; k_none for other buffers.
  std::vector<ValueId> initial;
};

/// A region's kernel specs, their order and buffers. Inputs and outputs are the region graph's, in order. Every output
/// is written, also one that is an input or another output.
struct Plan {
  Graph graph;                    // the region decomposed into what kernels are made of
  Graph region;                   // as it was given
  FuseChoices choices;            // that it was made with
  std::vector<ValueId> values;    // of `region`: the value of `graph` that each is; k_none where it is gone
  std::vector<KernelSpec> specs;  // distinct
  std::vector<Digest> digests;    // of the canonical bytes of each spec: what keys hold
  std::vector<PlanBuffer> buffers;
  std::vector<Launch> launches;
  std::vector<std::vector<uint8_t>> constants;
};

/// Makes kernels of a region graph: every symbol bound (all dims constant); composites are decomposed here.
/// Deterministic: equal graphs and choices give equal plans. Whatever the choices, a plan computes the same.
/// Errors: unimplemented, naming the op, when a node has no kernel form.
Expected<Plan> fuse(const Graph& region, const FuseChoices& choices = {});

/// What one launch computes, for judging its kernel: as the caller's own ops (Plan::region) where the launch computes
/// whole ones, so that a wrong decomposition is found too; else as the part of Plan::graph. Its inputs are the launch's
/// buffers that are read (input, inout), in order; its outputs those that are written (output, inout), in order, with
/// the strides they have in their buffers.
Graph reference_graph(const Plan& plan, const Launch& launch);

/// The same always as the part of Plan::graph: whose intermediate values are those that the kernel has, too.
Graph primitive_graph(const Plan& plan, const Launch& launch);

}  // namespace kiln
