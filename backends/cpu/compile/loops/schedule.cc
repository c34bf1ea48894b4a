#include "backends/cpu/compile/loops/schedule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>

#include "backends/loops_stages.h"
#include "base/ceil_div.h"
#include "frontend/kernel/body_dims.h"

namespace kiln::cpu {
namespace {

constexpr int k_largest_unroll = 8;
constexpr int64_t k_most_laid_out = 16;  // points of reduced dims
constexpr int k_least_lane_bytes = 4;    // of the vectors that the widest dtype of the lanes makes

constexpr int64_t k_line = 16;  // elements

bool is_far(int64_t stride) { return std::abs(stride) >= k_line; }

/// Parallel dims without the lanes' one, outermost first.
std::vector<int> dims_beside(const LoopsSpec& loops, int lane_dim) {
  std::vector<int> dims;
  for (int dim = 0; dim < static_cast<int>(loops.parallel_rank); ++dim) {
    if (dim != lane_dim) dims.push_back(dim);
  }
  return dims;
}

/// Where a parallel lane dim stands among the others: last, unless lanes lie apart and neighbours along another dim between
/// them, as where something is transposed or put in turn. Then it stands outside of that, so that the neighbours are wanted
/// while their lines are in the nearest cache.
size_t place_of_lanes(const LoopsSpec& loops, int lane_dim, const std::vector<int>& others) {
  size_t place = others.size();
  for (const Access& access : loops.body.accesses) {
    const int64_t apart = std::abs(access.strides[static_cast<size_t>(lane_dim)]);
    const auto is_between = [&](int dim) {
      const int64_t stride = std::abs(access.strides[static_cast<size_t>(dim)]);
      return stride != 0 && stride < std::min(apart, k_line);
    };
    if (!access.indirect.empty()) continue;
    place = std::min(place, static_cast<size_t>(std::ranges::find_if(others, is_between) - others.begin()));
  }
  return place;
}

/// A reduced dim along which some access reads for one index of a parallel dim what it reads for another that is in flight with
/// it, as windows do that overlap.
struct Shared {
  int dim = -1;       // none
  int64_t steps = 0;  // along it, from one reading to the next
};

Shared shared_along(const LoopsSpec& loops, int parallel) {
  Shared shared;
  for (const Access& access : loops.body.accesses) {
    const int64_t apart = std::abs(access.strides[static_cast<size_t>(parallel)]);
    for (size_t dim = loops.parallel_rank; dim < loops.extents.size() && access.indirect.empty(); ++dim) {
      const int64_t step = std::abs(access.strides[dim]), least = std::gcd(apart, step);
      if (apart == 0 || step == 0 || step / least >= k_largest_unroll || apart / least >= loops.extents[dim]) continue;
      shared = {static_cast<int>(dim), apart / least};
    }
  }
  return shared;
}

/// Of loops along `dims`; no more are counted than it takes to be too many to lay out.
int64_t points_of(const LoopsSpec& loops, std::span<const int> dims) {
  int64_t points = 1;
  for (auto dim = dims.begin(); dim != dims.end() && points <= k_most_laid_out; ++dim) {
    points *= loops.extents[static_cast<size_t>(*dim)];
  }
  return points;
}

/// What loops allow, and what the choice among it looks at.
class LoopsModel {
 public:
  LoopsModel(const LoopsSpec& loops, const CpuTarget& target)
      : m_loops(loops), m_target(target), m_dims(loops.body, (uint64_t{1} << loops.parallel_rank) - 1) {}

  std::vector<LoopsSchedule> choose() const {
    struct Choice {
      int dim;
      double cost;
    };
    std::vector<Choice> choices;
    for (size_t dim = 0; dim < m_loops.extents.size(); ++dim) {
      if (is_possible(dim)) choices.push_back({static_cast<int>(dim), cost_of(dim)});
    }
    std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return a.cost < b.cost; });

    std::vector<LoopsSchedule> schedules;
    const auto add = [&](int dim, int lanes, int unroll, int unroll_dim = -1) {
      const LoopsSchedule schedule{static_cast<int8_t>(dim), static_cast<uint8_t>(lanes), static_cast<uint8_t>(unroll),
                                   static_cast<int8_t>(unroll_dim)};
      if (std::find(schedules.begin(), schedules.end(), schedule) == schedules.end()) schedules.push_back(schedule);
    };
    if (choices.empty()) {
      add(last_dim(), 1, 1);
      return schedules;
    }
    const int best = choices[0].dim;
    if (const auto [dim, vectors] = sharing_vectors(best); dim >= 0) add(best, lanes_of(best), vectors, dim);
    add(best, lanes(), unroll_of(best));
    if (choices.size() > 1) add(choices[1].dim, lanes(), unroll_of(choices[1].dim));
    add(best, lanes(), std::max(1, unroll_of(best) / 2));
    add(best, lanes(), std::min(k_largest_unroll, unroll_of(best) * 2));
    return schedules;
  }

  /// One element at a time, in order, along the innermost dim (-1: there is none): always possible.
  int last_dim() const { return static_cast<int>(m_loops.extents.size()) - 1; }

  /// Whether lanes may lie along a dim. They run through a row's elements in order, and the dims outside of them in
  /// theirs, only if they are last.
  bool is_possible(size_t dim) const {
    const bool reduced = dim >= m_loops.parallel_rank;
    const bool last = dim + 1 == m_loops.extents.size();
    for (const Stage& stage : m_loops.stages) {
      if (stage.per_row && reduced) continue;
      for (size_t i = 0; i < stage.stores.size(); ++i) {
        const Store& store = stage.stores[i];
        const Access& access = m_loops.body.accesses[store.access];
        if ((m_dims.of(access) >> dim & 1) == 0) return false;  // lanes would write one element
        const bool ordered = store.mode == StoreMode::add || !access.indirect.empty();
        if (ordered && reduced && !last) return false;
        for (size_t j = 0; j < i; ++j) {
          if (m_loops.body.accesses[stage.stores[j].access].buffer == access.buffer) return false;
        }
        if (reads_elsewhere(access)) return false;
      }
    }
    return true;
  }

  /// Whether vectors in flight, of lanes along `lane_dim`, may lie along another parallel dim. What is reduced is then met in
  /// another order than the rows' own.
  bool can_unroll(int dim, int lane_dim) const {
    const auto rank = static_cast<int>(m_loops.parallel_rank);
    if (dim < 0 || dim >= rank || lane_dim < 0 || lane_dim >= rank || dim == lane_dim) return false;
    const auto is_once_a_row = [](const Stage& stage) { return stage.per_row || stage.stores.empty(); };
    return is_possible(static_cast<size_t>(dim)) && std::ranges::all_of(m_loops.stages, is_once_a_row);
  }

 private:
  struct Vectors {
    int dim = -1;  // none
    int count = 0;
  };
  /// Vectors in flight that read what their neighbours read, along the innermost parallel dim of which there are several: as many
  /// as registers hold sums and what is read again, in rounds as even as they can be.
  Vectors sharing_vectors(int lane_dim) const {
    const int registers = m_target.has(Feature::avx512) ? 32 : 16, others = 3;
    for (auto dim = static_cast<int>(m_loops.parallel_rank) - 1; dim >= 0; --dim) {
      const Shared shared = shared_along(m_loops, dim);
      if (shared.dim < 0 || !can_unroll(dim, lane_dim)) continue;
      const int64_t held = (registers - others) / (static_cast<int64_t>(m_loops.reductions.size()) + shared.steps);
      const int64_t most = std::min<int64_t>(held, vectors_beside(cost_of_pass(), true));
      const int64_t extent = m_loops.extents[static_cast<size_t>(dim)];
      if (most > 1) return {dim, static_cast<int>(ceil_div(extent, ceil_div(extent, most)))};
    }
    return {};
  }

  /// Of what is done at each point of a row.
  int cost_of_pass() const {
    int cost = 0;
    for (const Stage& stage : m_loops.stages) {
      if (stage.per_row) continue;
      for (const ExprId id : needed_by(m_loops.body, roots_of(m_loops, stage)))
        cost += op_cost(m_loops.body.exprs[id].op);
    }
    return cost;
  }

  /// How many vectors in flight hide how long operations take, where one has `cost`.
  static int vectors_beside(int cost, bool in_columns) {
    return cost <= 16 ? (in_columns ? 8 : 4) : cost <= 48 ? 2 : 1;
  }

  bool is_gathered(const Access& access, size_t dim) const {
    return std::any_of(access.indirect.begin(), access.indirect.end(),
                       [&](const IndirectTerm& term) { return (m_dims.of(term.index) >> dim & 1) != 0; });
  }

  /// A buffer that is stored through one access and loaded through another.
  bool reads_elsewhere(const Access& stored) const {
    return std::any_of(m_loops.body.exprs.begin(), m_loops.body.exprs.end(), [&](const ScalarNode& node) {
      if (node.op != ScalarOp::load) return false;
      const Access& loaded = m_loops.body.accesses[node.slot];
      return loaded.buffer == stored.buffer && !(loaded == stored);
    });
  }

  /// Lower is better: vectors of memory traffic that are not plain loads, then short trips.
  double cost_of(size_t dim) const {
    const auto price = [&](const Access& access, double near, double far) {
      const int64_t stride = access.strides[dim];
      if (is_gathered(access, dim) || is_far(stride)) return far;
      if (stride == 0) return 0.25;
      return stride == 1 || m_target.interleaves(stride, 4) ? static_cast<double>(stride) : near;
    };
    double cost = 0;
    const std::vector<double> rates = rates_of_exprs();
    for (ExprId id = 0; id < rates.size(); ++id) {
      const ScalarNode& node = m_loops.body.exprs[id];
      if (node.op == ScalarOp::load) cost += rates[id] * price(m_loops.body.accesses[node.slot], 7, 8);
    }
    for (const Stage& stage : m_loops.stages) {
      for (const Store& store : stage.stores)
        cost += rate_of(stage) * price(m_loops.body.accesses[store.access], 12, 16);
    }
    const auto extent = static_cast<double>(m_loops.extents[dim]);
    const double rounds = std::ceil(extent / lanes());
    if (dim >= m_loops.parallel_rank) cost += folds() * extent / rounds;
    cost *= rounds * lanes() / extent;  // lanes that stay idle
    // Folding lanes costs little, but many rows at a stride cost cache lines: reduce along the row when it is
    // dense.
    return dim >= m_loops.parallel_rank ? cost : cost * 1.01;
  }

  /// What folding lanes adds to each point of a row.
  double folds() const { return static_cast<double>(m_loops.reductions.size()) * std::log2(lanes()) / points_of_row(); }

  double points_of_row() const {
    double points = 1;
    for (size_t dim = m_loops.parallel_rank; dim < m_loops.extents.size(); ++dim)
      points *= static_cast<double>(m_loops.extents[dim]);
    return points;
  }

  /// How often what a stage does is done, for each point of a row.
  double rate_of(const Stage& stage) const { return stage.per_row ? 1 / points_of_row() : 1; }

  /// The same of each expression, in the stage that needs it most often.
  std::vector<double> rates_of_exprs() const {
    std::vector<double> rates(m_loops.body.exprs.size());
    for (const Stage& stage : m_loops.stages) {
      for (const ExprId id : needed_by(m_loops.body, roots_of(m_loops, stage)))
        rates[id] = std::max(rates[id], rate_of(stage));
    }
    return rates;
  }

  int lanes() const {
    bool has_f64 = false, has_word = false, has_i64 = false;
    for (ExprId id = 0; id < m_loops.body.exprs.size(); ++id) {
      const ScalarNode& node = m_loops.body.exprs[id];
      if (m_dims.of(id) == 0) continue;
      has_f64 |= node.dtype == DType::f64;
      has_i64 |= node.dtype == DType::i64;
      has_word |= size_of(node.dtype) == 4 || size_of(node.dtype) == 2;
    }
    const int element = has_f64 ? 8 : has_word ? 4 : has_i64 ? 8 : 4;
    return m_target.vector_bytes / element;
  }

  /// As many lanes as there are elements, or fewer: vectors that are half empty take as long as full ones.
  int lanes_of(int dim) const {
    return std::min(lanes(),
                    static_cast<int>(std::bit_ceil(static_cast<uint64_t>(m_loops.extents[static_cast<size_t>(dim)]))));
  }

  int unroll_of(int dim) const {
    int cost = 0;
    for (const ScalarNode& node : m_loops.body.exprs) cost += op_cost(node.op);
    const bool in_columns = static_cast<uint32_t>(dim) < m_loops.parallel_rank && !m_loops.reductions.empty();
    int unroll = vectors_beside(cost, in_columns);
    const int64_t most = std::min(m_loops.extents[static_cast<size_t>(dim)], lanes_in_cache(static_cast<size_t>(dim)));
    while (unroll > 1 && int64_t{unroll} * lanes() > most) unroll /= 2;
    return unroll;
  }

  /// How many lanes find room in the nearest cache for the lines that they reach: of a stride that is a power of two, few.
  int64_t lanes_in_cache(size_t dim) const {
    constexpr int64_t k_line_bytes = 64, k_page = 4096, k_ways = 8;  // lines a page apart are of one set
    int64_t most = INT64_MAX;
    for (const Access& access : m_loops.body.accesses) {
      const int64_t stride_bytes = access.strides[dim] * 4;
      if (is_far(access.strides[dim]))
        most = std::min(most, k_ways * k_page / std::max(k_line_bytes, std::gcd(stride_bytes, k_page)));
    }
    return most;
  }

  static int op_cost(ScalarOp op) {
    switch (op) {
      case ScalarOp::exp:
      case ScalarOp::sigmoid:
        return 12;
      case ScalarOp::expm1:
      case ScalarOp::log:
      case ScalarOp::log1p:
      case ScalarOp::tanh:
      case ScalarOp::erf:
        return 20;
      case ScalarOp::philox:
      case ScalarOp::sin:
      case ScalarOp::cos:
      case ScalarOp::pow:
      case ScalarOp::atan2:
      case ScalarOp::floor_div:
      case ScalarOp::remainder:
      case ScalarOp::fmod:
        return 40;
      case ScalarOp::constant:
        return 0;
      default:
        return 1;
    }
  }

  const LoopsSpec& m_loops;
  const CpuTarget& m_target;
  BodyDims m_dims;
};

}  // namespace

std::vector<LoopsSchedule> ranked_schedules(const LoopsSpec& loops, const CpuTarget& target) {
  return LoopsModel(loops, target).choose();
}

Status LoopsSchedule::validate(const LoopsSpec& loops, const CpuTarget& target) const {
  const LoopsModel model(loops, target);
  if (lane_dim == model.last_dim() && lanes == 1 && unroll == 1 && unroll_dim == -1) return {};
  const auto refuse = [&](std::string_view why) { return invalid_argument("loops, {}: {}", describe(), why); };
  if (lane_dim < 0 || lane_dim > model.last_dim()) return refuse("there is no such dim");
  if (!model.is_possible(static_cast<size_t>(lane_dim))) return refuse("lanes cannot lie along that dim");
  const int most = target.vector_bytes / k_least_lane_bytes;
  if (!std::has_single_bit(lanes) || lanes < 2 || lanes > most) return refuse("no such number of lanes");
  if (unroll_dim != -1 && !model.can_unroll(unroll_dim, lane_dim)) return refuse("vectors cannot lie along that dim");
  const bool is_number = unroll_dim != -1 ? unroll > 0 : std::has_single_bit(unroll);
  if (!is_number || unroll > k_largest_unroll) return refuse("no such number of vectors");
  return {};
}

std::string LoopsSchedule::describe() const {
  const std::string along = unroll_dim < 0 ? "" : fmt::format(" along d{}", unroll_dim);
  return fmt::format("{} lanes along d{}, {} vectors{}", lanes, lane_dim, unroll, along);
}

std::vector<int> reduced_dims(const LoopsSpec& loops, const LoopsSchedule& schedule) {
  std::vector<int> dims;
  for (auto dim = static_cast<int>(loops.parallel_rank); dim < static_cast<int>(loops.extents.size()); ++dim) {
    if (dim != schedule.lane_dim) dims.push_back(dim);
  }
  if (schedule.unroll_dim < 0 || points_of(loops, dims) <= k_most_laid_out) return dims;
  const int shared = shared_along(loops, schedule.unroll_dim).dim;
  std::ranges::stable_partition(dims, [&](int dim) { return dim != shared; });
  return dims;
}

bool is_laid_out(const LoopsSpec& loops, const LoopsSchedule& schedule, int dim) {
  const auto lanes_are_rows = schedule.lane_dim >= 0 && schedule.lane_dim < static_cast<int>(loops.parallel_rank);
  if (!lanes_are_rows || dim < static_cast<int>(loops.parallel_rank)) return false;
  const std::vector<int> dims = reduced_dims(loops, schedule);
  return points_of(loops, {std::ranges::find(dims, dim), dims.end()}) <= k_most_laid_out;
}

LoopsGrid loops_grid(const LoopsSpec& loops, const LoopsSchedule& schedule) {
  // A task should outlast its start (a wake-up is some microseconds); more tasks than this share no better.
  constexpr int64_t k_task_bytes = 16 << 10;
  constexpr int64_t k_max_tasks = 64;

  LoopsGrid grid;
  std::vector<int> dims = dims_beside(loops, schedule.lane_dim);
  if (schedule.lane_dim >= 0 && schedule.lane_dim < static_cast<int>(loops.parallel_rank)) {
    const bool is_round = loops.extents[static_cast<size_t>(schedule.lane_dim)] <= schedule.step_of(schedule.lane_dim);
    const size_t place = is_round ? dims.size() : place_of_lanes(loops, schedule.lane_dim, dims);
    dims.insert(dims.begin() + static_cast<ptrdiff_t>(place), schedule.lane_dim);
  }
  for (const int dim : dims) {
    const int64_t step = schedule.step_of(dim);
    grid.order.push_back({dim, step, ceil_div(loops.extents[static_cast<size_t>(dim)], step)});
  }

  const auto points =
      static_cast<double>(std::accumulate(loops.extents.begin(), loops.extents.end(), int64_t{1}, std::multiplies<>()));
  const double bytes = points * 4 * static_cast<double>(std::max<size_t>(1, loops.body.accesses.size()));
  const auto wanted = static_cast<int64_t>(std::clamp(bytes / k_task_bytes, 1.0, double{k_max_tasks}));
  if (wanted == 1 || grid.order.empty()) return grid;

  int64_t outer = 1;
  for (size_t position = 0; position < grid.order.size(); ++position) {
    const auto [dim, step, rounds] = grid.order[position];
    const bool last = position + 1 == grid.order.size();
    if (outer * rounds < wanted && !last) {
      outer *= rounds;
      continue;
    }
    const int64_t extent = loops.extents[static_cast<size_t>(dim)];
    const int64_t pieces = std::max<int64_t>(1, ceil_div(wanted, outer));
    const int64_t size = ceil_div(extent, pieces);
    grid.split = static_cast<int>(position);
    grid.chunk = std::min(extent, round_up(size, step));
    grid.chunks = ceil_div(extent, grid.chunk);
    grid.tasks = outer * grid.chunks;
    break;
  }
  return grid;
}

}  // namespace kiln::cpu
