#pragma once

#include <stddef.h>
#include <stdint.h>

/* What fake_cublaslt.c was told of a matrix. */
struct FakeLayout {
  int type;
  uint64_t rows, columns;
  int64_t column_stride, batch_stride;
  int32_t batches;
  const void* address;
};

/* The last product that fake_cublaslt.c was asked for, as the test that loaded it reads it. */
struct FakeProductLaunch {
  unsigned launches;
  int compute_type, scale_type;
  int32_t transposes[2], bias_type;
  uint32_t epilogue;
  int64_t bias_batch_stride;
  const void* bias;
  int64_t aux_column_stride, aux_batch_stride;
  const void* aux;
  struct FakeLayout left, right, addend, result;
  double alpha, beta;
  uint64_t algorithm, workspace_bytes;
  void *workspace, *stream;
};

/* What it was asked to propose for. */
struct FakeQuestion {
  uint64_t workspace_bytes, numerics;
  uint32_t reductions, alignments[4];
  const void *bias, *aux;
};
