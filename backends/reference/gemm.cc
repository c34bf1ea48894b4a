#include "backends/reference/body_runner.h"
#include "backends/reference/kernels.h"

namespace kiln {
namespace {

/// An operand's expression over its whole (batch…, rows, columns), evaluated once, so that a heavy prologue
/// costs m * k and not m * n * k evaluations.
struct OperandValues {
  std::vector<Number> values;
  bool index_out_of_range = false;
};

OperandValues evaluate_operand(const KernelSpec& spec, const Body& body, ExprId value,
                               const std::vector<int64_t>& extents, std::span<void* const> buffers) {
  OperandValues result;
  for (const int64_t extent : extents) {
    if (extent == 0) return result;
  }
  BodyRunner runner(spec, body, buffers);
  const std::vector<ExprId> order = runner.order_for(std::span(&value, 1));
  std::vector<int64_t> point(extents.size(), 0);
  do {
    runner.evaluate(order, point);
    result.values.push_back(runner.value(value));
  } while (next_point(point, extents));
  result.index_out_of_range = runner.index_out_of_range();
  return result;
}

/// Of each row, or of each element along k, which matrix of the batch it belongs to; none: as many as there are.
std::vector<int64_t> matrices_of(const KernelSpec& spec, const GemmSpec& gemm, std::span<void* const> buffers) {
  const Access& ends = gemm.groups->ends;
  std::vector<int64_t> matrices;
  for (int64_t i = 0; i < (gemm.groups->along == GemmGroups::Along::m ? gemm.m : gemm.k); ++i) {
    int64_t matrix = 0;
    const auto end = [&] {
      return load_number(spec.buffers[ends.buffer].dtype, buffers[ends.buffer],
                         plain_address(ends, std::span(&matrix, 1)))
          .integer;
    };
    while (matrix < gemm.batch.front() && end() <= i) ++matrix;
    matrices.push_back(matrix);
  }
  return matrices;
}

}  // namespace

bool run_kernel(const KernelSpec& spec, const GemmSpec& gemm, std::span<void* const> buffers) {
  std::vector<int64_t> extents = gemm.batch;
  extents.insert(extents.end(), {gemm.m, gemm.n});
  const OperandValues a = evaluate_operand(spec, gemm.a, gemm.a_value, a_extents(gemm), buffers);
  const OperandValues b = evaluate_operand(spec, gemm.b, gemm.b_value, b_extents(gemm), buffers);

  BodyRunner epilogue(spec, gemm.epilogue, buffers);
  std::vector<ExprId> roots;
  for (const Store& store : gemm.stores) {
    roots.push_back(store.value);
    for (const IndirectTerm& term : gemm.epilogue.accesses[store.access].indirect) roots.push_back(term.index);
  }
  const std::vector<ExprId> order = epilogue.order_for(roots);

  const std::vector<int64_t> matrices = gemm.groups ? matrices_of(spec, gemm, buffers) : std::vector<int64_t>();
  const bool are_rows_grouped = gemm.groups && gemm.groups->along == GemmGroups::Along::m;
  const auto is_summed = [&](int64_t matrix, int64_t m, int64_t k) {
    return !gemm.groups || matrices[static_cast<size_t>(are_rows_grouped ? m : k)] == matrix;
  };
  // Rows of no matrix are stored with the first one.
  const auto is_stored = [&](int64_t matrix, int64_t m) {
    if (!are_rows_grouped) return true;
    const int64_t own = matrices[static_cast<size_t>(m)];
    return own == matrix || (own == gemm.batch.front() && matrix == 0);
  };
  std::vector<int64_t> point(extents.size(), 0);
  int64_t row = 0;  // batch * m, flattened
  do {
    const int64_t n = point.back(), matrix = row / gemm.m, m = row % gemm.m;
    if (n + 1 == gemm.n) ++row;
    if (!is_stored(matrix, m)) continue;
    Number total;
    for (int64_t k = 0; k < gemm.k; ++k) {
      if (!is_summed(matrix, m, k)) continue;
      const Number x = a.values[static_cast<size_t>((matrix * gemm.m + m) * gemm.k + k)];
      const Number y = b.values[static_cast<size_t>((matrix * gemm.k + k) * gemm.n + n)];
      total.real += x.real * y.real;
      total.integer = static_cast<int64_t>(static_cast<uint64_t>(total.integer) +
                                           static_cast<uint64_t>(x.integer) * static_cast<uint64_t>(y.integer));
    }
    epilogue.set_accumulator(total);
    epilogue.evaluate(order, point);
    for (const Store& store : gemm.stores) epilogue.store(store, point);
  } while (next_point(point, extents));
  return !a.index_out_of_range && !b.index_out_of_range && !epilogue.index_out_of_range();
}

}  // namespace kiln
