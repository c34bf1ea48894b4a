#include "backends/cpu/compile/gemm/problem.h"

#include <algorithm>
#include <utility>

#include "base/ceil_div.h"
#include "frontend/kernel/affine.h"

namespace kiln::cpu {
namespace {

// What is summed from zero: k in numbers, or of windows all elements of some channels.
constexpr int64_t k_longest_run = 192, k_longest_even_run = 256, k_channels_of_run = 16;

constexpr int64_t k_steps_to_repay_scattering = 16;  // for each row of more than four vectors
constexpr int64_t k_steps_to_repay_crowding = 24;    // for each row, where rows of C share cache sets

/// Accesses that would be contiguous with lanes along `dim`, minus those that would be gathers.
int contiguity(const Body& body, size_t dim) {
  int score = 0;
  for (const Access& access : body.accesses) {
    const int64_t stride = access.strides[dim];
    score += stride == 1 ? 1 : stride == 0 ? 0 : -1;
  }
  return score;
}

/// Rows and columns of the operand where they lie in pieces, one of which may be whole.
PiecedAccess pieced_access(const Access& access, size_t batch_rank, int64_t rows, int64_t columns,
                           const GemmPieces& pieces, bool is_a) {
  const auto cut = [](int64_t whole, const std::vector<int64_t>& extents) {
    return extents.empty() ? std::vector<int64_t>{whole} : extents;
  };
  Pieces outer{cut(rows, pieces.rows), {}}, inner{cut(columns, pieces.columns), {}};
  const auto first = access.strides.begin() + static_cast<ptrdiff_t>(batch_rank);
  const auto border = first + static_cast<ptrdiff_t>(outer.extents.size());
  outer.strides.assign(first, border);
  inner.strides.assign(border, access.strides.end());
  return is_a ? PiecedAccess{&access, outer, inner} : PiecedAccess{&access, inner, outer};
}

GemmOperand analyse_operand(const GemmSpec& gemm, bool is_a, DType element) {
  const Body& body = is_a ? gemm.a : gemm.b;
  const ExprId value = is_a ? gemm.a_value : gemm.b_value;
  const GemmPieces& pieces = is_a ? gemm.a_pieces : gemm.b_pieces;
  const size_t batch_rank = gemm.batch.size();
  const size_t tile_dim = batch_rank + (is_a ? 0 : 1), k_dim = batch_rank + (is_a ? 1 : 0);
  GemmOperand operand;
  operand.body = &body;
  operand.value = value;
  operand.loaded = element;
  const ScalarNode* load = load_behind_casts(body, value);
  if (load != nullptr && load->operands[0] == k_no_expr && body.accesses[load->slot].indirect.empty()) {
    operand.plain = &body.accesses[load->slot];
    operand.tile_stride = operand.plain->strides[tile_dim];
    operand.k_stride = operand.plain->strides[k_dim];
    operand.loaded = load->dtype;
    for (ExprId at = value; &body.exprs[at] != load; at = body.exprs[at].operands[0]) {
      operand.casts.push_back(body.exprs[at].dtype);
    }
    std::ranges::reverse(operand.casts);
  }
  if (!pieces.empty()) {
    const int64_t rows = is_a ? gemm.m : gemm.k, columns = is_a ? gemm.k : gemm.n;
    operand.pieced = pieced_access(*std::exchange(operand.plain, nullptr), batch_rank, rows, columns, pieces, is_a);
    operand.k_lanes = operand.pieced->k.run() > operand.pieced->tile.run();
    return operand;
  }
  operand.k_lanes = contiguity(body, k_dim) > contiguity(body, tile_dim);
  return operand;
}

bool is_read(const Body& body, uint32_t buffer) {
  return std::any_of(body.exprs.begin(), body.exprs.end(), [&](const ScalarNode& node) {
    return node.op == ScalarOp::load && body.accesses[node.slot].buffer == buffer;
  });
}

const Access* find_partial_sums(const KernelSpec& spec, const GemmSpec& gemm, DType accumulator) {
  const size_t rank = gemm.batch.size() + 2;
  for (const Store& store : gemm.stores) {
    const Access& access = gemm.epilogue.accesses[store.access];
    const BufferSpec& buffer = spec.buffers[access.buffer];
    const auto writers = std::count_if(gemm.stores.begin(), gemm.stores.end(), [&](const Store& other) {
      return gemm.epilogue.accesses[other.access].buffer == access.buffer;
    });
    if (store.mode == StoreMode::assign && buffer.dtype == accumulator && buffer.role == BufferRole::output &&
        access.indirect.empty() && access.strides[rank - 1] == 1 && writers == 1 &&
        !is_read(gemm.epilogue, access.buffer)) {
      return &access;
    }
  }
  return nullptr;
}

/// Whether the epilogue sees the lower half of an i64 sum alone: then sums of i32 are the same, however often they wrap.
bool sums_low_bits(const GemmSpec& gemm) {
  const Body& body = gemm.epilogue;
  const auto is_sum = [&](ExprId id) { return id != k_no_expr && body.exprs[id].op == ScalarOp::accumulator; };
  const auto is_narrowed = [](const ScalarNode& node) {
    return node.op == ScalarOp::cast && is_integral(node.dtype) && node.dtype != DType::i64;
  };
  const auto reads_sum = [&](const ScalarNode& node) { return std::ranges::any_of(node.operands, is_sum); };
  const auto is_indexed = [&](const Access& access) {
    return std::ranges::any_of(access.indirect, [&](const IndirectTerm& term) { return is_sum(term.index); });
  };
  return is_integral(gemm.dtype) && gemm.dtype != DType::i64 &&
         std::ranges::none_of(body.exprs, [&](const auto& node) { return reads_sum(node) && !is_narrowed(node); }) &&
         std::ranges::none_of(gemm.stores, [&](const Store& store) { return is_sum(store.value); }) &&
         std::ranges::none_of(body.accesses, is_indexed);
}

/// Exchanges the rows and the columns of a body: its iteration dims from batch_rank on, of which those of the rows come
/// first.
void exchange_dims(Body& body, size_t batch_rank, const GemmPieces& pieces) {
  const size_t rows = std::max<size_t>(pieces.rows.size(), 1), columns = std::max<size_t>(pieces.columns.size(), 1);
  for (Access& access : body.accesses) {
    const auto first = access.strides.begin() + static_cast<ptrdiff_t>(batch_rank);
    std::rotate(first, first + static_cast<ptrdiff_t>(rows), access.strides.end());
  }
  for (ScalarNode& node : body.exprs) {
    if (node.op != ScalarOp::index || node.slot < batch_rank) continue;
    const size_t dim = node.slot - batch_rank;
    node.slot = static_cast<uint32_t>(batch_rank + (dim < rows ? dim + columns : dim - rows));
  }
}

}  // namespace

int64_t Pieces::elements() const { return product(extents); }

int64_t Pieces::run() const {
  const bool is_near = strides.back() >= 1 && strides.back() <= k_most_interleaved;
  return is_near ? (extents.back() + strides.back() - 1) / strides.back() : 1;
}

std::string_view how_multiplied(GemmStep step) {
  constexpr std::string_view k_texts[] = {"", " in pairs", " in pairs of i16", " in quads"};
  return k_texts[static_cast<size_t>(step)];
}

Expected<GemmTypes> widened(const KernelSpec& spec, const CpuTarget&) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  return GemmTypes{.element = gemm.dtype, .accumulator = sums_low_bits(gemm) ? DType::i32 : accumulator_of(gemm.dtype)};
}

Expected<GemmTypes> bf16_tiles(const KernelSpec& spec, const CpuTarget& target) {
  if (!target.has(Feature::amx_bf16)) {
    return error(StatusCode::unimplemented, "gemm by tiles of bf16: {} has no such instruction", target.name);
  }
  KILN_ASSIGN_OR_RETURN(GemmTypes types, bf16_pairs(spec, target));
  types.steps_at_once = 16;
  return types;
}

Expected<GemmTypes> bf16_pairs(const KernelSpec& spec, const CpuTarget& target) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  if (!target.has(Feature::avx512_bf16)) {
    return error(StatusCode::unimplemented, "gemm by pairs of bf16: {} has no such instruction", target.name);
  }
  // What else is computed is f32 in registers, and would be rounded once more.
  const auto is_held = [](const Body& body, ExprId value) {
    return body.exprs[value].op == ScalarOp::load || body.exprs[value].op == ScalarOp::cast;
  };
  if (gemm.dtype != DType::bf16 || !is_held(gemm.a, gemm.a_value) || !is_held(gemm.b, gemm.b_value)) {
    return error(StatusCode::unimplemented, "gemm by pairs of bf16: an operand is no load of bf16, nor a cast to it");
  }
  return GemmTypes{.element = DType::bf16, .accumulator = DType::f32, .step = GemmStep::bf16_pair};
}

Expected<GemmTypes> i16_pairs(const KernelSpec& spec, const CpuTarget&) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  if (gemm.dtype != DType::i8 || !sums_low_bits(gemm)) {
    return error(StatusCode::unimplemented,
                 "gemm by pairs or quads of bytes: an operand or the sum is another integer");
  }
  return GemmTypes{.element = DType::i8, .accumulator = DType::i32, .step = GemmStep::i16_pair};
}

Expected<GemmTypes> i8_quads(const KernelSpec& spec, const CpuTarget& target) {
  if (!target.has(Feature::avx512_vnni)) {
    return error(StatusCode::unimplemented, "gemm by quads of bytes: {} has no such instruction", target.name);
  }
  KILN_ASSIGN_OR_RETURN(GemmTypes types, i16_pairs(spec, target));
  types.step = GemmStep::i8_quad;
  types.offsets_a = true;
  return types;
}

Expected<GemmTypes> i8_tiles(const KernelSpec& spec, const CpuTarget& target) {
  if (!target.has(Feature::amx_int8)) {
    return error(StatusCode::unimplemented, "gemm by tiles of bytes: {} has no such instruction", target.name);
  }
  KILN_ASSIGN_OR_RETURN(GemmTypes types, i16_pairs(spec, target));
  types.step = GemmStep::i8_quad;
  types.steps_at_once = 16;
  return types;
}

SumOrder GemmProblem::sum_order() const {
  const int64_t all = std::max<int64_t>(steps(), 1);
  if (!rounds()) return {all};
  if (gemm->window > 1 && k_group() == 1) return {std::min(all, k_channels_of_run * gemm->window), gemm->window};
  const int64_t longest = k_longest_run / k_group();
  return {all <= longest ? all : all <= 2 * longest ? ceil_div(all, 2) : longest};
}

SumOrder GemmProblem::sum_order_of_blocks(int64_t block) const {
  const SumOrder of_all = sum_order();
  if (block % of_all.run == 0) return of_all;
  return {rounds() ? ceil_div(block, ceil_div(block, k_longest_even_run / k_group())) : block};
}

int64_t GemmProblem::in_whole_runs(int64_t most) const {
  return std::min(round_up(most, sum_order().run), std::max<int64_t>(steps(), 1));
}

bool GemmProblem::reads_a_directly() const {
  if (a.plain == nullptr || converts(a) || types.offsets_a) return false;
  const bool is_whole =
      steps() * k_group() == gemm->k && !(gemm->groups && gemm->groups->along == GemmGroups::Along::k);
  return k_group() == 1 || (a.k_stride == 1 && is_whole);
}

int64_t GemmProblem::panel_steps() const {
  if (!b.pieced || converts(b) || types.offsets_a) return 0;
  const Pieces& tile = b.pieced->tile;
  if (tile.extents.size() != 2 || tile.extents.back() != sum_lanes() || tile.strides.back() != k_group()) return 0;
  Pieces k = b.pieced->k;
  if (k_group() > 1) {  // the innermost piece is a step
    if (k.extents.size() < 2 || k.extents.back() != k_group() || k.strides.back() != 1) return 0;
    k.extents.pop_back();
    k.strides.pop_back();
  }
  const bool is_whole = k.extents.back() % types.steps_at_once == 0;
  return is_whole && k.strides.back() == sum_lanes() * k_group() ? k.extents.back() : 0;
}

GemmProblem analyse_gemm(const KernelSpec& spec, const CpuTarget& target, const GemmTypes& types) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  GemmProblem problem;
  problem.spec = &spec;
  problem.gemm = &gemm;
  problem.target = &target;
  problem.types = types;
  problem.registers = target.has(Feature::avx512) ? 32 : 16;
  problem.batches = gemm.groups ? 1 : product(gemm.batch);
  problem.a = analyse_operand(gemm, true, types.element);
  problem.b = analyse_operand(gemm, false, types.element);
  problem.partial_sums = find_partial_sums(spec, gemm, types.accumulator);
  return problem;
}

KernelSpec exchanged(const KernelSpec& spec) {
  KernelSpec result = spec;
  auto& gemm = std::get<GemmSpec>(result.kernel);
  const size_t batch_rank = gemm.batch.size();
  // A was over (…, m, k) and must be over (…, k, n); B the other way round.
  exchange_dims(gemm.a, batch_rank, gemm.a_pieces);
  exchange_dims(gemm.b, batch_rank, gemm.b_pieces);
  exchange_dims(gemm.epilogue, batch_rank, {});
  std::swap(gemm.m, gemm.n);
  std::swap(gemm.a, gemm.b);
  std::swap(gemm.a_value, gemm.b_value);
  std::swap(gemm.a_pieces, gemm.b_pieces);
  for (GemmPieces* pieces : {&gemm.a_pieces, &gemm.b_pieces}) std::swap(pieces->rows, pieces->columns);
  return result;
}

KernelSpec oriented(const KernelSpec& spec, bool is_exchanged) {
  KernelSpec result = is_exchanged ? exchanged(spec) : spec;
  auto& gemm = std::get<GemmSpec>(result.kernel);
  // Lanes are columns. Of a single column only the first lane is there; the others need places beside it.
  for (const Store& store : gemm.stores) {
    if (gemm.n == 1) gemm.epilogue.accesses[store.access].strides.back() = 1;
  }
  return result;
}

bool lies_along_m(const GemmProblem& problem) {
  const GemmSpec& gemm = *problem.gemm;
  if (gemm.groups && gemm.groups->along == GemmGroups::Along::m) return false;  // groups are of rows
  const int64_t lanes = problem.sum_lanes();
  const bool fits_n = gemm.n >= lanes, fits_m = gemm.m >= lanes;
  if (fits_n != fits_m) return fits_m;
  const size_t rank = gemm.batch.size() + 2;
  int along_m = 0, along_n = 0;
  for (const Store& store : gemm.stores) {
    const Access& access = gemm.epilogue.accesses[store.access];
    along_m += access.strides[rank - 2] == 1;
    along_n += access.strides[rank - 1] == 1;
  }
  return along_m > along_n;
}

bool multiplies_pairs_in_memory(const KernelSpec& spec, const CpuTarget& target) {
  const auto types = bf16_pairs(spec, target);
  return types.ok() && analyse_gemm(spec, target, *types).lies_as_element();
}

namespace {

/// Whether rows of what is stored lie pages apart: their lines share one set of the first-level cache.
bool crowds_output(const GemmProblem& problem) {
  const GemmSpec& gemm = *problem.gemm;
  return std::ranges::any_of(gemm.stores, [&](const Store& store) {
    const Access& access = gemm.epilogue.accesses[store.access];
    const auto element_bytes = static_cast<int64_t>(size_of(problem.spec->buffers[access.buffer].dtype));
    return access.strides[gemm.batch.size()] * element_bytes % k_page_bytes == 0;
  });
}

struct RowsToExchange {
  int64_t least, most;
};

/// Of how many rows the exchanged form is better where columns are contiguous along k, as weights are: each element of B is read
/// once, where it lies. For fewer rows sums along k are faster, for more packing is repaid; later where k is long, since the
/// vectors of an exchanged C are scattered. Tiles of registers want rows of weights for any few rows, pairs of bf16 for rows
/// that fill three quarters of their vectors.
RowsToExchange rows_to_exchange(const GemmProblem& problem) {
  const int64_t lanes = problem.sum_lanes(), m = problem.gemm->m, k = problem.gemm->k;
  if (problem.types.steps_at_once > 1) return {0, 4 * lanes};
  const bool is_element = problem.k_group() == 1, is_pair = problem.types.step == GemmStep::bf16_pair;
  const bool is_filled = 4 * m >= 3 * round_up(m, lanes);
  RowsToExchange rows{(is_element ? 2 : is_pair && is_filled ? 1 : 3) * lanes, 4 * lanes};
  if (is_element && k >= k_steps_to_repay_scattering * m) rows.most = 8 * lanes;
  if (crowds_output(problem)) rows.most = std::min(rows.most, std::max(2 * lanes, k / k_steps_to_repay_crowding));
  return rows;
}

}  // namespace

bool prefers_exchange(const GemmProblem& problem) {
  const GemmSpec& gemm = *problem.gemm;
  const bool streams_b =
      problem.b.plain != nullptr && problem.b.k_stride == 1 && !problem.converts(problem.b) && !problem.types.offsets_a;
  const RowsToExchange rows = rows_to_exchange(problem);
  if (streams_b && gemm.n > gemm.m && gemm.m >= rows.least && gemm.m <= rows.most) return true;
  return lies_along_m(problem);
}

}  // namespace kiln::cpu
