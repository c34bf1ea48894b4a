// Results of attention whose keys are in parts, from what the kernel before has left of each in the workspace: the second half
// of Flash-Decoding (Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference", 2023). With m the highest of all
// parts' highest scores m_i, sums s_i of weights and sums v_i of weighted values,
//
//     result = sum of exp(m_i - m) v_i / sum of exp(m_i - m) s_i      logsumexp = m + log(sum of exp(m_i - m) s_i)
//
// summed from the first part to the last. A part in which a row has no key counts for nothing in it. Each thread has an
// element of the results.

namespace kiln {

extern "C" KILN_KERNEL(k_threads, 1) KILN_ENTRY(KILN_ARGUMENTS(Arguments) args) {
  const u32 i = block_index() * k_threads + thread_index();
  if (i >= static_cast<u32>(k_places * k_queries * k_value_dim)) return;
  const i32 d = static_cast<i32>(i % k_value_dim), row = static_cast<i32>(i / k_value_dim % k_queries);
  const Place at = place_of(i / (k_value_dim * k_queries));

  Accumulator highest = nothing();
  KILN_UNROLL_BY(8) for (i32 part = 0; part < k_parts; ++part) {
    highest = op_maximum(highest, partial_of(args, at, row, part).highest());
  }
  Accumulator total = 0, sum = 0;
  KILN_UNROLL_BY(8) for (i32 part = 0; part < k_parts; ++part) {
    const Partial partial = partial_of(args, at, row, part);
    const Accumulator of_part = partial.values(d);
    const bool has_keys = partial.highest() != nothing();
    const Accumulator rescale = has_keys ? op_exp(partial.highest() - highest) : 0;
    total = multiply_add(rescale, has_keys ? of_part : 0, total);
    sum = multiply_add(rescale, partial.weights(), sum);
  }
  const bool is_empty = sum == 0;
  to_memory(*element<Out>(args, at, row, d), is_empty ? 0 : total / sum);
  if (d == 0) {
    *lse_at(args, at.batch, head_of(at, row), query_of(row)) = is_empty ? nothing() : highest + op_log(sum);
  }
}

}  // namespace kiln
