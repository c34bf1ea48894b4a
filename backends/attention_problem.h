#pragma once

#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// Attention's forward pass, or its gradients: what kernels of both see of a spec, which outlives it.
struct AttentionProblem {
  const KernelSpec* spec = nullptr;
  const AttentionSpec* forward = nullptr;
  const AttentionBackwardSpec* backward = nullptr;  // null: the forward pass

  /// How many heads share keys.
  int64_t group() const { return forward->heads / forward->kv_heads; }
  /// Heads of keys, of all batches. The queries of all heads that share keys are rows of one place.
  int64_t places() const { return forward->batch * forward->kv_heads; }
  int64_t queries() const { return group() * forward->q_len; }
};

/// Of a spec of either kind.
inline AttentionProblem attention_problem_of(const KernelSpec& spec) {
  const auto* backward = std::get_if<AttentionBackwardSpec>(&spec.kernel);
  return {&spec, backward != nullptr ? &backward->forward : &std::get<AttentionSpec>(spec.kernel), backward};
}

}  // namespace kiln
