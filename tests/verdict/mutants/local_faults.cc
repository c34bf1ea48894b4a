#include "tests/verdict/mutants/local_faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/verdict/mutants/body_rewrite.h"

namespace kiln::mutants {

namespace {

constexpr int64_t k_panel = 64;

struct Range {
  uint32_t dim;
  int64_t low, high;
};

/// Points of an iteration in all the ranges, and where dim `lane_dim` leaves `lane` over `lanes`.
struct Region {
  std::vector<Range> ranges;
  uint32_t lane_dim = 0;
  int64_t lanes = 0, lane = 0;

  std::string to_string() const {
    std::string text;
    for (const Range& r : ranges) text += fmt::format(" dim {} in [{}, {})", r.dim, r.low, r.high);
    if (lanes > 0) text += fmt::format(" dim {} = {} mod {}", lane_dim, lane, lanes);
    return text;
  }
  ExprId inside(Appender& out) const {
    ExprId all = k_no_expr;
    const auto require = [&](ExprId condition) {
      all = all == k_no_expr ? condition : out.op(ScalarOp::bitwise_and, DType::boolean, all, condition);
    };
    for (const Range& r : ranges) require(out.inside(r.dim, r.low, r.high));
    if (lanes > 0) {
      const ExprId rest = out.op(ScalarOp::remainder, DType::i64, out.index(lane_dim), out.integer(lanes));
      require(out.op(ScalarOp::eq, DType::boolean, rest, out.integer(lane)));
    }
    return all;
  }
};

int64_t below(std::mt19937_64& random, int64_t extent) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(std::max<int64_t>(extent, 1)));
}

/// A place of the iteration `extents`, of which the last two dims are cut into tiles.
class Places {
 public:
  Places(std::vector<int64_t> extents, std::vector<int64_t> tile, std::mt19937_64& random)
      : m_extents(std::move(extents)), m_tile(std::move(tile)), m_random(random) {}

  Region draw(LocalFault fault) {
    const auto rank = static_cast<uint32_t>(m_extents.size());
    const uint32_t row = rank - 2, column = rank - 1;
    Region region;
    switch (fault) {
      case LocalFault::one_lane_of_all:
        region.lane_dim = column, region.lanes = m_tile[column], region.lane = below(m_random, m_tile[column]);
        return region;
      case LocalFault::one_slice:
        region.ranges = {part(row, std::max<int64_t>(m_extents[row] / 16, 1))};
        return region;
      case LocalFault::tail_column:
        region.ranges = {{column, m_extents[column] - 1, m_extents[column]}};
        return region;
      case LocalFault::tail_row:
        region.ranges = {{row, m_extents[row] - 1, m_extents[row]}};
        return region;
      default:
        break;
    }
    for (uint32_t d = 0; d < row; ++d) region.ranges.push_back(part(d, 1));
    region.ranges.push_back(fault == LocalFault::one_row_of_tile ? part(row, 1) : part(row, m_tile[row]));
    region.ranges.push_back(fault == LocalFault::one_column_of_tile ? part(column, 1) : part(column, m_tile[column]));
    return region;
  }

 private:
  /// One of the pieces of `size` that a dim is cut into.
  Range part(uint32_t dim, int64_t size) {
    const int64_t pieces = (m_extents[dim] + size - 1) / size, low = below(m_random, pieces) * size;
    return {dim, low, std::min(low + size, m_extents[dim])};
  }

  std::vector<int64_t> m_extents, m_tile;
  std::mt19937_64& m_random;
};

/// expression `at` of `body` is half of what it is in the region.
Rewritten halved(const Body& body, ExprId at, const Region& region) {
  const DType dtype = body.exprs[at].dtype;
  return rewrite(body, at, [&](Appender& out, ExprId copy) {
    const ExprId half = out.op(ScalarOp::mul, dtype, copy, out.number(dtype, 0.5));
    return out.op(ScalarOp::select, dtype, region.inside(out), half, copy);
  });
}

std::vector<FaultyKernel> checked(KernelSpec spec, std::string what) {
  if (!validate(spec).ok()) return {};
  return {{std::move(what), std::move(spec)}};
}

std::vector<FaultyKernel> in_gemm(const KernelSpec& spec, const std::vector<int64_t>& tile, LocalFault fault,
                                  std::mt19937_64& random) {
  KernelSpec wrong = spec;
  auto& gemm = std::get<GemmSpec>(wrong.kernel);
  std::vector<int64_t> extents = gemm.batch;
  extents.insert(extents.end(), {gemm.m, gemm.n});
  if (fault == LocalFault::last_k_panel) {
    gemm.k -= std::min(k_panel, gemm.k - 1);
    return checked(std::move(wrong), fmt::format("k {} of {}", gemm.k, std::get<GemmSpec>(spec.kernel).k));
  }
  if (fault == LocalFault::k_panel_of_tile) {
    const auto rank = static_cast<uint32_t>(extents.size());
    Region region = Places({gemm.m, gemm.k}, {tile[rank - 2], k_panel}, random).draw(LocalFault::one_tile);
    region.ranges[0].dim = rank - 2, region.ranges[1].dim = rank - 1;
    Rewritten a = rewrite(gemm.a, gemm.a_value, [&](Appender& out, ExprId copy) {
      return out.op(ScalarOp::select, gemm.dtype, region.inside(out), out.number(gemm.dtype, 0), copy);
    });
    gemm.a_value = a.map[gemm.a_value];
    gemm.a = std::move(a.body);
    return checked(std::move(wrong), "terms left out where" + region.to_string());
  }
  const auto accumulator = std::ranges::find(gemm.epilogue.exprs, ScalarOp::accumulator, &ScalarNode::op);
  const Region region = Places(extents, tile, random).draw(fault);
  Rewritten epilogue = halved(gemm.epilogue, static_cast<ExprId>(accumulator - gemm.epilogue.exprs.begin()), region);
  for (Store& store : gemm.stores) store.value = epilogue.map[store.value];
  gemm.epilogue = std::move(epilogue.body);
  return checked(std::move(wrong), "half where" + region.to_string());
}

/// Scores are off by one in the region: (b, h, q, k) is what they are over. A column is a key, then.
std::vector<FaultyKernel> in_attention(const KernelSpec& spec, const std::vector<int64_t>& tile, LocalFault fault,
                                       std::mt19937_64& random) {
  KernelSpec wrong = spec;
  auto* backward = std::get_if<AttentionBackwardSpec>(&wrong.kernel);
  AttentionSpec& attention = backward ? backward->forward : std::get<AttentionSpec>(wrong.kernel);
  if (fault == LocalFault::last_k_panel) {
    attention.k_len -= std::min(k_panel, attention.k_len - 1);
    return checked(std::move(wrong), fmt::format("{} keys", attention.k_len));
  }
  // A whole row of scores that is off by one gives the same softmax, and single keys weigh little: half of the keys.
  if (fault == LocalFault::one_column_of_tile || fault == LocalFault::one_lane_of_all ||
      fault == LocalFault::tail_column) {
    return {};
  }
  const int64_t keys = std::max<int64_t>(attention.k_len / 2, 1);
  Region region = Places({attention.batch, attention.heads, attention.q_len, keys}, {1, 1, tile[2], keys}, random)
                      .draw(fault == LocalFault::k_panel_of_tile ? LocalFault::one_tile : fault);
  if (attention.causal) {  // keys that all queries of the region see
    std::erase_if(region.ranges, [](const Range& r) { return r.dim == 3; });
    region.ranges.push_back({3, 0, 1});
    if (region.ranges[region.ranges.size() - 2].low == 0) return {};  // the first query sees nothing else
  } else if (std::ranges::none_of(region.ranges, [](const Range& r) { return r.dim == 3; })) {
    region.ranges.push_back({3, 0, keys});
  }
  if (attention.score_value == k_no_expr) {
    attention.score.exprs.push_back({ScalarOp::accumulator, DType::f32});
    attention.score_value = static_cast<ExprId>(attention.score.exprs.size() - 1);
  }
  Rewritten score = rewrite(attention.score, attention.score_value, [&](Appender& out, ExprId copy) {
    const ExprId more = out.op(ScalarOp::add, DType::f32, copy, out.number(DType::f32, 1));
    return out.op(ScalarOp::select, DType::f32, region.inside(out), more, copy);
  });
  attention.score_value = score.map[attention.score_value];
  attention.score = std::move(score.body);
  return checked(std::move(wrong), "scores where" + region.to_string());
}

std::vector<FaultyKernel> in_loops(const KernelSpec& spec, const std::vector<int64_t>& tile, LocalFault fault,
                                   std::mt19937_64& random) {
  KernelSpec wrong = spec;
  auto& loops = std::get<LoopsSpec>(wrong.kernel);
  // One element of each piece is compared: what is wrong in one lane of one piece is beyond that.
  if (loops.extents.size() < 2 || fault == LocalFault::one_column_of_tile || fault == LocalFault::k_panel_of_tile)
    return {};
  if (fault == LocalFault::last_k_panel) {
    if (loops.reductions.empty()) return {};
    const ExprId value = loops.reductions[0].value;
    const auto last = static_cast<uint32_t>(loops.extents.size() - 1);
    const Region region{{{last, loops.extents[last] - std::min(k_panel, loops.extents[last]), loops.extents[last]}}};
    Rewritten body = halved(loops.body, value, region);
    for (Reduction& reduction : loops.reductions) reduction.value = body.map[reduction.value];
    for (Stage& stage : loops.stages) {
      for (Store& store : stage.stores) store.value = body.map[store.value];
    }
    loops.body = std::move(body.body);
    return checked(std::move(wrong), "terms halved where" + region.to_string());
  }
  for (Stage& stage : loops.stages) {
    if (stage.per_row || stage.stores.empty()) continue;
    const Region region = Places(loops.extents, tile, random).draw(fault);
    const ExprId value = stage.stores.back().value;
    Rewritten body = halved(loops.body, value, region);
    const ExprId damaged = body.map[value];
    for (Reduction& reduction : loops.reductions) reduction.value = body.map[reduction.value];
    for (Stage& each : loops.stages) {
      for (Store& store : each.stores) store.value = store.value == value ? damaged : body.map[store.value];
    }
    loops.body = std::move(body.body);
    return checked(std::move(wrong), "half where" + region.to_string());
  }
  return {};
}

}  // namespace

const char* to_string(LocalFault fault) {
  constexpr const char* k_names[] = {
      "one tile", "one column of a tile", "one row of a tile", "one lane of all tiles", "one slice", "tail column",
      "tail row", "k panel of a tile",    "last k panel"};
  static_assert(std::size(k_names) == static_cast<size_t>(LocalFault::count));
  return k_names[static_cast<size_t>(fault)];
}

std::vector<FaultyKernel> with_fault(const KernelSpec& spec, const std::vector<int64_t>& tile, LocalFault fault,
                                     std::mt19937_64& random) {
  if (std::holds_alternative<GemmSpec>(spec.kernel)) return in_gemm(spec, tile, fault, random);
  if (std::holds_alternative<LoopsSpec>(spec.kernel)) return in_loops(spec, tile, fault, random);
  return in_attention(spec, tile, fault, random);
}

}  // namespace kiln::mutants
