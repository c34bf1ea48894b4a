#include "backends/cuda/compile/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backends/cuda/compile/body_source.h"
#include "backends/cuda/compile/cublaslt_gemm.h"
#include "backends/cuda/compile/cudnn_convolution.h"
#include "backends/cuda/compile/gemm_packing.h"
#include "backends/cuda/compile/gemm_problem.h"
#include "backends/cuda/compile/gemm_schedule.h"
#include "backends/cuda/compile/loops.h"
#include "backends/cuda/compile/loops_schedule.h"
#include "backends/cuda/compile/texts.h"
#include "frontend/kernel/affine.h"

// Gemm kernels: gemm_common.cuh and one of the templates, after what is written here for one spec and schedule: constants, the
// operands as structs, the epilogue as functions.
namespace kiln::cuda {
namespace {

using Kind = GemmSchedule::Kind;

class GemmWriter {
 public:
  GemmWriter(const GemmProblem& problem, const GemmSchedule& schedule)
      : m_problem(problem),
        m_gemm(*problem.gemm),
        m_schedule(schedule),
        m_run(schedule.kind == Kind::simple ? std::min(problem.run, 4u) : problem.run) {}

  int64_t tiles_m() const { return across(m_gemm.m, unit_m()); }
  int64_t tiles_n() const { return across(m_gemm.n, m_schedule.tile_n); }

  std::string run(std::string_view entry) {
    m_text = opening(*m_problem.spec, entry, m_schedule.uses_wgmma() ? 2 : 0);
    write_constants();
    write_operand("A", "k_m", m_problem.a);
    write_operand("B", "k_n", m_problem.b);
    write_finish(m_run, true);
    write_finish(1, false);
    m_text += "\n}  // namespace kiln\n";
    return fmt::format("{}{}{}", m_text, gemm_common_text, *implementation_of(m_schedule).text);
  }

 private:
  static int64_t across(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }
  int64_t unit_m() const { return static_cast<int64_t>(m_schedule.tile_m) * m_schedule.cluster; }

  void write_constants() {
    const std::string_view accumulator = register_type(accumulator_of(m_gemm.dtype));
    const std::string_view element = m_schedule.kind == Kind::simple ? accumulator : memory_type(m_gemm.dtype);
    m_text += fmt::format("\nusing Accumulator = {};\nusing Element = {};\n", accumulator, element);
    const auto constant = [&](std::string_view type, std::string_view name, int64_t value) {
      m_text += fmt::format("constexpr {} {} = {};\n", type, name, value);
    };
    constant("i32", "k_m", m_gemm.m);
    constant("i32", "k_n", m_gemm.n);
    constant("i32", "k_k", m_gemm.k);
    constant("u32", "k_batches", m_problem.batches);
    constant("i32", "k_tile_m", m_schedule.tile_m);
    constant("i32", "k_tile_n", m_schedule.tile_n);
    constant("u32", "k_tiles_m", tiles_m());
    constant("u32", "k_tiles_n", tiles_n());
    constant("u32", "k_unit_m", unit_m());
    constant("i32", "k_threads", m_schedule.threads());
    constant("i32", "k_blocks", m_schedule.blocks_of_sm());
    constant("i32", "k_stages", m_schedule.stages);
    constant("i32", "k_warps_m", m_schedule.warps_m);
    constant("i32", "k_warps_n", m_schedule.warps_n);
    constant("u32", "k_cluster", m_schedule.cluster);
    constant("i32", "k_run", m_run);
  }

  /// Iteration dims where a kernel has a number for some of them together: their names, and statements that work out of the
  /// numbers what has a name of its own.
  struct Place {
    LeafNames names;
    std::string statements;

    /// The dims that come next, which `number` counts, the last one fastest.
    void add(std::string_view number, std::span<const int64_t> extents) {
      if (extents.size() == 1) {
        names.dims.emplace_back(number);
        return;
      }
      int64_t inner = product(extents);
      for (const int64_t extent : extents) {
        const bool is_outermost = inner == product(extents);
        inner /= extent;
        const std::string name = fmt::format("d{}", names.dims.size());
        statements += fmt::format("    const i32 {} = static_cast<i32>(static_cast<u32>({}) / {}u{});\n", name, number,
                                  inner, is_outermost ? "" : fmt::format(" % {}u", extent));
        names.dims.push_back(name);
      }
    }
  };

  void write_operand(std::string_view name, std::string_view outer, const GemmOperand& operand) {
    Place place;
    place.add("batch", m_gemm.batch);
    for (const GemmDims* dims : operand.rows_and_columns()) place.add(dims == &operand.k ? "k" : "outer", dims->pieces);
    const BodySource body(*m_problem.spec, *operand.body, operand.extents);
    m_text += fmt::format(
        "\nstruct {} {{\n"
        "  static constexpr i32 k_outer = {};\n"
        "  static constexpr bool k_is_copied = {}, k_outer_is_adjacent = {}, k_has_batch = {};\n",
        name, outer, operand.is_copied, operand.outer_is_adjacent, operand.has_batch);
    std::string aligned = "false", address = "    return nullptr;\n";
    if (operand.is_copied) {
      const std::string buffer = buffer_name(operand.access->buffer);
      aligned = fmt::format("is_aligned({}, 16)", buffer);
      address =
          place.statements + fmt::format("    return {} + {};\n", buffer, body.address(*operand.access, place.names));
    }
    m_text += fmt::format("  static KILN_MEMBER bool may_copy(const Arguments& args) {{ return {}; }}\n", aligned);
    m_text += fmt::format(
        "  static KILN_MEMBER const void* address(const Arguments& args, u32 batch, i32 outer, i32 k) {{\n{}  }}\n",
        address);
    m_text += "  static KILN_MEMBER Accumulator value(const Arguments& args, u32 batch, i32 outer, i32 k) {\n";
    m_text += place.statements;
    m_text += body.evaluate(needed_by(*operand.body, std::span(&operand.value, 1)), place.names, "    ");
    m_text += fmt::format("    return cast_to<Accumulator>({});\n  }}\n}};\n", BodySource::value_name(operand.value));
  }

  /// The epilogue of `run` columns, which have read ahead what lies in runs, or of one that reads for itself.
  void write_finish(uint32_t run, bool is_ahead) {
    const size_t n_dim = m_gemm.batch.size() + 1;
    std::vector<int64_t> extents = m_gemm.batch;
    extents.insert(extents.end(), {m_gemm.m, m_gemm.n});
    const BodySource body(*m_problem.spec, m_gemm.epilogue, extents);
    const std::vector<ExprId> order = needed_by(m_gemm.epilogue, BodySource::roots_of(m_gemm.epilogue, m_gemm.stores));
    Place place;
    place.add("batch", m_gemm.batch);
    place.add("m", {{m_gemm.m}});
    place.add("n", {{m_gemm.n}});
    const LeafNames& outside = place.names;
    LeafNames inside = outside;
    inside.accumulator = "x[j]";
    inside.dims[n_dim] = "e";

    std::string members, loads, runs, stores;
    if (run > 1) {
      for (const uint32_t access : loaded_in_runs(order, n_dim, run)) {
        inside.loaded[access] = fmt::format("loaded.a{}.items[j]", access);
        members += fmt::format("  {} a{};\n", run_type(access, run), access);
        loads += fmt::format("    load_run(a{}, {});\n", access, run_address(body, access, outside, run));
      }
      for (const Store& store : m_gemm.stores) {
        if (store.mode != StoreMode::assign || !is_run_of(m_gemm.epilogue.accesses[store.access], n_dim, run)) continue;
        inside.stored[store.access] = fmt::format("s{}.items[j]", store.access);
        runs += fmt::format("  {} s{};\n", run_type(store.access, run), store.access);
        const uint32_t buffer = m_gemm.epilogue.accesses[store.access].buffer;
        stores += fmt::format("  store_run({} + {}, s{}, is_aligned({}, {}));\n", buffer_name(buffer),
                              body.address(m_gemm.epilogue.accesses[store.access], outside), store.access,
                              buffer_name(buffer), run * size_of(m_problem.spec->buffers[buffer].dtype));
      }
    }
    if (is_ahead) {
      m_text += fmt::format(
          "\nstruct Loaded {{\n{}"
          "  KILN_MEMBER void read(const Arguments& args, u32 batch, i32 m, i32 n) {{\n{}{}  }}\n}};\n",
          members, loads.empty() ? "" : place.statements, loads);
    }
    m_text += fmt::format(
        "\nKILN_DEVICE void finish(const Arguments& args, u32 batch, i32 m, i32 n, const Accumulator (&x)[{}]{}) {{\n",
        run, is_ahead ? ", const Loaded& loaded" : "");
    m_text += place.statements + runs;
    m_text += fmt::format("  KILN_UNROLL for (i32 j = 0; j < {}; ++j) {{\n    const i32 e = n + j;\n", run);
    m_text += body.evaluate(order, inside, "    ");
    for (const Store& store : m_gemm.stores) m_text += body.store(store, inside, "", "    ");
    m_text += "  }\n" + stores + "}\n";
  }

  std::vector<uint32_t> loaded_in_runs(const std::vector<ExprId>& order, size_t n_dim, uint32_t run) const {
    std::vector<uint32_t> runs;
    for (uint32_t access = 0; access < m_gemm.epilogue.accesses.size(); ++access) {
      if (!is_run_of(m_gemm.epilogue.accesses[access], n_dim, run)) continue;
      bool is_loaded = false, is_always = true;
      for (const ExprId id : order) {
        const ScalarNode& node = m_gemm.epilogue.exprs[id];
        if (node.op != ScalarOp::load || node.slot != access) continue;
        is_loaded = true;
        is_always = is_always && node.operands[0] == k_no_expr;
      }
      if (is_loaded && is_always) runs.push_back(access);
    }
    return runs;
  }

  std::string run_type(uint32_t access, uint32_t run) const {
    const DType dtype = m_problem.spec->buffers[m_gemm.epilogue.accesses[access].buffer].dtype;
    return fmt::format("Run<{}, {}>", memory_type(dtype), run);
  }
  std::string run_address(const BodySource& body, uint32_t access, const LeafNames& names, uint32_t run) const {
    const Access& where = m_gemm.epilogue.accesses[access];
    return fmt::format("{0} + {1}, is_aligned({0}, {2})", buffer_name(where.buffer), body.address(where, names),
                       run * size_of(m_problem.spec->buffers[where.buffer].dtype));
  }

  const GemmProblem& m_problem;
  const GemmSpec& m_gemm;
  const GemmSchedule m_schedule;
  const uint32_t m_run;
  std::string m_text;
};

TensorMapRecord map_of(const GemmProblem& problem, const GemmOperand& operand, uint32_t box_outer) {
  const auto bytes = [&](int64_t elements) { return static_cast<uint64_t>(elements) * size_of(problem.gemm->dtype); };
  const auto outer = static_cast<uint64_t>(operand.outer.extent()), k = static_cast<uint64_t>(problem.gemm->k);
  const int64_t far_stride = operand.access->strides[(operand.outer_is_adjacent ? operand.k : operand.outer).first];
  TensorMapRecord map{
      .buffer = operand.access->buffer, .dtype = problem.gemm->dtype, .offset_bytes = bytes(operand.access->offset)};
  const uint64_t batches = operand.has_batch ? static_cast<uint64_t>(problem.batches) : 1;
  const uint64_t far = operand.outer_is_adjacent ? k : outer;
  map.extents = operand.outer_is_adjacent ? std::array<uint64_t, 4>{outer, k, batches, 1}
                                          : std::array<uint64_t, 4>{k, outer, batches, 1};
  // The stride of a single row or batch, or of a dim that is not there, matters to nobody but the encoder, which wants a
  // multiple of 16.
  map.stride_bytes[0] = far == 1 ? (bytes(static_cast<int64_t>(map.extents[0])) + 15) / 16 * 16 : bytes(far_stride);
  map.stride_bytes[1] = batches == 1 ? map.stride_bytes[0] * far : bytes(operand.batch_stride);
  map.stride_bytes[2] = map.stride_bytes[1];
  map.box = {64, operand.outer_is_adjacent ? 64 : box_outer, 1, 1};
  return map;
}

KernelSource source_of(const GemmProblem& problem, const GemmSchedule& schedule) {
  GemmWriter writer(problem, schedule);
  KernelSource source;
  KernelRecord& record = source.record;
  record.entry = entry_name(*problem.spec, implementation_of(schedule).name);
  source.text = writer.run(record.entry);
  record.blocks = static_cast<uint64_t>(writer.tiles_m() * schedule.cluster * writer.tiles_n() * problem.batches);
  record.threads = schedule.threads();
  record.cluster = schedule.cluster;
  record.shared_bytes = schedule.shared_bytes(accumulator_of(problem.gemm->dtype));
  if (schedule.uses_wgmma()) {
    record.is_persistent = true;
    record.maps = {map_of(problem, problem.a, schedule.tile_m),
                   map_of(problem, problem.b, schedule.tile_n / schedule.cluster)};
    for (const TensorMapRecord& map : record.maps) record.aligned_buffers.push_back(map.buffer);
  }
  return source;
}

/// The loops that pack, the product of what they leave, and, where that takes an operand in place, a kernel for any address.
Expected<LaunchSource> packed_source(const GemmProblem& problem, const GemmSchedule& schedule,
                                     const CudaTarget& target) {
  const GemmPacking packing = packing_of(problem);
  LaunchSource source{{}, packing.workspace_parts};
  for (const KernelSpec& loops : packing.loops) {
    const Schedule best = loops_candidates(loops, target, default_machine(target)).front();
    KILN_ASSIGN_OR_RETURN(LaunchSource packs, loops_source(loops, best, target));
    packs.kernels.front().record.is_followed = true;
    source.kernels.push_back(std::move(packs.kernels.front()));
  }
  source.kernels.push_back(source_of(problem_of(packing.gemm), schedule));
  if (packing.loops.size() == 2) return source;
  // Its argument has a pointer to the workspace, too.
  const KernelSpec in_place{packing.gemm.buffers, *problem.gemm};
  const GemmProblem same = problem_of(in_place);
  source.kernels.push_back(source_of(same, schedule_for_any_address(same, target)));
  return source;
}

/// Of a library's choice, that of the kernels beside it.
Expected<GemmSchedule> kernel_schedule_of(const Schedule& schedule, const GemmProblem& problem,
                                          const CudaTarget& target) {
  if (!choice_of<CublasltChoice>(schedule.bytes) && !choice_of<CudnnChoice>(schedule.bytes))
    return gemm_schedule_of(schedule.bytes, problem, target);
  return ranked_schedules(problem, target, default_machine(target)).front();
}

}  // namespace

Status gemm_claims(const KernelSpec& spec, const CudaTarget&) {
  const GemmProblem problem = problem_of(spec);
  const GemmSpec& gemm = *problem.gemm;
  if (gemm.groups) return error(StatusCode::unimplemented, "cuda gemm: groups that data say");
  for (const int64_t extent : {gemm.m, gemm.n, gemm.k}) {
    if (extent > INT32_MAX / 2) return error(StatusCode::unimplemented, "cuda gemm: an extent of {}", extent);
  }
  const int64_t tiles = problem.batches * ((gemm.m + 63) / 64) * ((gemm.n + 63) / 64);
  if (tiles > INT32_MAX) return error(StatusCode::unimplemented, "cuda gemm: {} tiles", tiles);
  return {};
}

std::vector<Schedule> gemm_candidates(const KernelSpec& spec, const CudaTarget& target, const Machine& machine) {
  std::vector<Schedule> schedules;
  for (const auto& schedule : ranked_schedules(problem_of(spec), target, machine)) {
    schedules.push_back(to_schedule(schedule));
  }
  if (cudnn_for(spec, target) != nullptr) return before_ours(cudnn_convolution_schedules(), std::move(schedules));
  return cublaslt_for(spec) == nullptr ? schedules : behind_the_best(std::move(schedules), cublaslt_schedules());
}

Expected<LaunchSource> gemm_source(const KernelSpec& spec, const Schedule& schedule, const CudaTarget& target) {
  const GemmProblem problem = problem_of(spec);
  KILN_ASSIGN_OR_RETURN(const GemmSchedule choices, kernel_schedule_of(schedule, problem, target));
  if (choices.kind == Kind::packed_wgmma) return packed_source(problem, choices, target);
  LaunchSource source{{source_of(problem, choices)}, {}};
  if (!implementation_of(choices).takes_any_address) {
    source.kernels.push_back(source_of(problem, schedule_for_any_address(problem, target)));
  }
  return source;
}

}  // namespace kiln::cuda
