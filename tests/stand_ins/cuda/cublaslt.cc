// libcublasLt.so.13 whose products are loops on the host, put on the emulated driver's streams. It proposes two algorithms: one
// sums along k, the other sums both halves of it apart, in the workspace. As the real one does, it makes descriptors without a
// device; stricter, it refuses what a real one may get away with: matrices that lie outside of the device's memory, addresses
// that the preference did not promise, descriptors that do not fit each other.
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/stand_ins/cuda/cublaslt_product.h"
#include "tests/stand_ins/cuda/driver_beside.h"

#define KILN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace kiln::cuda_emulator;

// cublasStatus_t.
enum Result : int { k_success = 0, k_not_initialised = 1, k_invalid_value = 7, k_not_supported = 15 };

constexpr uint64_t k_numerics = 0x080201;  // FMA, sums of f32, operands of f32; of f64 instead:
constexpr uint64_t k_wide_numerics = 0x100401;

struct Preference {
  uint64_t workspace_bytes = 0, numerics = ~uint64_t{0};
  uint32_t reductions = 7, alignments[4] = {256, 256, 256, 256};
};

struct Algorithm {
  uint64_t parts, is_wide, alignments[4], workspace_bytes, aux_alignment;
};
static_assert(sizeof(Algorithm) == 64);

struct Proposal {
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

template <typename T>
int set(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return k_invalid_value;
  std::memcpy(static_cast<void*>(&to), value, sizeof to);
  return k_success;
}

/// The largest power of two that divides the address; 0 for none.
uint64_t lowest_bit(const void* address) {
  const auto bits = reinterpret_cast<uint64_t>(address);
  return bits & (~bits + 1);
}

/// Whether all matrices are in the device's memory, and what is written overlaps nothing else, but for what is added in place.
bool has_memory(const Product& product) {
  const Operation& operation = product.operation;
  const Layout bias{.type = operation.bias_type,
                    .rows = product.d.rows,
                    .columns = 1,
                    .batch_stride = operation.bias_batch_stride,
                    .batches = product.d.batches};
  const Layout parts{.type = 0, .rows = 4, .columns = 1};
  const Layout aux = layout_of_aux(operation, product.d);
  struct Place {
    const Layout& layout;
    const void* address;
    bool is_used, is_written;
  };
  const bool is_in_place = product.addend == product.result;
  const std::array places = {Place{product.a, product.left, true, false},
                             Place{product.b, product.right, true, false},
                             Place{product.c, product.addend, product.addend_factor != 0 && !is_in_place, false},
                             Place{product.d, product.result, true, true},
                             Place{bias, operation.bias, operation.has_bias(), false},
                             Place{aux, operation.aux, operation.has_aux(), !operation.has_gelu_gradient()},
                             Place{parts, product.workspace, product.parts > 1, true}};
  const auto begin = [](const Place& place) { return reinterpret_cast<uintptr_t>(place.address); };
  const auto overlaps = [&](const Place& x, const Place& y) {
    return begin(x) < begin(y) + bytes_of(y.layout) && begin(y) < begin(x) + bytes_of(x.layout);
  };
  for (const Place& place : places) {
    if (!place.is_used) continue;
    if (!is_in_memory(place.address, bytes_of(place.layout))) return false;
    for (const Place& other : places) {
      if (&other != &place && other.is_used && place.is_written && overlaps(place, other)) return false;
    }
  }
  return true;
}

}  // namespace

/// How many products were put on streams, for tests that ask whether the library was used at all.
KILN_EXPORT std::atomic<uint64_t> stand_in_products;  // NOLINT(readability-identifier-naming)
std::atomic<uint64_t> stand_in_products = 0;

namespace {

void run_product(void* pointer) {
  const std::unique_ptr<Product> product(static_cast<Product*>(pointer));
  product->run();
}

template <typename T>
int make(void** object, T value) {
  *object = new T(std::move(value));
  return k_success;
}
template <typename T>
int end(void* object) {
  delete static_cast<T*>(object);
  return k_success;
}
template <typename T>
T& as(void* object) {
  return *static_cast<T*>(object);
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the vendor's names

KILN_EXPORT size_t cublasLtGetVersion() { return 130000; }
KILN_EXPORT const char* cublasLtGetStatusName(int status) {
  return status == k_not_supported     ? "CUBLAS_STATUS_NOT_SUPPORTED"
         : status == k_not_initialised ? "CUBLAS_STATUS_NOT_INITIALIZED"
                                       : "CUBLAS_STATUS_INVALID_VALUE";
}
KILN_EXPORT int cublasLtCreate(void** handle) { return has_context() ? make(handle, char{}) : k_not_initialised; }
KILN_EXPORT int cublasLtDestroy(void* handle) { return has_context() ? end<char>(handle) : k_not_initialised; }

KILN_EXPORT int cublasLtMatmulDescCreate(void** operation, int compute, int scale) {
  return make(operation, Operation{.compute = compute, .scale = scale});
}
KILN_EXPORT int cublasLtMatmulDescDestroy(void* operation) { return end<Operation>(operation); }
KILN_EXPORT int cublasLtMatmulDescSetAttribute(void* object, int attribute, const void* value, size_t bytes) {
  auto& operation = as<Operation>(object);
  switch (attribute) {
    case 3:
    case 4:
      return set(operation.transposes[attribute - 3], value, bytes);
    case 7:
      return set(operation.epilogue, value, bytes);
    case 8:
      return set(operation.bias, value, bytes);
    case 10:
      return set(operation.bias_batch_stride, value, bytes);
    case 11:
      return set(operation.aux, value, bytes);
    case 12:
      return set(operation.aux_column_stride, value, bytes);
    case 13:
      return set(operation.aux_batch_stride, value, bytes);
    case 26:
      return set(operation.bias_type, value, bytes);
    default:
      return k_invalid_value;
  }
}

KILN_EXPORT int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns,
                                           int64_t column_stride) {
  return make(layout, Layout{.type = type, .rows = rows, .columns = columns, .column_stride = column_stride});
}
KILN_EXPORT int cublasLtMatrixLayoutDestroy(void* layout) { return end<Layout>(layout); }
KILN_EXPORT int cublasLtMatrixLayoutSetAttribute(void* object, int attribute, const void* value, size_t bytes) {
  auto& layout = as<Layout>(object);
  if (attribute == 5) return set(layout.batches, value, bytes);
  return attribute == 6 ? set(layout.batch_stride, value, bytes) : k_invalid_value;
}

KILN_EXPORT int cublasLtMatmulPreferenceCreate(void** preference) { return make(preference, Preference{}); }
KILN_EXPORT int cublasLtMatmulPreferenceDestroy(void* preference) { return end<Preference>(preference); }
KILN_EXPORT int cublasLtMatmulPreferenceSetAttribute(void* object, int attribute, const void* value, size_t bytes) {
  auto& preference = as<Preference>(object);
  switch (attribute) {
    case 1:
      return set(preference.workspace_bytes, value, bytes);
    case 3:
      return set(preference.reductions, value, bytes);
    case 5:
    case 6:
    case 7:
    case 8:
      return set(preference.alignments[attribute - 5], value, bytes);
    case 12:
      return set(preference.numerics, value, bytes);
    default:
      return k_invalid_value;
  }
}

KILN_EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void* b, void* c, void* d, void* wanted,
                                               int most, Proposal* proposals, int* count) {
  const auto& preference = as<Preference>(wanted);
  // What is not supported may be passed over; what nobody may ask for is to be seen.
  if (!fits(as<Operation>(operation), as<Layout>(a), as<Layout>(b), as<Layout>(c), as<Layout>(d)))
    return k_invalid_value;
  const bool is_wide = as<Operation>(operation).compute == 70;
  const uint64_t aux_alignment = lowest_bit(as<Operation>(operation).aux);
  *count = 0;
  for (const uint64_t parts : {1, 2}) {
    const uint64_t workspace_bytes = parts == 1 ? 0 : 16;
    const bool is_allowed = parts == 1 || (preference.reductions & 2) != 0;
    if (!is_allowed || workspace_bytes > preference.workspace_bytes || *count == most) continue;
    Proposal& proposal = proposals[(*count)++] = {};
    proposal.algorithm = {
        .parts = parts, .is_wide = is_wide, .workspace_bytes = workspace_bytes, .aux_alignment = aux_alignment};
    for (size_t i = 0; i < 4; ++i) proposal.algorithm.alignments[i] = preference.alignments[i];
    proposal.workspace_bytes = workspace_bytes;
  }
  return *count == 0 ? k_not_supported : k_success;
}
KILN_EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value,
                                                     size_t bytes, size_t*) {
  const uint32_t reduction = algorithm->parts == 1 ? 0 : 2;
  if (attribute != 3 || bytes != sizeof reduction) return k_invalid_value;
  std::memcpy(value, &reduction, bytes);
  return k_success;
}
KILN_EXPORT int cublasLtMatmulAlgoCapGetAttribute(const Algorithm* algorithm, int attribute, void* value, size_t bytes,
                                                  size_t*) {
  const uint64_t numerics = algorithm->is_wide != 0 ? k_wide_numerics : k_numerics;
  if (attribute != 15 || bytes != sizeof numerics) return k_invalid_value;
  std::memcpy(value, &numerics, bytes);
  return k_success;
}

KILN_EXPORT int cublasLtMatmul(void*, void* operation, const void* alpha, const void* a, void* a_layout, const void* b,
                               void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                               const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
  const bool is_wide = as<Operation>(operation).compute == 70;
  const auto scalar = [&](const void* value) {
    return is_wide ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
  };
  const Product product{as<Operation>(operation),
                        as<Layout>(a_layout),
                        as<Layout>(b_layout),
                        as<Layout>(c_layout),
                        as<Layout>(d_layout),
                        a,
                        b,
                        c,
                        d,
                        workspace,
                        scalar(alpha),
                        scalar(beta),
                        algorithm->parts};
  const std::array<const void*, 4> addresses = {a, b, c, d};
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (reinterpret_cast<uintptr_t>(addresses[i]) % algorithm->alignments[i] != 0) return k_not_supported;
  }
  if (product.operation.has_aux() && lowest_bit(product.operation.aux) < algorithm->aux_alignment)
    return k_not_supported;
  if (!has_context() || (c == d && c_layout != d_layout)) return k_invalid_value;
  if (!fits(product.operation, product.a, product.b, product.c, product.d)) return k_invalid_value;
  if (!has_memory(product) || workspace_bytes < algorithm->workspace_bytes) return k_invalid_value;
  ++stand_in_products;
  return put_on_stream(stream, run_product, new Product(product), k_not_initialised);
}

// NOLINTEND(readability-identifier-naming)
