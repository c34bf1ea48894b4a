#include "backends/cuda/compile/loops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <set>

#include "backends/cuda/compile/body_source.h"
#include "backends/cuda/compile/loops_schedule.h"
#include "backends/loops_stages.h"
#include "backends/schedule_bytes.h"
#include "backends/simplified_loops.h"
#include "frontend/kernel/affine.h"

// Loops kernels: pointwise, reductions, normalisations, gathers, scatters.
//
// A block makes `columns` parallel points, each with `members` threads (loops_schedule.h). Every stage is a loop over the
// reduced points, shared out among the members, then the totals are combined and known to every member. Values are
// computed again in each stage: what was read once is in a cache. A floating sum's order is fixed by the schedule.
namespace kiln::cuda {
namespace {

constexpr std::string_view k_indent[] = {"  ", "    ", "      "};

class LoopsWriter {
 public:
  LoopsWriter(const KernelSpec& spec, const LoopsSpec& loops, const LoopsSchedule& schedule)
      : m_spec(spec),
        m_loops(loops),
        m_schedule(schedule),
        m_body(spec, loops.body, loops.extents),
        m_parallel(std::span(m_loops.extents).first(loops.parallel_rank)),
        m_reduced(std::span(m_loops.extents).subspan(loops.parallel_rank)) {
    for (size_t d = 0; d < loops.extents.size(); ++d) m_names.dims.push_back(fmt::format("d{}", d));
    for (size_t r = 0; r < loops.reductions.size(); ++r) m_names.reduced.push_back(fmt::format("r{}", r));
    if (schedule.run > 1) m_run_dim = (m_reduced.empty() ? m_parallel.size() : loops.extents.size()) - 1;
  }

  /// Parallel points, or runs of them, or shares.
  int64_t rows() const { return product(m_parallel) / (m_reduced.empty() ? m_schedule.run : 1) * m_schedule.shares; }
  int64_t blocks() const {
    const int64_t rows_of_block = m_schedule.columns * (m_reduced.empty() ? m_schedule.ahead : 1);
    return (rows() + rows_of_block - 1) / rows_of_block;
  }
  uint32_t scratch_bytes() const { return needs_scratch() ? m_schedule.threads() * 8 : 0; }

  std::string run(std::string_view entry) {
    m_text = opening(m_spec, entry);
    m_text += fmt::format("\nextern \"C\" KILN_KERNEL({}, {}) {}(KILN_ARGUMENTS(Arguments) args) {{\n",
                          m_schedule.threads(), m_schedule.threads() <= 512 ? 2 : 1, k_entry);
    write_point();
    if (needs_scratch()) m_text += "  u8* const scratch = shared_memory();\n";
    for (const Reduction& reduction : m_loops.reductions) {
      const Total total = total_of(reduction.combiner, m_loops.body.exprs[reduction.value].dtype);
      m_text += fmt::format("  {} r{} = {};\n", total.type, &reduction - m_loops.reductions.data(), total.identity);
    }
    for (const Stage& stage : m_loops.stages) write_stage(stage);
    if (has_rows()) m_text += "  }\n";
    m_text += "}\n\n}  // namespace kiln\n";
    return std::move(m_text);
  }

 private:
  bool needs_scratch() const {
    return m_schedule.members > 1 && (!m_schedule.members_are_neighbours || m_schedule.members > 32) &&
           !m_loops.reductions.empty();
  }
  /// Whether a thread makes several parallel points, one after another.
  bool has_rows() const { return m_reduced.empty() && m_schedule.ahead > 1; }
  bool is_in_warp() const { return m_schedule.members_are_neighbours && m_schedule.members <= 32; }

  /// Coordinates of a dim that extents of 2^31 and more need in i64.
  static std::string_view coordinate_type(int64_t extent) { return extent <= INT32_MAX ? "i32" : "i64"; }
  static std::string_view count_type(int64_t count) { return count <= INT32_MAX ? "u32" : "u64"; }

  /// Declares the coordinates of `dims` from the flat variable `from`.
  void write_coordinates(std::string_view from, size_t first, std::span<const int64_t> extents,
                         std::string_view indent) {
    if (extents.empty()) return;
    const int64_t count = product(extents);
    m_text += fmt::format("{}{} rest{} = {};\n", indent, count_type(count), first, from);
    for (size_t i = extents.size(); i-- > 0;) {
      const size_t dim = first + i;
      const uint32_t run = dim == m_run_dim ? m_schedule.run : 1;
      const int64_t extent = extents[i] / run;
      const std::string_view type = coordinate_type(extents[i]);
      const std::string value = i == 0 ? fmt::format("rest{}", first) : fmt::format("rest{} % {}u", first, extent);
      m_text += fmt::format("{}const {} d{} = static_cast<{}>({}){};\n", indent, type, dim, type, value,
                            run > 1 ? fmt::format(" * {}", run) : "");
      if (i > 0) m_text += fmt::format("{}rest{} /= {}u;\n", indent, first, extent);
    }
  }

  void write_point() {
    const int64_t count = rows(), step = blocks() * m_schedule.columns;
    const std::string_view type = count_type(count + step);
    if (has_rows()) {
      m_text += fmt::format(
          "  KILN_UNROLL_BY({0}) for ({1} row = static_cast<{1}>(block_index()) * {2}u + thread_index(); row < {3}u; "
          "row += {4}u) {{\n",
          m_schedule.ahead, type, m_schedule.columns, count, step);
    } else if (m_schedule.shares > 1) {
      m_text += fmt::format("  const {0} at = static_cast<{0}>(block_index()) * {1}u + thread_index();\n", type,
                            m_schedule.columns);
      m_text += fmt::format("  if (at >= {}u) return;\n", count);
      m_text += fmt::format("  const {0} row = at % {1}u, share = at / {1}u;\n", type, product(m_parallel));
    } else if (m_schedule.members == 1) {
      m_text += fmt::format("  const {0} row = static_cast<{0}>(block_index()) * {1}u + thread_index();\n", type,
                            m_schedule.columns);
      m_text += fmt::format("  if (row >= {}u) return;\n", count);
    } else {
      const auto [point, member] = m_schedule.members_are_neighbours
                                       ? std::pair(fmt::format("thread_index() / {}u", m_schedule.members),
                                                   fmt::format("thread_index() % {}u", m_schedule.members))
                                       : std::pair(fmt::format("thread_index() % {}u", m_schedule.columns),
                                                   fmt::format("thread_index() / {}u", m_schedule.columns));
      m_text += fmt::format("  const u32 column = {};\n  const u32 member = {};\n", point, member);
      m_text +=
          fmt::format("  const {0} at = static_cast<{0}>(block_index()) * {1}u + column;\n", type, m_schedule.columns);
      // Members of points that are none stay for the barriers, repeating the last point without its stores.
      m_text += fmt::format("  const bool is_live = at < {}u;\n", count);
      m_text += fmt::format("  const {} row = is_live ? at : {}u;\n", type, count - 1);
    }
    write_coordinates("row", 0, m_parallel, "  ");
  }

  void write_stage(const Stage& stage) {
    const std::vector<ExprId> order = needed_by(m_loops.body, roots_of(m_loops, stage));
    m_text += "\n";
    if (stage.per_row) {
      write_row_stage(stage, order);
    } else {
      write_element_stage(stage, order);
      for (const uint32_t r : stage.reductions) write_combination(r);
    }
    const auto number = static_cast<size_t>(&stage - m_loops.stages.data());
    if (m_schedule.members > 1 && conflicts_later(m_loops, number)) {
      m_text += is_in_warp() ? "  warp_barrier();\n" : "  block_barrier();\n";
    }
  }

  void write_row_stage(const Stage& stage, const std::vector<ExprId>& order) {
    m_text += m_schedule.members > 1 ? "  if (member == 0 && is_live) {\n" : "  {\n";
    write_origin();
    m_text += m_body.evaluate(order, m_names, k_indent[1]);
    for (const Store& store : stage.stores) m_text += m_body.store(store, m_names, "", k_indent[1]);
    m_text += "  }\n";
  }

  void write_origin() {
    for (size_t d = m_parallel.size(); d < m_loops.extents.size(); ++d) {
      m_text += fmt::format("    const i32 d{} = 0;\n", d);
    }
  }

  void write_element_stage(const Stage& stage, const std::vector<ExprId>& order) {
    const int64_t points = product(m_reduced);
    if (m_reduced.empty()) {
      m_text += "  {\n";
      write_steps(stage, order);
      m_text += "  }\n";
    } else if (m_schedule.shares > 1) {
      write_shared_out(stage, order, points);
    } else {
      const auto [of_row, of_point] = parted(order);
      m_text += "  {\n" + m_body.evaluate(of_row, m_names, k_indent[0]);
      const uint32_t run = m_schedule.run;
      const std::string start = m_schedule.members == 1 ? "0" : run == 1 ? "member" : fmt::format("member * {}u", run);
      const std::string unrolled = m_schedule.ahead > 1 ? fmt::format("KILN_UNROLL_BY({}) ", m_schedule.ahead) : "";
      m_text += fmt::format("  {}for ({} q = {}; q < {}u; q += {}u) {{\n", unrolled,
                            count_type(points + m_schedule.members * run * m_schedule.ahead), start, points,
                            m_schedule.members * run);
      write_coordinates(run == 1 ? "q" : fmt::format("q / {}u", run), m_parallel.size(), m_reduced, k_indent[1]);
      write_steps(stage, of_point);
      m_text += "  }\n  }\n";
    }
  }

  void write_steps(const Stage& stage, const std::vector<ExprId>& order) {
    if (m_schedule.run == 1) {
      write_point_of(stage, order, m_names, k_indent[1]);
    } else {
      write_run(stage, order);
    }
  }

  /// Of expressions, those that are the same at all reduced points, and the others.
  std::pair<std::vector<ExprId>, std::vector<ExprId>> parted(const std::vector<ExprId>& order) const {
    std::set<ExprId> varying;
    std::vector<ExprId> of_row;
    for (const ExprId id : order) {
      const ScalarNode& node = m_loops.body.exprs[id];
      const auto varies = [&](ExprId other) { return varying.contains(other); };
      bool is_varying = std::ranges::any_of(node.operands, varies);
      if (node.op == ScalarOp::index) is_varying = node.slot >= m_parallel.size();
      if (node.op == ScalarOp::load) {
        const Access& access = m_loops.body.accesses[node.slot];
        is_varying |= m_spec.buffers[access.buffer].role != BufferRole::input;
        is_varying |= std::ranges::any_of(std::span(access.strides).subspan(m_parallel.size()), std::identity());
        is_varying |= std::ranges::any_of(access.indirect, varies, &IndirectTerm::index);
      }
      is_varying ? void(varying.insert(id)) : of_row.push_back(id);
    }
    return {of_row, {varying.begin(), varying.end()}};
  }

  /// The places of a few points, then what is to be done at those that are this share's.
  void write_shared_out(const Stage& stage, const std::vector<ExprId>& order, int64_t points) {
    constexpr uint32_t k_together = 32;
    const ExprId place = *place_of_stores(m_loops);
    const std::string_view type = count_type(points + k_together);
    m_text += fmt::format("  for ({0} first = 0; first < {1}u; first += {2}u) {{\n    u32 mine = 0;\n", type, points,
                          k_together);
    m_text += fmt::format("    KILN_UNROLL for (u32 j = 0; j < {}; ++j) {{\n", k_together);
    m_text += fmt::format("      const {} q = first + j < {}u ? first + j : {}u;\n", type, points, points - 1);
    write_coordinates("q", m_parallel.size(), m_reduced, k_indent[2]);
    m_text += m_body.evaluate(needed_by(m_loops.body, std::array{place}), m_names, k_indent[2]);
    m_text +=
        fmt::format("      if (first + j < {}u && static_cast<u64>({}) % {}u == share) mine |= 1u << j;\n    }}\n",
                    points, BodySource::value_name(place), m_schedule.shares);
    m_text += "    for (; mine != 0; mine &= mine - 1) {\n";
    m_text += fmt::format("      const {} q = first + lowest_bit(mine);\n", type);
    write_coordinates("q", m_parallel.size(), m_reduced, k_indent[2]);
    write_point_of(stage, order, m_names, k_indent[2]);
    m_text += "    }\n  }\n";
  }

  void write_point_of(const Stage& stage, const std::vector<ExprId>& order, const LeafNames& names,
                      std::string_view indent) {
    m_text += m_body.evaluate(order, names, indent);
    for (const uint32_t r : stage.reductions) {
      const Reduction& reduction = m_loops.reductions[r];
      const Total total = total_of(reduction.combiner, m_loops.body.exprs[reduction.value].dtype);
      std::string value = fmt::format("cast_to<{}>({})", total.type, BodySource::value_name(reduction.value));
      if (total.type == "i32")
        value = fmt::format("cast_to<i32>(cast_to<bool>({}))", BodySource::value_name(reduction.value));
      m_text += fmt::format("{}r{} = {}::combine(r{}, {});\n", indent, r, total.combiner, r, value);
    }
    const std::string_view guard = m_schedule.members > 1 ? "is_live" : "";
    for (const Store& store : stage.stores) m_text += m_body.store(store, names, guard, indent);
  }

  /// Loads of a run, a loop over its elements, stores of a run.
  void write_run(const Stage& stage, const std::vector<ExprId>& order) {
    LeafNames inside = m_names;
    inside.dims[m_run_dim] = "e";
    for (const uint32_t access : loaded_in_runs(order)) {
      inside.loaded[access] = fmt::format("l{}.items[j]", access);
      m_text +=
          fmt::format("    {} l{};\n    load_run(l{}, {});\n", run_type(access), access, access, run_address(access));
    }
    for (const Store& store : stage.stores) {
      if (!is_run(store.access)) continue;
      inside.stored[store.access] = fmt::format("s{}.items[j]", store.access);
      m_text += fmt::format("    {} s{};\n", run_type(store.access), store.access);
    }
    m_text += fmt::format("    KILN_UNROLL for (i32 j = 0; j < {}; ++j) {{\n      const {} e = d{} + j;\n",
                          m_schedule.run, coordinate_type(m_loops.extents[m_run_dim]), m_run_dim);
    write_point_of(stage, order, inside, k_indent[2]);
    m_text += "    }\n";
    const std::string_view guard = m_schedule.members > 1 ? "if (is_live) " : "";
    for (const auto& [access, name] : inside.stored) {
      const uint32_t buffer = m_loops.body.accesses[access].buffer;
      m_text += fmt::format("    {}store_run({} + {}, s{}, {});\n", guard, buffer_name(buffer),
                            m_body.address(m_loops.body.accesses[access], m_names), access, alignment_of(buffer));
    }
  }

  bool is_run(uint32_t access) const { return is_run_of(m_loops.body.accesses[access], m_run_dim, m_schedule.run); }

  std::set<uint32_t> loaded_in_runs(const std::vector<ExprId>& order) const {
    std::set<uint32_t> runs, others;
    for (const ExprId id : order) {
      const ScalarNode& node = m_loops.body.exprs[id];
      if (node.op != ScalarOp::load) continue;
      (node.operands[0] == k_no_expr && is_run(node.slot) ? runs : others).insert(node.slot);
    }
    for (const uint32_t access : others) runs.erase(access);
    return runs;
  }

  std::string run_type(uint32_t access) const {
    const DType dtype = m_spec.buffers[m_loops.body.accesses[access].buffer].dtype;
    return fmt::format("Run<{}, {}>", memory_type(dtype), m_schedule.run);
  }
  std::string alignment_of(uint32_t buffer) const {
    const size_t bytes = size_of(m_spec.buffers[buffer].dtype) * m_schedule.run;
    return fmt::format("is_aligned({}, {})", buffer_name(buffer), bytes);
  }
  std::string run_address(uint32_t access) const {
    const Access& where = m_loops.body.accesses[access];
    return fmt::format("{} + {}, {}", buffer_name(where.buffer), m_body.address(where, m_names),
                       alignment_of(where.buffer));
  }

  void write_combination(uint32_t r) {
    if (m_schedule.members == 1) return;
    const Reduction& reduction = m_loops.reductions[r];
    const Total total = total_of(reduction.combiner, m_loops.body.exprs[reduction.value].dtype);
    if (is_in_warp()) {
      m_text += fmt::format("  r{} = combine_lanes<{}, {}>(r{});\n", r, total.combiner, m_schedule.members, r);
    } else if (m_schedule.members_are_neighbours) {
      m_text += fmt::format("  r{} = combine_warps<{}, {}>(r{}, reinterpret_cast<{}*>(scratch));\n", r, total.combiner,
                            m_schedule.members, r, total.type);
    } else {
      m_text +=
          fmt::format("  r{} = combine_members<{}, {}, {}>(r{}, member, column, reinterpret_cast<{}*>(scratch));\n", r,
                      total.combiner, m_schedule.members, m_schedule.columns, r, total.type);
    }
  }

  const KernelSpec& m_spec;
  const LoopsSpec& m_loops;
  const LoopsSchedule m_schedule;
  BodySource m_body;
  std::span<const int64_t> m_parallel, m_reduced;
  LeafNames m_names;
  size_t m_run_dim = SIZE_MAX;
  std::string m_text;
};

const LoopsSpec& loops_of(const KernelSpec& spec) { return std::get<LoopsSpec>(spec.kernel); }

}  // namespace

Status loops_claims(const KernelSpec& spec, const CudaTarget&) {
  const LoopsSpec loops = simplified(loops_of(spec));
  // A grid has 2^31 - 1 blocks; the schedule with the fewest points in a block has one.
  if (product(std::span(loops.extents).first(loops.parallel_rank)) > INT32_MAX) {
    return error(StatusCode::unimplemented, "cuda loops: more than {} parallel points", INT32_MAX);
  }
  return {};
}

std::vector<Schedule> loops_candidates(const KernelSpec& spec, const CudaTarget&, const Machine& machine) {
  constexpr size_t k_most_candidates = 8;
  std::vector<Schedule> schedules;
  for (const LoopsSchedule& schedule : ranked_schedules(spec, simplified(loops_of(spec)), machine)) {
    if (schedules.size() < k_most_candidates) schedules.push_back({encode_choices(schedule), schedule.describe()});
  }
  return schedules;
}

Expected<LaunchSource> loops_source(const KernelSpec& spec, const Schedule& schedule, const CudaTarget&) {
  KILN_ASSIGN_OR_RETURN(const auto choices, parse_choices<LoopsSchedule>(schedule.bytes));
  const LoopsSpec loops = simplified(loops_of(spec));
  KILN_RETURN_IF_ERROR(choices.validate(spec, loops));
  LoopsWriter writer(spec, loops, choices);
  KernelSource source;
  source.record.entry = entry_name(spec, {});
  source.text = writer.run(source.record.entry);
  source.record.blocks = static_cast<uint64_t>(writer.blocks());
  source.record.threads = choices.threads();
  source.record.shared_bytes = writer.scratch_bytes() == 0 ? 0 : writer.scratch_bytes() + 1024;
  return LaunchSource{{std::move(source)}, {}};
}

}  // namespace kiln::cuda
