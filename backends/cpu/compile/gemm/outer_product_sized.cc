#include <algorithm>

#include "backends/cpu/compile/gemm/outer_product.h"
#include "backends/cpu/compile/gemm/sized.h"
#include "backends/schedule_bytes.h"
#include "base/ceil_div.h"
#include "base/limits.h"
#include "frontend/kernel/affine.h"

/// Which schedule products of any size share. What decides is how operands lie, how many vectors the columns are up to a tile,
/// and on which side of a few borders the sizes are, so that the forms of one spec's sizes are few.
namespace kiln::cpu {
namespace {

constexpr int64_t k_few_rows = 8;                // below it, of a row of vectors
constexpr int64_t k_rows_to_repay_packing = 48;  // of a B that is multiplied as it lies
constexpr int64_t k_direct_b_bytes = 512 << 10;  // below it, such a B is
constexpr int64_t k_short_block = 256;           // steps of k: they are one run

struct Tile {
  int64_t rows, vectors;
};

/// Rows of a product, or steps of k: of a group, where there are groups, as if all were equally large.
int64_t usual_m(const GemmProblem& problem) {
  const GemmSpec& gemm = *problem.gemm;
  const bool is_cut = gemm.groups && gemm.groups->along == GemmGroups::Along::m;
  return is_cut ? ceil_div(gemm.m, gemm.batch.front()) : gemm.m;
}

Tile tile_for(const GemmProblem& problem) {
  const int64_t vectors = ceil_div(problem.gemm->n, problem.sum_lanes());
  const bool wide = problem.registers == 32;
  const int64_t most = wide ? 4 : 2;
  const Tile tile{vectors >= most ? 6 : 8, std::min(vectors, most)};
  return {std::min(tile.rows, problem.gemm->m), tile.vectors};
}

ReadA read_a_of(const GemmProblem& problem) {
  if (problem.reads_a_directly() && problem.a.k_stride == 1) return ReadA::direct;
  return problem.a.k_lanes ? ReadA::rows : ReadA::panels;
}

ReadB read_b_of(const GemmProblem& problem) {
  if (!problem.reads_b_directly()) {
    return problem.b.k_lanes && problem.sum_lanes() >= 4 ? ReadB::transposed : ReadB::panels;
  }
  const GemmSpec& gemm = *problem.gemm;
  const bool is_small = gemm.n * gemm.k * problem.b.element_bytes() <= k_direct_b_bytes;
  const bool is_cheap = is_small && !problem.converts(problem.b);
  return is_cheap || usual_m(problem) < k_rows_to_repay_packing ? ReadB::direct : ReadB::panels;
}

SizedOuterProductSchedule schedule_for(const GemmProblem& problem, const Machine& machine, bool is_exchanged) {
  const Tile tile = tile_for(problem);
  SizedOuterProductSchedule schedule;
  schedule.exchanged = is_exchanged;
  schedule.read_a = read_a_of(problem);
  schedule.read_b = read_b_of(problem);
  schedule.rolled_epilogue = needs_rolled_epilogue(problem);
  schedule.tile_rows = static_cast<uint16_t>(tile.rows);
  schedule.tile_vectors = static_cast<uint16_t>(tile.vectors);
  schedule.is_one_block = problem.gemm->k <= k_short_block;
  const int64_t longest = schedule.read_a == ReadA::panels ? k_short_block : problem.registers == 32 ? 1024 : 512;
  schedule.k_block = static_cast<uint32_t>(schedule.is_one_block ? k_short_block / problem.k_group()
                                                                 : longest * 4 / problem.packed_bytes());
  schedule.slab_vectors =
      static_cast<uint32_t>(second_level_slab(machine, schedule.k_block * problem.packed_vector_bytes(), tile.vectors));
  const int64_t group = second_level_share(machine) / 10 / (schedule.k_block * problem.packed_bytes());
  schedule.group_rows = static_cast<uint32_t>(std::max<int64_t>(group / tile.rows, 1) * tile.rows);
  schedule.row_parts = 1;
  return schedule;
}

/// Tails apart: Schedule::tile.
std::vector<int64_t> tile_of(const SizedOuterProductSchedule& schedule, const GemmProblem& problem) {
  std::vector<int64_t> tile(problem.gemm->batch.size(), 1);
  tile.insert(tile.end(), {schedule.tile_rows, schedule.tile_vectors * problem.sum_lanes()});
  if (schedule.exchanged) std::swap(tile[tile.size() - 2], tile[tile.size() - 1]);
  return tile;
}

}  // namespace

template <typename Choices>
std::vector<Schedule> grouped_schedules(const KernelSpec& spec, const CpuTarget& target, const Machine& machine) {
  const auto types = Choices::types(spec, target);
  if (!types.ok()) return {};
  const bool is_exchanged = lies_along_m(analyse_gemm(spec, target, *types));
  const KernelSpec form = oriented(spec, is_exchanged);
  const GemmProblem problem = analyse_gemm(form, target, *types);
  const auto schedule = schedule_for(problem, machine, is_exchanged);
  return {{encode_choices(Choices{schedule}), "groups, " + schedule.describe(problem), tile_of(schedule, problem)}};
}

template std::vector<Schedule> grouped_schedules<GroupedOuterProductSchedule>(const KernelSpec&, const CpuTarget&,
                                                                              const Machine&);
template std::vector<Schedule> grouped_schedules<GroupedBf16OuterProductSchedule>(const KernelSpec&, const CpuTarget&,
                                                                                  const Machine&);

namespace {

template <typename Choices>
std::optional<SizedSpec> sized_by(const KernelSpec& spec, const CpuTarget& target, std::span<const uint8_t> like) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  const bool is_in_pieces = !gemm.a_pieces.empty() || !gemm.b_pieces.empty();
  const bool is_empty = product(gemm.batch) == 0 || gemm.m == 0 || gemm.n == 0 || gemm.k == 0;
  const auto types = Choices::types(spec, target);
  if (is_in_pieces || is_empty || !is_floating(gemm.dtype) || !types.ok()) return std::nullopt;
  std::optional<Choices> given;
  if (!like.empty()) {
    auto parsed = parse_choices<Choices>(like);
    if (!parsed.ok()) return std::nullopt;
    given = std::move(*parsed);
  }
  const bool is_exchanged = given ? given->exchanged : lies_along_m(analyse_gemm(spec, target, *types));
  const KernelSpec form = oriented(spec, is_exchanged);
  const GemmProblem problem = analyse_gemm(form, target, *types);
  if (!given && gemm.m < k_few_rows && gemm.n >= problem.sum_lanes()) return std::nullopt;
  const Choices schedule = given.value_or(Choices{schedule_for(problem, default_machine(target), is_exchanged)});
  if (given && !schedule.validate(problem).ok()) return std::nullopt;
  SizedGemm sized = SizedGemm::open(form, schedule.read_a, schedule.read_b, worthwhile_tasks(problem));
  const bool has_opened = sized.launch.carried().size() > 1;  // besides the tasks
  if (!has_opened || sized.launch.carried().size() > limits::k_launch_extents) return std::nullopt;
  return sized_spec(spec, std::move(sized.form.kernel), sized.launch,
                    {encode_choices(schedule), "sized, " + schedule.describe(problem), tile_of(schedule, problem)});
}

}  // namespace

Status SizedOuterProductSchedule::validate(const GemmProblem& problem) const {
  KILN_RETURN_IF_ERROR(OuterProductSchedule::validate(problem));
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("gemm by outer products of any size, {}: {}", describe(problem), why);
  };
  if (is_one_block && problem.steps() > k_block) return refuse("k is more than a block");
  if (problem.a.pieced || problem.b.pieced) return refuse("an operand lies in pieces");
  if (read_a == ReadA::direct && problem.a.k_stride != 1) return refuse("rows of A are not contiguous");
  return {};
}

GemmBlocking SizedOuterProductSchedule::blocking(const GemmProblem& problem) const {
  GemmBlocking blocking = OuterProductSchedule::blocking(problem);
  blocking.k_block = k_block;
  blocking.is_one_block = is_one_block;
  return blocking;
}

std::optional<SizedSpec> sized_outer_product(const KernelSpec& spec, const CpuTarget& target,
                                             std::span<const uint8_t> like) {
  if (bf16_pairs(spec, target).ok()) return std::nullopt;
  return sized_by<SizedOuterProductSchedule>(spec, target, like);
}

std::optional<SizedSpec> sized_bf16_outer_product(const KernelSpec& spec, const CpuTarget& target,
                                                  std::span<const uint8_t> like) {
  if (bf16_tiles(spec, target).ok()) return std::nullopt;
  return sized_by<SizedBf16OuterProductSchedule>(spec, target, like);
}

}  // namespace kiln::cpu
