#include <algorithm>
#include <cmath>

#include "backends/level_zero/compile/attention_tiles.h"
#include "backends/schedule_bytes.h"

namespace kiln::level_zero {

Status attention_claims(const KernelSpec& spec, const DeviceFamily& family) {
  constexpr int64_t k_most_depth = 256;
  const AttentionProblem problem = attention_problem_of(spec);
  const AttentionSpec& a = *problem.forward;
  KILN_RETURN_IF_ERROR(claims_buffers(spec, family));
  KILN_RETURN_IF_ERROR(claims_body(a.score, family));
  const auto refuse = [&](std::string_view what, auto value) {
    return error(StatusCode::unimplemented, "level zero {}: {} of {}", kind_name(spec), what, value);
  };
  if (const int64_t depth = std::max(a.head_dim, a.value_dim); depth > k_most_depth) return refuse("a depth", depth);
  if (!std::isfinite(a.scale)) return refuse("a scale", a.scale);
  for (const int64_t extent : {a.batch * a.heads, problem.queries(), a.k_len}) {
    if (extent > INT32_MAX / 8) return refuse("an extent", extent);
  }
  if (ranked_schedules(problem, family, default_machine(family)).empty()) {
    return error(StatusCode::unimplemented, "level zero: no work-group has room for {}", kernel_name(spec));
  }
  return {};
}

std::vector<Schedule> attention_candidates(const KernelSpec& spec, const DeviceFamily& family, const Machine& machine) {
  constexpr int k_most = 2;  // by matrix units, and without
  int taken[2] = {};
  std::vector<Schedule> schedules;
  for (const auto& schedule : ranked_schedules(attention_problem_of(spec), family, machine)) {
    if (taken[schedule.by_units ? 1 : 0]++ < k_most)
      schedules.push_back({encode_choices(schedule), schedule.describe()});
  }
  return schedules;
}

Expected<EmittedKernel> emit_attention(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                       const DeviceFamily& family) {
  const AttentionProblem problem = attention_problem_of(spec);
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<AttentionSchedule>(bytes));
  KILN_RETURN_IF_ERROR(validate(schedule, problem, family));
  if (problem.backward == nullptr) {
    emit_attention_forward(emitter, problem, schedule, family);
  } else {
    emit_attention_backward(emitter, problem, schedule, family);
  }
  return EmittedKernel{{static_cast<uint32_t>(schedule.groups(problem)), schedule.group_size(),
                        static_cast<uint32_t>(spec.buffers.size())},
                       schedule.by_units ? bit(Feature::matrix_units) : 0};
}

}  // namespace kiln::level_zero
