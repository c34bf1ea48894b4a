#include "backends/cpu/compile/attention.h"

#include <array>

#include "backends/cpu/compile/attention_emission.h"
#include "base/limits.h"

namespace kiln::cpu {
namespace {

Status claims(const KernelSpec& spec, const AttentionSpec& attention) {
  if (size_of(attention.dtype) > 4 || !is_floating(attention.dtype)) {
    return error(StatusCode::unimplemented, "attention: dtype {}, known are f32, f16 and bf16",
                 to_string(attention.dtype));
  }
  if (spec.buffers[attention.lse.buffer].dtype != DType::f32) {
    return error(StatusCode::unimplemented, "attention: logsumexp in {}, known is f32",
                 to_string(spec.buffers[attention.lse.buffer].dtype));
  }
  constexpr int64_t k_largest_dim = 1024;  // a block of queries stays in the second-level cache
  if (attention.head_dim > k_largest_dim || attention.value_dim > k_largest_dim) {
    return error(StatusCode::unimplemented, "attention: heads of {} and {}, at most {}", attention.head_dim,
                 attention.value_dim, k_largest_dim);
  }
  if (attention.k_len < 1 || attention.q_len < 1 || attention.k_len > INT32_MAX || attention.q_len > INT32_MAX) {
    return error(StatusCode::unimplemented, "attention: {} queries and {} keys", attention.q_len, attention.k_len);
  }
  for (const ScalarNode& node : attention.score.exprs) {
    if (arity(node.op) == 0 || node.op == ScalarOp::cast) continue;
    const DType dtype = attention.score.exprs[node.operands[node.op == ScalarOp::select ? 1 : 0]].dtype;
    if (!ScalarEmitter::supports(node.op, dtype)) {
      return error(StatusCode::unimplemented, "attention: {} of {} has no meaning", to_string(node.op),
                   to_string(dtype));
    }
  }
  if (attention.score_value != k_no_expr && attention.score.exprs[attention.score_value].dtype != DType::f32) {
    return error(StatusCode::unimplemented, "attention: scores are {}, known is f32",
                 to_string(attention.score.exprs[attention.score_value].dtype));
  }
  return {};
}

std::vector<Schedule> schedules(const CpuTarget& target, std::initializer_list<AttentionSchedule> wide) {
  std::vector<Schedule> result;
  const auto add = [&](const AttentionSchedule& schedule) {
    result.push_back(
        {encode(schedule), fmt::format("queries {} keys {} rows {}", schedule.query_vectors * target.vector_bytes / 4,
                                       schedule.key_block, schedule.tile_rows)});
  };
  if (target.has(Feature::avx512)) {
    for (const AttentionSchedule& schedule : wide) add(schedule);
  } else {  // 16 registers
    add({.query_vectors = 2, .key_block = 64, .tile_rows = 4});
  }
  return result;
}

}  // namespace

Status attention_claims(const KernelSpec& spec, const CpuTarget&) {
  return claims(spec, std::get<AttentionSpec>(spec.kernel));
}

std::vector<Schedule> attention_candidates(const KernelSpec&, const CpuTarget& target) {
  return schedules(target, {{2, 128, 8}, {2, 64, 8}, {2, 256, 8}, {4, 64, 4}, {4, 128, 4}, {2, 96, 12}});
}

Status attention_backward_claims(const KernelSpec& spec, const CpuTarget&) {
  const AttentionSpec& forward = std::get<AttentionBackwardSpec>(spec.kernel).forward;
  const int64_t bytes = (forward.k_len + 64) * (forward.head_dim + forward.value_dim + 32) * 4;
  if (bytes > static_cast<int64_t>(limits::k_task_workspace_bytes) / 2) {
    return error(StatusCode::unimplemented, "attention backward: {} keys of {} need too large a workspace",
                 forward.k_len, forward.head_dim + forward.value_dim);
  }
  return claims(spec, forward);
}

std::vector<Schedule> attention_backward_candidates(const KernelSpec&, const CpuTarget& target) {
  return schedules(target, {{2, 64, 8}, {4, 64, 4}, {2, 128, 8}, {2, 96, 12}, {4, 64, 8}});
}

}  // namespace kiln::cpu
