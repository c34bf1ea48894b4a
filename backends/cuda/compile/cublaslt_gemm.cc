#include "backends/cuda/compile/cublaslt_gemm.h"

#include <algorithm>

#include "backends/cuda/compile/epilogue_form.h"
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

/// The result's matrix, and which of m and n its rows and columns are along.
struct ProductResult {
  MatrixRecord matrix;
  GemmDim rows, columns;
  bool is_across = false;  // rows are along n
};

std::optional<ProductResult> result_of(const KernelSpec& spec, const Store& store, const GemmDim& m, const GemmDim& n) {
  const Access& access = std::get<GemmSpec>(spec.kernel).epilogue.accesses[store.access];
  auto matrix = operand_of(spec, access, n, m);
  if (!matrix) return std::nullopt;
  const bool is_across = !matrix->is_transposed;
  matrix->is_transposed = false;
  return ProductResult{*matrix, is_across ? n : m, is_across ? m : n, is_across};
}

/// What follows the product of a record whose matrices are known.
class Epilogue {
 public:
  Epilogue(const KernelSpec& spec, const Store& store, const ProductResult& result)
      : m_spec(spec), m_gemm(std::get<GemmSpec>(spec.kernel)), m_store(store), m_result(result) {}

  bool read(ProductRecord& record) const {
    const auto functions = EpilogueFunctions::of(m_gemm, m_result.matrix.dtype);
    const auto form = functions ? functions->form_of(m_store.value) : std::nullopt;
    // The GELU of what is not narrower than its sums is too rough.
    const bool is_narrow = m_result.matrix.dtype != accumulator_of(m_gemm.dtype);
    if (!form || (form->kind != Kind::sum && !is_narrow)) return false;
    record.factor = form->factor;
    if (form->kind == Kind::gelu_gradient) {
      record.activation = ProductRecord::Activation::gelu_gradient;
      return m_gemm.stores.size() == 1 && read_input(record, functions->loads().front());
    }
    if (form->kind == Kind::gelu) record.activation = ProductRecord::Activation::gelu;
    for (size_t i = 0; i < form->factors.size(); ++i) {
      if (!read_term(record, functions->loads()[i], form->factors[i])) return false;
    }
    return std::ranges::all_of(m_gemm.stores, [&](const Store& store) {
      return &store == &m_store || read_kept_input(record, *functions, store, *form);
    });
  }

 private:
  using Kind = EpilogueForm::Kind;

  /// An element for each row, or one for each of the result's.
  bool read_term(ProductRecord& record, const Access& access, double factor) const {
    if (m_spec.buffers[access.buffer].dtype != m_result.matrix.dtype) return false;
    const int64_t batch_stride = flat_batch_stride(access, m_gemm.batch);
    const bool is_along = m_result.rows.extent == 1 || access.strides[m_result.rows.number] == 1;
    const bool is_of_all = m_result.columns.extent == 1 || access.strides[m_result.columns.number] == 0;
    if (record.biases.empty() && factor == 1 && is_along && is_of_all && batch_stride >= 0) {
      record.biases = {{.buffer = access.buffer,
                        .offset_bytes = static_cast<uint64_t>(access.offset) * size_of(m_result.matrix.dtype),
                        .batch_stride = batch_stride}};
      return true;
    }
    const auto matrix = columns_along(m_spec, access, m_result.rows, m_result.columns);
    if (!matrix || !record.addends.empty()) return false;
    record.addends = {{*matrix, factor}};
    return true;
  }

  /// GELU's input is stored beside its value.
  bool read_kept_input(ProductRecord& record, const EpilogueFunctions& functions, const Store& store,
                       const EpilogueForm& of_value) const {
    if (of_value.kind != Kind::gelu) return false;
    const EpilogueForm sum{Kind::sum, of_value.factor, of_value.factors};
    return functions.form_of(store.value) == sum && read_input(record, m_gemm.epilogue.accesses[store.access]);
  }

  bool read_input(ProductRecord& record, const Access& access) const {
    const auto matrix = columns_along(m_spec, access, m_result.rows, m_result.columns);
    if (!matrix || !record.gelu_inputs.empty() || !is_gelu_input(*matrix, m_result.matrix)) return false;
    record.gelu_inputs = {*matrix};
    return true;
  }

  const KernelSpec& m_spec;
  const GemmSpec& m_gemm;
  const Store& m_store;
  const ProductResult& m_result;
};

/// The library reads while it writes; in place only what it adds to the product.
bool has_hazard(const ProductRecord& record) {
  std::vector<uint32_t> read = {record.left.buffer, record.right.buffer}, written = {record.result.buffer};
  for (const ProductRecord::Bias& bias : record.biases) read.push_back(bias.buffer);
  for (const ProductRecord::Addend& addend : record.addends) {
    if (addend.matrix != record.result) read.push_back(addend.matrix.buffer);
  }
  const bool is_gradient = record.activation == ProductRecord::Activation::gelu_gradient;
  for (const MatrixRecord& input : record.gelu_inputs) (is_gradient ? read : written).push_back(input.buffer);
  const bool is_written_twice = written.size() == 2 && written[0] == written[1];
  return is_written_twice || std::ranges::find_first_of(read, written) != read.end();
}

/// The product whose result the store is, or what is made of it there.
std::optional<ProductRecord> product_to(const KernelSpec& spec, const Store& store) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  const Access *a = plain_load(gemm.a, gemm.a_value), *b = plain_load(gemm.b, gemm.b_value);
  const size_t rank = gemm.batch.size();
  const auto result = result_of(spec, store, {rank, gemm.m}, {rank + 1, gemm.n});
  if (a == nullptr || b == nullptr || !result) return std::nullopt;
  // Of a: (batch…, m, k), of b: (batch…, k, n).
  const auto of_a = result->is_across ? operand_of(spec, *a, {rank + 1, gemm.k}, {rank, gemm.m})
                                      : operand_of(spec, *a, {rank, gemm.m}, {rank + 1, gemm.k});
  const auto of_b = result->is_across ? operand_of(spec, *b, {rank + 1, gemm.n}, {rank, gemm.k})
                                      : operand_of(spec, *b, {rank, gemm.k}, {rank + 1, gemm.n});
  if (!of_a || !of_b || of_a->dtype != gemm.dtype || of_b->dtype != gemm.dtype) return std::nullopt;
  ProductRecord record{.workspace_bytes = k_workspace_bytes,
                       .batches = static_cast<uint32_t>(product(gemm.batch)),
                       .left = result->is_across ? *of_b : *of_a,
                       .right = result->is_across ? *of_a : *of_b,
                       .result = result->matrix};
  const DType stored = record.result.dtype;
  if (stored != gemm.dtype && (stored != DType::f32 || !is_half(gemm.dtype))) return std::nullopt;
  if (!Epilogue(spec, store, *result).read(record) || has_hazard(record)) return std::nullopt;
  return record;
}

const Cublaslt* cublaslt_here() {
  const Expected<Cublaslt>& cublaslt = Cublaslt::of_process();
  return cublaslt.ok() ? &*cublaslt : nullptr;
}

}  // namespace

std::optional<ProductRecord> cublaslt_product_of(const KernelSpec& spec) {
  const auto* gemm = std::get_if<GemmSpec>(&spec.kernel);
  if (gemm == nullptr || gemm->k == 0 || gemm->groups || !gemm->a_pieces.empty() || !gemm->b_pieces.empty())
    return std::nullopt;
  const auto is_added = [](const Store& store) { return store.mode != StoreMode::assign; };
  if (gemm->stores.size() > 2 || std::ranges::any_of(gemm->stores, is_added) || product(gemm->batch) > INT32_MAX)
    return std::nullopt;
  for (const Store& store : gemm->stores) {
    if (auto record = product_to(spec, store)) return record;
  }
  return std::nullopt;
}

const Cublaslt* cublaslt_for(const KernelSpec& spec) { return cublaslt_product_of(spec) ? cublaslt_here() : nullptr; }

std::vector<Schedule> cublaslt_schedules() { return schedules_of_choices<CublasltChoice>(k_most_algorithms); }

Expected<ProductRecord> cublaslt_product(const KernelSpec& spec, const CublasltChoice& choice) {
  auto record = cublaslt_product_of(spec);
  const Cublaslt* cublaslt = record ? cublaslt_here() : nullptr;
  if (cublaslt == nullptr)
    return error(StatusCode::failed_precondition, "cublaslt: not here, or not for such a product");
  record->version = cublaslt->version();
  record->place = choice.place;
  return *record;
}

}  // namespace kiln::cuda
