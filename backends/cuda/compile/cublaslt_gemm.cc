#include "backends/cuda/compile/cublaslt_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backends/cuda/compile/gemm_problem.h"
#include "backends/cuda/cublaslt/product.h"
#include "frontend/kernel/affine.h"

namespace kiln::cuda {
namespace {

constexpr uint32_t k_most_algorithms = 4;
// As much as its documentation recommends on Hopper ("cublasSetWorkspace").
constexpr uint64_t k_workspace_bytes = uint64_t{32} << 20;

struct GemmDim {
  size_t number = 0;  // of the access's strides
  int64_t extent = 1;
};

bool is_plain(const ScalarNode& node) { return node.op == ScalarOp::load && node.operands[0] == k_no_expr; }

/// Whether columns along `near` lie one after another along `far`, without overlap.
bool lies_along(const Access& access, const GemmDim& near, const GemmDim& far) {
  const bool is_adjacent = near.extent == 1 || access.strides[near.number] == 1;
  return is_adjacent && (far.extent == 1 || access.strides[far.number] >= near.extent);
}

/// A matrix in memory whose columns are along `near`; nothing where they are not.
std::optional<MatrixRecord> columns_along(const KernelSpec& spec, const Access& access, const GemmDim& near,
                                          const GemmDim& far) {
  const DType dtype = spec.buffers[access.buffer].dtype;
  const int64_t batch_stride = flat_batch_stride(access, std::get<GemmSpec>(spec.kernel).batch);
  const int64_t column_stride = far.extent == 1 ? near.extent : access.strides[far.number];
  if (!access.indirect.empty() || batch_stride < 0 || column_stride > INT32_MAX || cublaslt_type(dtype) < 0)
    return std::nullopt;
  if (!lies_along(access, near, far)) return std::nullopt;
  return MatrixRecord{.buffer = access.buffer,
                      .dtype = dtype,
                      .offset_bytes = static_cast<uint64_t>(access.offset) * size_of(dtype),
                      .rows = static_cast<uint64_t>(near.extent),
                      .columns = static_cast<uint64_t>(far.extent),
                      .column_stride = column_stride,
                      .batch_stride = batch_stride};
}

/// An operand as the matrix whose rows are along `rows`: as it lies, or the transpose of what lies there. Where both are true,
/// the one with the longer columns.
std::optional<MatrixRecord> operand_of(const KernelSpec& spec, const Access& access, const GemmDim& rows,
                                       const GemmDim& columns) {
  const auto in_place = columns_along(spec, access, rows, columns);
  auto turned = columns_along(spec, access, columns, rows);
  if (turned) turned->is_transposed = true;
  if (!in_place || !turned) return in_place ? in_place : turned;
  return rows.extent >= columns.extent ? in_place : turned;
}

/// The one load that an operand is.
const Access* access_of(const Body& body, ExprId value) {
  return is_plain(body.exprs[value]) ? &body.accesses[body.exprs[value].slot] : nullptr;
}

/// What follows a product, read from its end.
class Epilogue {
 public:
  explicit Epilogue(const KernelSpec& spec)
      : m_spec(spec), m_gemm(std::get<GemmSpec>(spec.kernel)), m_body(m_gemm.epilogue) {}

  /// Fills in what follows the record's product. `rows`, `columns`: the result's.
  bool read(ProductRecord& record, const GemmDim& rows, const GemmDim& columns) const {
    const bool is_narrow = record.result.dtype != accumulator_of(m_gemm.dtype);
    ExprId value = m_gemm.stores.front().value;
    if (is_narrow) {
      if (m_body.exprs[value].op != ScalarOp::cast) return false;
      value = m_body.exprs[value].operands[0];
    }
    if (const auto inside = gelu_of(value); inside && is_narrow) {
      record.activation = ProductRecord::Activation::gelu;
      value = *inside;
    }
    if (m_body.exprs[value].op == ScalarOp::add) {
      const auto& terms = m_body.exprs[value].operands;
      const size_t bias = is_accumulator(terms[0]) ? 1 : 0;
      if (!read_bias(record, terms[bias], rows, columns)) return false;
      value = terms[1 - bias];
    }
    return is_accumulator(value);
  }

 private:
  bool is_accumulator(ExprId id) const { return m_body.exprs[id].op == ScalarOp::accumulator; }

  /// An element for each row, of the result's dtype.
  bool read_bias(ProductRecord& record, ExprId id, const GemmDim& rows, const GemmDim& columns) const {
    const bool is_cast = m_body.exprs[id].op == ScalarOp::cast;
    const ScalarNode& load = m_body.exprs[is_cast ? m_body.exprs[id].operands[0] : id];
    if (!is_plain(load)) return false;
    const Access& access = m_body.accesses[load.slot];
    const int64_t batch_stride = flat_batch_stride(access, m_gemm.batch);
    const bool is_along = rows.extent == 1 || access.strides[rows.number] == 1;
    const bool is_of_all = columns.extent == 1 || access.strides[columns.number] == 0;
    if (!access.indirect.empty() || !is_along || !is_of_all || batch_stride < 0) return false;
    if (m_spec.buffers[access.buffer].dtype != record.result.dtype) return false;
    record.biases = {{.buffer = access.buffer,
                      .offset_bytes = static_cast<uint64_t>(access.offset) * size_of(record.result.dtype),
                      .batch_stride = batch_stride}};
    return true;
  }

  /// A product of a number and expressions, which are ascending.
  struct Factors {
    double number = 1;
    std::vector<ExprId> others;
  };
  Factors factors_of(ExprId id) const {
    Factors result;
    std::vector<ExprId> left = {id};
    while (!left.empty()) {
      const ExprId each = left.back();
      left.pop_back();
      const ScalarNode& node = m_body.exprs[each];
      if (node.op == ScalarOp::mul && result.others.size() + left.size() < k_most_factors) {
        left.insert(left.end(), {node.operands[0], node.operands[1]});
      } else if (node.op == ScalarOp::constant) {
        result.number *= node.immediate;
      } else {
        result.others.push_back(each);
      }
    }
    std::ranges::sort(result.others);
    return result;
  }
  static bool is_number(double got, double wanted) { return std::fabs(got - wanted) <= 1e-6 * wanted; }

  /// The two terms of a sum, the one that `is_first` says first.
  template <typename Is>
  std::optional<std::pair<ExprId, ExprId>> sum_of(ExprId id, Is is_first) const {
    const ScalarNode& node = m_body.exprs[id];
    if (node.op != ScalarOp::add) return std::nullopt;
    if (is_first(node.operands[0])) return std::pair(node.operands[0], node.operands[1]);
    if (is_first(node.operands[1])) return std::pair(node.operands[1], node.operands[0]);
    return std::nullopt;
  }

  /// x of x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 x³))).
  std::optional<ExprId> gelu_of(ExprId id) const {
    const Factors outer = factors_of(id);
    if (outer.others.size() != 2 || !is_number(outer.number, 0.5)) return std::nullopt;
    for (const size_t x_place : {0, 1}) {
      const ExprId x = outer.others[x_place];
      if (is_gate(outer.others[1 - x_place], x)) return x;
    }
    return std::nullopt;
  }
  bool is_gate(ExprId id, ExprId x) const {
    const auto sum = sum_of(id, [&](ExprId term) { return m_body.exprs[term].op == ScalarOp::tanh; });
    if (!sum) return false;
    const ScalarNode& one = m_body.exprs[sum->second];
    if (one.op != ScalarOp::constant || one.immediate != 1) return false;
    const Factors inner = factors_of(m_body.exprs[sum->first].operands[0]);
    if (inner.others.size() != 1 || !is_number(inner.number, 0.7978845608028654)) return false;
    const auto cubic = sum_of(inner.others.front(), [&](ExprId term) { return term == x; });
    if (!cubic) return false;
    const Factors cube = factors_of(cubic->second);
    return is_number(cube.number, 0.044715) && cube.others == std::vector<ExprId>(3, x);
  }

  static constexpr size_t k_most_factors = 8;

  const KernelSpec& m_spec;
  const GemmSpec& m_gemm;
  const Body& m_body;
};

/// The result's matrix, and which of m and n its rows and columns are along.
struct ProductResult {
  MatrixRecord matrix;
  GemmDim rows, columns;
  bool is_across = false;  // rows are along n
};

std::optional<ProductResult> result_of(const KernelSpec& spec, const GemmDim& m, const GemmDim& n) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  const Access& access = gemm.epilogue.accesses[gemm.stores.front().access];
  auto matrix = operand_of(spec, access, n, m);
  if (!matrix) return std::nullopt;
  const bool is_across = !matrix->is_transposed;
  matrix->is_transposed = false;
  return ProductResult{*matrix, is_across ? n : m, is_across ? m : n, is_across};
}

}  // namespace

std::optional<ProductRecord> cublaslt_product_of(const KernelSpec& spec) {
  const auto* gemm = std::get_if<GemmSpec>(&spec.kernel);
  if (gemm == nullptr || gemm->k == 0 || gemm->groups || !gemm->a_pieces.empty() || !gemm->b_pieces.empty())
    return std::nullopt;
  if (gemm->stores.size() != 1 || gemm->stores.front().mode != StoreMode::assign) return std::nullopt;
  const Access *a = access_of(gemm->a, gemm->a_value), *b = access_of(gemm->b, gemm->b_value);
  const size_t rank = gemm->batch.size();
  const int64_t batches = product(gemm->batch);
  const GemmDim m{rank, gemm->m}, n{rank + 1, gemm->n};
  const auto result = result_of(spec, m, n);
  if (a == nullptr || b == nullptr || !result || batches > INT32_MAX) return std::nullopt;
  // Of a: (batch…, m, k), of b: (batch…, k, n).
  const auto of_a = result->is_across ? operand_of(spec, *a, {rank + 1, gemm->k}, {rank, gemm->m})
                                      : operand_of(spec, *a, {rank, gemm->m}, {rank + 1, gemm->k});
  const auto of_b = result->is_across ? operand_of(spec, *b, {rank + 1, gemm->n}, {rank, gemm->k})
                                      : operand_of(spec, *b, {rank, gemm->k}, {rank + 1, gemm->n});
  if (!of_a || !of_b || of_a->dtype != gemm->dtype || of_b->dtype != gemm->dtype) return std::nullopt;
  ProductRecord record{.workspace_bytes = k_workspace_bytes,
                       .batches = static_cast<uint32_t>(batches),
                       .left = result->is_across ? *of_b : *of_a,
                       .right = result->is_across ? *of_a : *of_b,
                       .result = result->matrix};
  const DType stored = record.result.dtype;
  if (stored != gemm->dtype && (stored != DType::f32 || !is_half(gemm->dtype))) return std::nullopt;
  if (!Epilogue(spec).read(record, result->rows, result->columns)) return std::nullopt;
  // The library reads operands while it writes results.
  std::vector<uint32_t> read = {a->buffer, b->buffer};
  for (const ProductRecord::Bias& bias : record.biases) read.push_back(bias.buffer);
  return std::ranges::find(read, record.result.buffer) == read.end() ? std::optional(record) : std::nullopt;
}

const Cublaslt* cublaslt_for(const KernelSpec& spec) {
  if (!cublaslt_product_of(spec)) return nullptr;
  const Expected<Cublaslt>& cublaslt = Cublaslt::of_process();
  return cublaslt.ok() ? &*cublaslt : nullptr;
}

std::vector<Schedule> cublaslt_schedules() { return schedules_of_choices<CublasltChoice>(k_most_algorithms); }

Expected<ProductRecord> cublaslt_product(const KernelSpec& spec, const CublasltChoice& choice) {
  const Cublaslt* cublaslt = cublaslt_for(spec);
  auto record = cublaslt_product_of(spec);
  if (cublaslt == nullptr || !record)
    return error(StatusCode::failed_precondition, "cublaslt: not here, or not for such a product");
  record->version = cublaslt->version();
  record->place = choice.place;
  return *record;
}

}  // namespace kiln::cuda
