#include "backends/cpu/compile/attention/attention.h"

#include <algorithm>
#include <array>
#include <bit>

#include "backends/cpu/compile/attention/decode.h"
#include "backends/cpu/compile/attention/emission.h"
#include "backends/schedule_bytes.h"
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

Status attention_claims(const KernelSpec& spec, const CpuTarget&) {
  return claims(spec, std::get<AttentionSpec>(spec.kernel));
}

/// Whether these are bf16, and the target multiplies such.
Status multiplies_pairs(const KernelSpec& spec, const CpuTarget& target,
                        std::initializer_list<const Access*> operands) {
  if (!target.has(Feature::avx512_bf16)) {
    return error(StatusCode::unimplemented, "attention by pairs of bf16: {} has no such instruction", target.name);
  }
  for (const Access* access : operands) {
    if (const DType dtype = spec.buffers[access->buffer].dtype; dtype != DType::bf16) {
      return error(StatusCode::unimplemented, "attention by pairs of bf16: an operand is {}", to_string(dtype));
    }
  }
  return {};
}

Status pairs_claims(const KernelSpec& spec, const CpuTarget& target) {
  const auto& attention = std::get<AttentionSpec>(spec.kernel);
  KILN_RETURN_IF_ERROR(multiplies_pairs(spec, target, {&attention.q, &attention.k, &attention.v}));
  return claims(spec, attention);
}

Status has_tiles(const CpuTarget& target) {
  if (target.has(Feature::amx_bf16)) return {};
  return error(StatusCode::unimplemented, "attention by tiles of bf16: {} has no such instruction", target.name);
}

Status tiles_claims(const KernelSpec& spec, const CpuTarget& target) {
  KILN_RETURN_IF_ERROR(has_tiles(target));
  return pairs_claims(spec, target);
}

/// All queries that share keys are in the workspace of one task.
Status few_share_keys(const KernelSpec& spec, const AttentionSpec& attention) {
  constexpr int64_t k_most_rows = 1024;
  if (const int64_t rows = attention.heads / attention.kv_heads * attention.q_len; rows > k_most_rows) {
    return error(StatusCode::unimplemented, "attention of few queries: {} share keys, at most {}", rows, k_most_rows);
  }
  return claims(spec, attention);
}

Status decode_claims(const KernelSpec& spec, const CpuTarget&) {
  return few_share_keys(spec, std::get<AttentionSpec>(spec.kernel));
}

Status decode_backward_claims(const KernelSpec& spec, const CpuTarget&) {
  return few_share_keys(spec, std::get<AttentionBackwardSpec>(spec.kernel).forward);
}

/// Whether a task of the backward pass has room for so many keys.
bool fits_backward(const AttentionSpec& forward, int64_t keys) {
  const int64_t bytes = (keys + 64) * (forward.head_dim + forward.value_dim + 32) * 4;
  return bytes <= static_cast<int64_t>(limits::k_task_workspace_bytes) / 2;
}

Status attention_backward_claims(const KernelSpec& spec, const CpuTarget&) {
  const AttentionSpec& forward = std::get<AttentionBackwardSpec>(spec.kernel).forward;
  if (!fits_backward(forward, forward.k_len)) {
    return error(StatusCode::unimplemented, "attention backward: {} keys of {} need too large a workspace",
                 forward.k_len, forward.head_dim + forward.value_dim);
  }
  return claims(spec, forward);
}

Status pairs_backward_claims(const KernelSpec& spec, const CpuTarget& target) {
  const auto& backward = std::get<AttentionBackwardSpec>(spec.kernel);
  const AttentionSpec& forward = backward.forward;
  KILN_RETURN_IF_ERROR(
      multiplies_pairs(spec, target, {&forward.q, &forward.k, &forward.v, &forward.out, &backward.grad_out}));
  return attention_backward_claims(spec, target);
}

Status tiles_backward_claims(const KernelSpec& spec, const CpuTarget& target) {
  KILN_RETURN_IF_ERROR(has_tiles(target));
  return pairs_backward_claims(spec, target);
}

/// `wide` where there are 32 registers. The machine's caches change nothing: keys and values of a first schedule's block, at most
/// 128 of depth 256 in bf16 or 64 in f32, are 128 KiB, a quarter of the smallest second level that comes with so many registers.
/// Larger blocks race: of short ones more can be passed over where a mask leaves out much.
template <typename Choices = AttentionSchedule>
std::vector<Schedule> schedules_of(const CpuTarget& target, std::initializer_list<AttentionSchedule> wide) {
  constexpr AttentionSchedule k_narrow{.query_vectors = 2, .key_block = 64, .tile_rows = 4};
  const std::vector<AttentionSchedule> choices =
      target.has(Feature::avx512) ? std::vector(wide) : std::vector{k_narrow};
  std::vector<Schedule> schedules;
  for (const AttentionSchedule& choice : choices) {
    const Choices of_row{choice};
    schedules.push_back({encode_choices(of_row), of_row.describe(target)});
  }
  return schedules;
}

std::vector<Schedule> attention_schedules(const KernelSpec&, const CpuTarget& target, const Machine&) {
  return schedules_of(target, {{2, 64, 8}, {2, 128, 8}, {2, 256, 8}, {4, 64, 4}, {4, 128, 4}, {2, 96, 12}});
}

std::vector<Schedule> tiles_schedules(const KernelSpec&, const CpuTarget& target, const Machine&) {
  return schedules_of<AmxAttentionSchedule>(
      target, {{4, 128, 32}, {8, 128, 32}, {4, 256, 32}, {2, 128, 32}, {8, 256, 32}, {4, 512, 32}});
}

/// Whether an instruction multiplies more pairs of bf16 in a time than elements: Intel's take two cycles for it, in which
/// they multiply as many elements twice.
bool gains_by_pairs(const CpuTarget& target, const Machine& machine) {
  return !target.has(Feature::amx_bf16) && !machine.model.starts_with("Intel");
}

std::vector<Schedule> pairs_schedules(const KernelSpec&, const CpuTarget& target, const Machine& machine) {
  if (!gains_by_pairs(target, machine)) return {};
  return schedules_of<Bf16AttentionSchedule>(
      target, {{4, 128, 4}, {2, 128, 8}, {4, 96, 6}, {2, 256, 8}, {4, 256, 4}, {2, 96, 12}});
}

std::vector<Schedule> attention_backward_schedules(const KernelSpec&, const CpuTarget& target, const Machine&) {
  return schedules_of(target, {{2, 64, 8}, {4, 64, 4}, {2, 128, 8}, {2, 96, 12}, {4, 64, 8}});
}

std::vector<Schedule> tiles_backward_schedules(const KernelSpec&, const CpuTarget& target, const Machine&) {
  return schedules_of<AmxAttentionSchedule>(
      target, {{4, 128, 32}, {4, 64, 32}, {2, 128, 32}, {8, 64, 32}, {8, 128, 32}, {4, 256, 32}});
}

std::vector<Schedule> pairs_backward_schedules(const KernelSpec&, const CpuTarget& target, const Machine& machine) {
  if (!gains_by_pairs(target, machine)) return {};
  return schedules_of<Bf16AttentionSchedule>(target, {{4, 64, 4}, {2, 64, 8}, {2, 128, 8}, {4, 96, 6}, {2, 96, 12}});
}

constexpr int64_t k_few_queries = 16;  // of each head: then whole vectors of queries cost more

/// Whether code that takes sizes from its launches is of few queries: of few keys they share code with more queries.
bool reads_keys_once(const AttentionSpec& attention) {
  constexpr int64_t k_few_keys = 128;
  return attention.q_len == 1 || (attention.q_len <= k_few_queries && attention.k_len > k_few_keys);
}

/// The first choices of `Choices` for the target's usual machine. None where the row has no schedules there.
template <typename Choices>
std::optional<SizedAttentionSchedule<Choices>> best_of(const std::vector<Schedule>& schedules, uint32_t most_keys = 0) {
  if (schedules.empty()) return std::nullopt;
  const auto best = parse_choices<Choices>(schedules.front().bytes);
  return best.ok() ? std::optional(SizedAttentionSchedule<Choices>{*best, most_keys}) : std::nullopt;
}

/// As of CompileBackend::sized. None where they are of another row.
template <typename Choices>
std::optional<SizedAttentionSchedule<Choices>> given(std::span<const uint8_t> like) {
  const auto choices = parse_choices<SizedAttentionSchedule<Choices>>(like);
  return choices.ok() ? std::optional(*choices) : std::nullopt;
}

template <typename Spec, typename Choices>
std::optional<SizedSpec> sized_attention(const KernelSpec& spec, const CpuTarget& target, const Choices& choices) {
  auto [form, numbers] = opened(std::get<Spec>(spec.kernel));
  if (numbers.launch.carried().size() > limits::k_launch_extents) return std::nullopt;
  return sized_spec(spec, std::move(form), numbers.launch,
                    {encode_choices(choices), "sized, " + choices.describe(target)});
}

template <typename Choices, auto schedules>
std::optional<SizedSpec> sized_forward(const KernelSpec& spec, const CpuTarget& target, std::span<const uint8_t> like) {
  if (like.empty() && reads_keys_once(std::get<AttentionSpec>(spec.kernel))) return std::nullopt;
  const auto choices =
      like.empty() ? best_of<Choices>(schedules(spec, target, default_machine(target))) : given<Choices>(like);
  return choices ? sized_attention<AttentionSpec>(spec, target, *choices) : std::nullopt;
}

/// How many keys a task's workspace has room for: as many for most sizes, so that they share code; the next power of two beyond
/// these, and where heads are so deep that these would not fit.
uint32_t room_for_keys(const AttentionSpec& forward) {
  constexpr uint32_t k_usual = 4096;
  const uint32_t least = std::bit_ceil(static_cast<uint32_t>(forward.k_len));
  return least < k_usual && fits_backward(forward, k_usual) ? k_usual : least;
}

template <typename Choices, auto schedules>
std::optional<SizedSpec> sized_backward(const KernelSpec& spec, const CpuTarget& target,
                                        std::span<const uint8_t> like) {
  const AttentionSpec& forward = std::get<AttentionBackwardSpec>(spec.kernel).forward;
  const auto choices = like.empty()
                           ? best_of<Choices>(schedules(spec, target, default_machine(target)), room_for_keys(forward))
                           : given<Choices>(like);
  if (!choices || choices->most_keys < forward.k_len || !fits_backward(forward, choices->most_keys)) {
    return std::nullopt;
  }
  return sized_attention<AttentionBackwardSpec>(spec, target, *choices);
}

std::vector<Schedule> blocks_of_keys(std::initializer_list<uint32_t> sizes) {
  std::vector<Schedule> schedules;
  for (const uint32_t key_block : sizes) {
    const DecodeSchedule choice{key_block};
    schedules.push_back({encode_choices(choice), choice.describe()});
  }
  return schedules;
}

std::vector<Schedule> decode_schedules(const KernelSpec& spec, const CpuTarget&, const Machine&) {
  if (std::get<AttentionSpec>(spec.kernel).q_len > k_few_queries) return {};
  return blocks_of_keys({128, 64, 256});
}

/// A first schedule's block of keys is 16 KiB, half of a first-level cache, where the depth is 64 or 128. From a dozen queries
/// a head on, the other kernels' blocks of 16 are nearly full.
std::vector<Schedule> decode_backward_schedules(const KernelSpec& spec, const CpuTarget&, const Machine&) {
  constexpr int64_t k_fewer_queries = 12;
  const AttentionSpec& forward = std::get<AttentionBackwardSpec>(spec.kernel).forward;
  if (forward.q_len > k_fewer_queries) return {};
  return forward.head_dim > 64 ? blocks_of_keys({32, 64, 128}) : blocks_of_keys({64, 32, 128});
}

std::optional<SizedSpec> sized_decode(const KernelSpec& spec, const CpuTarget&, std::span<const uint8_t> like) {
  if (like.empty() && !reads_keys_once(std::get<AttentionSpec>(spec.kernel))) return std::nullopt;
  return sized_decode_attention(spec, like);
}

/// The row of `Choices`, and the one whose code takes sizes from its launches.
template <typename Choices, auto claims, auto schedules>
constexpr std::array k_forward_rows{
    Implementation{Choices::k_implementation, claims, schedules, emit_attention<Choices>},
    Implementation{Choices::k_sized, claims, no_schedules, emit_attention<SizedAttentionSchedule<Choices>>,
                   sized_forward<Choices, schedules>}};
template <typename Choices, auto claims, auto schedules>
constexpr std::array k_backward_rows{
    Implementation{Choices::k_implementation, claims, schedules, emit_attention_backward<Choices>},
    Implementation{Choices::k_sized, claims, no_schedules, emit_attention_backward<SizedAttentionSchedule<Choices>>,
                   sized_backward<Choices, schedules>}};

constexpr auto k_amx = k_forward_rows<AmxAttentionSchedule, tiles_claims, tiles_schedules>;
constexpr auto k_bf16 = k_forward_rows<Bf16AttentionSchedule, pairs_claims, pairs_schedules>;
constexpr auto k_elements = k_forward_rows<AttentionSchedule, attention_claims, attention_schedules>;
constexpr std::array k_forward{
    Implementation{DecodeSchedule::k_implementation, decode_claims, decode_schedules, emit_decode_attention},
    Implementation{SizedDecodeSchedule::k_implementation, decode_claims, no_schedules, emit_sized_decode_attention,
                   sized_decode},
    k_amx[0],
    k_amx[1],
    k_bf16[0],
    k_bf16[1],
    k_elements[0],
    k_elements[1]};

constexpr auto k_amx_backward = k_backward_rows<AmxAttentionSchedule, tiles_backward_claims, tiles_backward_schedules>;
constexpr auto k_bf16_backward =
    k_backward_rows<Bf16AttentionSchedule, pairs_backward_claims, pairs_backward_schedules>;
constexpr auto k_elements_backward =
    k_backward_rows<AttentionSchedule, attention_backward_claims, attention_backward_schedules>;
constexpr std::array k_backward{Implementation{DecodeSchedule::k_implementation, decode_backward_claims,
                                               decode_backward_schedules, emit_decode_backward},
                                k_amx_backward[0],
                                k_amx_backward[1],
                                k_bf16_backward[0],
                                k_bf16_backward[1],
                                k_elements_backward[0],
                                k_elements_backward[1]};

}  // namespace

std::span<const Implementation> attention_implementations() { return k_forward; }
std::span<const Implementation> attention_backward_implementations() { return k_backward; }

}  // namespace kiln::cpu
