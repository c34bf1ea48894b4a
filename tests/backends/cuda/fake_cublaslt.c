// A cuBLASLt that records what it is told and multiplies nothing. It proposes four algorithms, 11 to 14, and tells lies about
// one of them, as fake_lie says: 12 then sums in halves, reduces what is rounded, takes more workspace than there is, or is none.
// FAKE_LACKS has no cublasLtMatmul.
#include <stdlib.h>
#include <string.h>

#include "tests/backends/cuda/fake_product_launch.h"

#define EXPORT __attribute__((visibility("default")))

enum { k_invalid_value = 7, k_not_supported = 15, k_sums_f16 = 0x01 << 8, k_sums_f32 = 0x02 << 8 };

struct Operation {
  int compute_type, scale_type;
  int32_t transposes[2], bias_type;
  uint32_t epilogue;
  int64_t bias_batch_stride, aux_column_stride, aux_batch_stride;
  const void *bias, *aux;
};

struct Proposal {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

EXPORT struct FakeProductLaunch fake_product_launch;
EXPORT struct FakeQuestion fake_question;
EXPORT int fake_handles, fake_objects;
enum Lie { k_honest, k_sums_in_halves, k_reduces_rounded, k_takes_more, k_is_none };
EXPORT int fake_lie;

static void* made(size_t bytes) {
  ++fake_objects;
  return calloc(1, bytes);
}
static int ended(void* object) {
  --fake_objects;
  free(object);
  return 0;
}
static int set(void* to, size_t to_bytes, const void* value, size_t bytes) {
  if (bytes != to_bytes) return k_invalid_value;
  memcpy(to, value, bytes);
  return 0;
}

EXPORT size_t cublasLtGetVersion(void) { return 130101; }
EXPORT const char* cublasLtGetStatusName(int status) {
  return status == k_not_supported ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS";
}
EXPORT int cublasLtCreate(void** handle) {
  *handle = &fake_handles;
  ++fake_handles;
  return 0;
}
EXPORT int cublasLtDestroy(void* handle) {
  (void)handle;
  --fake_handles;
  return 0;
}

EXPORT int cublasLtMatmulDescCreate(void** operation, int compute_type, int scale_type) {
  struct Operation* each = made(sizeof *each);
  each->compute_type = compute_type;
  each->scale_type = scale_type;
  *operation = each;
  return 0;
}
EXPORT int cublasLtMatmulDescDestroy(void* operation) { return ended(operation); }
EXPORT int cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value, size_t bytes) {
  struct Operation* each = operation;
  switch (attribute) {
    case 3:
    case 4:
      return set(&each->transposes[attribute - 3], sizeof(int32_t), value, bytes);
    case 7:
      return set(&each->epilogue, sizeof each->epilogue, value, bytes);
    case 8:
      return set(&each->bias, sizeof each->bias, value, bytes);
    case 10:
      return set(&each->bias_batch_stride, sizeof each->bias_batch_stride, value, bytes);
    case 11:
      return set(&each->aux, sizeof each->aux, value, bytes);
    case 12:
      return set(&each->aux_column_stride, sizeof each->aux_column_stride, value, bytes);
    case 13:
      return set(&each->aux_batch_stride, sizeof each->aux_batch_stride, value, bytes);
    case 26:
      return set(&each->bias_type, sizeof each->bias_type, value, bytes);
    default:
      return k_invalid_value;
  }
}

EXPORT int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t column_stride) {
  struct FakeLayout* each = made(sizeof *each);
  *each = (struct FakeLayout){.type = type, .rows = rows, .columns = columns, .column_stride = column_stride};
  *layout = each;
  return 0;
}
EXPORT int cublasLtMatrixLayoutDestroy(void* layout) { return ended(layout); }
EXPORT int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t bytes) {
  struct FakeLayout* each = layout;
  if (attribute == 5) return set(&each->batches, sizeof each->batches, value, bytes);
  return attribute == 6 ? set(&each->batch_stride, sizeof each->batch_stride, value, bytes) : k_invalid_value;
}

EXPORT int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = made(sizeof(struct FakeQuestion));
  return 0;
}
EXPORT int cublasLtMatmulPreferenceDestroy(void* preference) { return ended(preference); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t bytes) {
  struct FakeQuestion* each = preference;
  switch (attribute) {
    case 1:
      return set(&each->workspace_bytes, sizeof each->workspace_bytes, value, bytes);
    case 3:
      return set(&each->reductions, sizeof each->reductions, value, bytes);
    case 5:
    case 6:
    case 7:
    case 8:
      return set(&each->alignments[attribute - 5], sizeof(uint32_t), value, bytes);
    case 12:
      return set(&each->numerics, sizeof each->numerics, value, bytes);
    default:
      return k_invalid_value;
  }
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void* handle, void* operation, void* a, void* b, void* c, void* d,
                                          void* preference, int most, struct Proposal* proposals, int* count) {
  (void)a, (void)b, (void)c, (void)d;
  if (handle != &fake_handles || most < 4) return k_invalid_value;
  fake_question = *(struct FakeQuestion*)preference;
  fake_question.bias = ((struct Operation*)operation)->bias;
  fake_question.aux = ((struct Operation*)operation)->aux;
  *count = 4;
  for (unsigned i = 0; i < 4; ++i) proposals[i] = (struct Proposal){.algorithm = {11 + i}, .workspace_bytes = 64 * i};
  if (fake_lie == k_takes_more) proposals[1].workspace_bytes = fake_question.workspace_bytes + 1;
  if (fake_lie == k_is_none) proposals[1].state = k_not_supported;
  return 0;
}
EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const uint64_t* algorithm, int attribute, void* value, size_t bytes,
                                                size_t* written) {
  const uint32_t reduction = *algorithm == 12 && fake_lie == k_reduces_rounded ? 4 : 2;
  *written = bytes;
  return attribute == 3 ? set(value, bytes, &reduction, sizeof reduction) : k_invalid_value;
}
EXPORT int cublasLtMatmulAlgoCapGetAttribute(const uint64_t* algorithm, int attribute, void* value, size_t bytes,
                                             size_t* written) {
  const uint64_t numerics = *algorithm == 12 && fake_lie == k_sums_in_halves ? k_sums_f16 : k_sums_f32;
  *written = bytes;
  return attribute == 15 ? set(value, bytes, &numerics, sizeof numerics) : k_invalid_value;
}

#ifndef FAKE_LACKS
static double scalar(int type, const void* value) { return type == 1 ? *(const double*)value : *(const float*)value; }
static struct FakeLayout placed(const void* layout, const void* address) {
  struct FakeLayout each = *(const struct FakeLayout*)layout;
  each.address = address;
  return each;
}
EXPORT int cublasLtMatmul(void* handle, void* operation, const void* alpha, const void* a, void* a_layout,
                          const void* b, void* b_layout, const void* beta, const void* c, void* c_layout, void* d,
                          void* d_layout, const uint64_t* algorithm, void* workspace, size_t workspace_bytes,
                          void* stream) {
  const struct Operation* each = operation;
  if (handle != &fake_handles || (c == d && c_layout != d_layout)) return k_invalid_value;
  fake_product_launch = (struct FakeProductLaunch){.launches = fake_product_launch.launches + 1,
                                                   .compute_type = each->compute_type,
                                                   .scale_type = each->scale_type,
                                                   .transposes = {each->transposes[0], each->transposes[1]},
                                                   .bias_type = each->bias_type,
                                                   .epilogue = each->epilogue,
                                                   .bias_batch_stride = each->bias_batch_stride,
                                                   .bias = each->bias,
                                                   .aux_column_stride = each->aux_column_stride,
                                                   .aux_batch_stride = each->aux_batch_stride,
                                                   .aux = each->aux,
                                                   .left = placed(a_layout, a),
                                                   .right = placed(b_layout, b),
                                                   .addend = placed(c_layout, c),
                                                   .result = placed(d_layout, d),
                                                   .alpha = scalar(each->scale_type, alpha),
                                                   .beta = scalar(each->scale_type, beta),
                                                   .algorithm = *algorithm,
                                                   .workspace_bytes = workspace_bytes,
                                                   .workspace = workspace,
                                                   .stream = stream};
  return 0;
}
#endif
