#include "backends/cuda/compile/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "backends/attention_scores.h"
#include "backends/cuda/compile/attention_schedule.h"
#include "backends/cuda/compile/body_source.h"
#include "backends/cuda/compile/cudnn_attention.h"
#include "backends/cuda/compile/texts.h"
#include "base/ceil_div.h"

// Attention kernels: attention_common.cuh and one of the templates, after what is written here for one spec and schedule:
// constants, the tensors as structs, the score's expression as a function.
namespace kiln::cuda {
namespace {

using AttentionKind = AttentionSchedule::Kind;

constexpr int64_t k_most_depth = 256;
constexpr uint32_t k_combining_threads = 256;

/// The launch's workspace, where it has one, is the last buffer of the spec that kernels are written for.
uint32_t workspace_of(const AttentionProblem& problem) {
  return static_cast<uint32_t>(problem.spec->buffers.size()) - 1;
}

class AttentionWriter {
 public:
  AttentionWriter(const AttentionProblem& problem, const AttentionSchedule& schedule)
      : m_problem(problem), m_attention(*problem.forward), m_schedule(schedule) {
    if (schedule.kind == AttentionKind::wgmma) m_columns = columns_of(problem);
  }

  /// The kernel that passes over columns.
  std::string run(std::string_view entry) {
    write(entry, m_schedule.threads());
    return fmt::format("{}{}{}{}{}{}", m_text, attention_common_text,
                       m_schedule.kind == AttentionKind::simple ? attention_simple_tiles_text : attention_tiles_text,
                       m_schedule.kind == AttentionKind::wgmma ? attention_warpgroups_text : "",
                       m_problem.backward != nullptr ? attention_backward_text : "",
                       *implementation_of(m_problem, m_schedule.kind)->text);
  }
  /// The one that combines parts of keys.
  std::string combine(std::string_view entry) {
    m_columns.clear();
    write(entry, k_combining_threads);
    return fmt::format("{}{}{}", m_text, attention_common_text, attention_combine_text);
  }

 private:
  void write(std::string_view entry, uint32_t threads) {
    m_text = opening(*m_problem.spec, entry, m_columns.size());
    write_constants(threads);
    write_tensors();
    write_score();
    m_text += "\n}  // namespace kiln\n";
  }

  void write_constants(uint32_t threads) {
    const AttentionSpec& a = m_attention;
    const std::string_view accumulator = register_type(accumulator_of(a.dtype));
    m_text += fmt::format("\nusing Accumulator = {};\nusing Element = {};\n", accumulator,
                          is_half(a.dtype) ? memory_type(a.dtype) : accumulator);
    const auto constant = [&](std::string_view type, std::string_view name, auto value) {
      m_text += fmt::format("constexpr {} {} = {};\n", type, name, value);
    };
    constant("i32", "k_batch", a.batch);
    constant("i32", "k_kv_heads", a.kv_heads);
    constant("i32", "k_group", m_problem.group());
    constant("i32", "k_q_len", a.q_len);
    constant("i32", "k_k_len", a.k_len);
    constant("i32", "k_head_dim", a.head_dim);
    constant("i32", "k_value_dim", a.value_dim);
    constant("Accumulator", "k_scale", fmt::format("static_cast<Accumulator>({})", a.scale));
    constant("bool", "k_is_causal", a.causal);
    // Further out, all keys come too late, or none.
    constant("i32", "k_causal_offset", std::clamp(a.causal_offset, -a.q_len, a.k_len));
    constant("bool", "k_has_score", a.score_value != k_no_expr);
    constant("bool", "k_leaves_out", leaves_out_scores(a.score, a.score_value));
    constant("bool", "k_splits", m_schedule.splits(m_problem));
    constant("i32", "k_tile_rows", m_schedule.rows);
    constant("i32", "k_tile_columns", m_schedule.columns);
    constant("i32", "k_stages", m_schedule.stages);
    constant("i32", "k_parts", m_schedule.parts);
    constant("i32", "k_partial_width", AttentionSchedule::partial_width(m_problem));
    constant("i32", "k_threads", threads);
    constant("u32", "k_shared_bytes", m_schedule.shared_bytes(m_problem));
  }

  void write_tensors() {
    const AttentionSpec& a = m_attention;
    write_tensor("Q", a.q, true, a.head_dim);
    write_tensor("K", a.k, false, a.head_dim);
    write_tensor("V", a.v, false, a.value_dim);
    write_tensor("Out", a.out, true, a.value_dim);
    if (m_problem.backward != nullptr) {
      write_tensor("GradOut", m_problem.backward->grad_out, true, a.value_dim);
      write_tensor("GradQ", m_problem.backward->grad_q, true, a.head_dim);
      write_tensor("GradK", m_problem.backward->grad_k, false, a.head_dim);
      write_tensor("GradV", m_problem.backward->grad_v, false, a.value_dim);
    }
    const Address lse = address_of(a.lse, {a.batch, a.heads, a.q_len});
    m_text +=
        fmt::format("\nKILN_DEVICE {}* lse_at(const Arguments& args, i32 d0, i32 d1, i32 d2) {{ return {} + {}; }}\n",
                    lse.type, buffer_name(a.lse.buffer), lse.text);
    m_text += fmt::format("KILN_DEVICE Accumulator* workspace(const Arguments& args) {{ return {}; }}\n",
                          m_schedule.parts > 1 ? buffer_name(workspace_of(m_problem)) : "nullptr");
  }

  struct Address {
    std::string type, text;  // of an element, as the buffer has it; how far it is from the buffer's start
  };
  Address address_of(const Access& access, const std::vector<int64_t>& extents) const {
    const BufferSpec& buffer = m_problem.spec->buffers[access.buffer];
    const Body no_expressions;
    LeafNames names;
    for (size_t d = 0; d < extents.size(); ++d) names.dims.push_back(fmt::format("d{}", d));
    return {(buffer.role == BufferRole::input ? "const " : "") + std::string(memory_type(buffer.dtype)),
            BodySource(*m_problem.spec, no_expressions, extents).address(access, names)};
  }

  /// Whether rows of the tensor are whole pieces of `bytes`, wherever they begin, where the buffer does.
  bool has_pieces(const Access& access, const std::vector<int64_t>& extents, int64_t bytes) const {
    const int64_t step = bytes / static_cast<int64_t>(size_of(m_attention.dtype));
    if (step == 0 || access.offset % step != 0) return false;
    for (size_t d = 0; d < extents.size(); ++d) {
      const bool is_innermost = d + 1 == extents.size();
      if (extents[d] > 1 && (is_innermost ? access.strides[d] != 1 : access.strides[d] % step != 0)) return false;
    }
    return true;
  }

  void write_tensor(std::string_view name, const Access& access, bool is_of_queries, int64_t width) {
    const AttentionSpec& a = m_attention;
    const std::vector<int64_t> extents{a.batch, is_of_queries ? a.heads : a.kv_heads, is_of_queries ? a.q_len : a.k_len,
                                       width};
    const Address element = address_of(access, extents);
    const std::string buffer = buffer_name(access.buffer);
    m_text += fmt::format(
        "\nstruct {} {{\n"
        "  static constexpr i32 k_width = {};\n"
        "  static constexpr bool k_is_of_queries = {}, k_is_copied = {}, k_has_pairs = {};\n"
        "  static KILN_MEMBER bool may_copy(const Arguments& args) {{ return k_is_copied && is_aligned({}, 16); }}\n"
        "  static KILN_MEMBER bool may_pair(const Arguments& args) {{ return k_has_pairs && is_aligned({}, {}); }}\n"
        "  static KILN_MEMBER {}* at(const Arguments& args, i32 d0, i32 d1, i32 d2, i32 d3) {{\n"
        "    return {} + {};\n"
        "  }}\n"
        "{}}};\n",
        name, width, is_of_queries, has_pieces(access, extents, 16),
        has_pieces(access, extents, 2 * static_cast<int64_t>(size_of(a.dtype))) && width % 2 == 0, buffer, buffer,
        2 * size_of(a.dtype), element.type, buffer, element.text, map_member(access));
  }

  void write_score() {
    const AttentionSpec& a = m_attention;
    m_text +=
        "\nKILN_DEVICE Accumulator score(const Arguments& args, i32 d0, i32 d1, i32 d2, i32 d3, Accumulator x) {\n";
    std::string result = "x";
    if (a.score_value != k_no_expr) {
      const LeafNames names{.dims = {"d0", "d1", "d2", "d3"}, .accumulator = "x"};
      const std::vector<int64_t> extents{a.batch, a.heads, a.q_len, a.k_len};
      m_text += BodySource(*m_problem.spec, a.score, extents)
                    .evaluate(needed_by(a.score, std::span(&a.score_value, 1)), names, "  ");
      result = BodySource::value_name(a.score_value);
    }
    m_text += fmt::format("  return {};\n}}\n", result);
  }

  /// Where columns come by tensor maps.
  std::string map_member(const Access& access) const {
    const auto found = std::ranges::find(m_columns, &access, &AttentionColumns::access);
    if (found == m_columns.end()) return "";
    return fmt::format("  static KILN_MEMBER const TensorMap& map(const Arguments& args) {{ return args.map{}; }}\n",
                       found - m_columns.begin());
  }

  const AttentionProblem& m_problem;
  const AttentionSpec& m_attention;
  const AttentionSchedule m_schedule;
  std::vector<AttentionColumns> m_columns;  // those that have tensor maps, in their order
  std::string m_text;
};

TensorMapRecord map_of(const AttentionColumns& columns, DType dtype, uint32_t rows) {
  const auto& [access, extents] = columns;
  const auto bytes = [&](int64_t elements) { return static_cast<uint64_t>(elements) * size_of(dtype); };
  TensorMapRecord map{.buffer = access->buffer, .dtype = dtype, .offset_bytes = bytes(access->offset)};
  map.box = {64, rows, 1, 1};
  for (size_t d = 0; d < extents.size(); ++d) {
    const size_t of_tensor = extents.size() - 1 - d;
    map.extents[d] = static_cast<uint64_t>(extents[of_tensor]);
    // The stride of a single element matters to nobody but the encoder, which wants a multiple of 16.
    if (d > 0) map.stride_bytes[d - 1] = extents[of_tensor] > 1 ? bytes(access->strides[of_tensor]) : 16;
  }
  return map;
}

KernelSource source_of(const AttentionProblem& problem, const AttentionSchedule& schedule) {
  KernelSource source;
  KernelRecord& record = source.record;
  record.entry = entry_name(*problem.spec, implementation_of(problem, schedule.kind)->name);
  source.text = AttentionWriter(problem, schedule).run(record.entry);
  record.blocks = schedule.blocks(problem);
  record.threads = schedule.threads();
  record.shared_bytes = static_cast<uint32_t>(schedule.shared_bytes(problem));
  if (schedule.kind == AttentionKind::wgmma) {
    for (const auto& columns : columns_of(problem)) {
      record.maps.push_back(map_of(columns, problem.forward->dtype, schedule.columns));
      record.aligned_buffers.push_back(columns.access->buffer);
    }
  }
  return source;
}

/// What follows a kernel of keys in parts.
KernelSource combining_source_of(const AttentionProblem& problem, const AttentionSchedule& schedule) {
  const AttentionSpec& a = *problem.forward;
  KernelSource source;
  source.record.entry = entry_name(*problem.spec, "combine");
  source.text = AttentionWriter(problem, schedule).combine(source.record.entry);
  source.record.blocks =
      static_cast<uint64_t>(ceil_div(a.batch * a.heads * a.q_len * a.value_dim, k_combining_threads));
  source.record.threads = k_combining_threads;
  return source;
}

/// Of a plan's schedule, that of the kernel beside it.
Expected<AttentionSchedule> kernel_schedule_of(const Schedule& schedule, const AttentionProblem& problem,
                                               const CudaTarget& target) {
  if (!choice_of<CudnnChoice>(schedule.bytes)) return attention_schedule_of(schedule.bytes, problem, target);
  const auto schedules = ranked_schedules(problem, target, default_machine(target));
  if (schedules.empty()) return invalid_argument("cuda attention: no kernel beside a plan");
  return schedules.front();
}

/// Measured on an H100 (docs/performance.md): forward passes of whole tiles are cuDNN's to win, of gradients some.
bool are_plans_faster(const AttentionProblem& problem, const AttentionSchedule& best) {
  return problem.backward == nullptr && best.kind == AttentionKind::wgmma && best.parts == 1;
}

}  // namespace

Status attention_claims(const KernelSpec& spec, const CudaTarget& target) {
  const AttentionProblem problem = attention_problem_of(spec);
  const AttentionSpec& a = *problem.forward;
  const auto refuse = [&](std::string_view what, int64_t count) {
    return error(StatusCode::unimplemented, "cuda {}: {} of {}", kind_name(spec), what, count);
  };
  if (std::max(a.head_dim, a.value_dim) > k_most_depth) return refuse("a depth", std::max(a.head_dim, a.value_dim));
  if (!std::isfinite(a.scale))
    return error(StatusCode::unimplemented, "cuda {}: a scale of {}", kind_name(spec), a.scale);
  for (const int64_t extent : {a.batch * a.heads, a.heads / a.kv_heads * a.q_len, a.k_len}) {
    if (extent > INT32_MAX / 8) return refuse("an extent", extent);
  }
  const auto schedules = ranked_schedules(problem, target, default_machine(target));
  if (schedules.empty()) return refuse("more shared memory than a block has, for keys", a.k_len);
  for (const AttentionSchedule& schedule : schedules) {
    const uint64_t blocks = schedule.blocks(problem);
    if (blocks > INT32_MAX) return refuse("blocks", static_cast<int64_t>(blocks));
  }
  return {};
}

std::vector<Schedule> attention_candidates(const KernelSpec& spec, const CudaTarget& target, const Machine& machine) {
  const AttentionProblem problem = attention_problem_of(spec);
  const auto ranked = ranked_schedules(problem, target, machine);
  std::vector<Schedule> schedules;
  std::ranges::transform(ranked, std::back_inserter(schedules), to_schedule);
  if (ranked.empty() || cudnn_for(problem, target) == nullptr) return schedules;
  auto plans = cudnn_attention_schedules();
  return are_plans_faster(problem, ranked.front()) ? before_ours(std::move(plans), std::move(schedules))
                                                   : behind_the_best(std::move(schedules), std::move(plans));
}

Expected<LaunchSource> attention_source(const KernelSpec& spec, const Schedule& schedule, const CudaTarget& target) {
  const AttentionProblem problem = attention_problem_of(spec);
  KILN_ASSIGN_OR_RETURN(const AttentionSchedule choices, kernel_schedule_of(schedule, problem, target));
  std::vector<AttentionSchedule> alternatives{choices};
  if (!implementation_of(problem, choices.kind)->takes_any_address) {
    alternatives.push_back(schedule_for_any_address(problem, target));
  }
  uint64_t workspace = 0;
  for (const auto& each : alternatives) workspace = std::max(workspace, each.workspace_elements(problem));
  LaunchSource source;
  KernelSpec written = spec;
  if (workspace > 0) {
    const DType accumulator = accumulator_of(problem.forward->dtype);
    written.buffers.push_back({accumulator, static_cast<int64_t>(workspace), BufferRole::output});
    source.workspace_parts = {workspace * size_of(accumulator)};
  }
  const AttentionProblem with_workspace = attention_problem_of(written);
  for (const auto& each : alternatives) {
    source.kernels.push_back(source_of(with_workspace, each));
    if (each.parts == 1) continue;
    source.kernels.back().record.is_followed = true;
    source.kernels.push_back(combining_source_of(with_workspace, each));
  }
  return source;
}

}  // namespace kiln::cuda
