#include "backends/cpu/compile/attention/numbers.h"

namespace kiln::cpu {

void AttentionNumbers::open(const AttentionSpec& attention, AttentionSpec& form) {
  constexpr int k_queries = 2;  // the dim that lanes of scores run along
  batch = launch.open(form.batch, 1);
  heads = launch.open(form.heads);
  form.kv_heads = attention.heads / attention.kv_heads;  // how many share keys is compiled in
  q_len = launch.open(form.q_len);
  k_len = launch.open(form.k_len);
  causal_offset = launch.open(form.causal_offset);
  open(attention.q, form.q);
  open(attention.k, form.k);
  open(attention.v, form.v);
  open(attention.out, form.out);
  open(attention.lse, form.lse);
  score = BodyNumbers::open(form.score, k_queries, launch);
}

void AttentionNumbers::open(const Access& access, Access& form, bool opens_rows) {
  BodyNumbers::OfAccess& of_access = accesses[&access];
  of_access.offset = launch.open(form.offset);
  of_access.strides.assign(form.strides.size(), 0);
  // A batch of one has no stride; code is the same for it.
  of_access.strides[0] = launch.open(form.strides[0], 0);
  for (size_t dim = 1; dim < (opens_rows ? 3 : 2); ++dim) of_access.strides[dim] = launch.open(form.strides[dim]);
}

OpenedAttention<AttentionSpec> opened(const AttentionSpec& attention) {
  OpenedAttention<AttentionSpec> result{attention, {}};
  result.numbers.open(attention, result.form);
  return result;
}

OpenedAttention<AttentionBackwardSpec> opened(const AttentionBackwardSpec& backward) {
  OpenedAttention<AttentionBackwardSpec> result{backward, {}};
  result.numbers.open(backward.forward, result.form.forward);
  result.numbers.open(backward.grad_out, result.form.grad_out);
  result.numbers.open(backward.grad_q, result.form.grad_q);
  result.numbers.open(backward.grad_k, result.form.grad_k);
  result.numbers.open(backward.grad_v, result.form.grad_v);
  return result;
}

}  // namespace kiln::cpu
