#include "tests/stand_ins/cuda/mutations.h"

#include <regex>

namespace kiln::cuda_emulator {

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all = {
      {"a missing barrier of the block", R"(block_barrier\(\);)", ""},
      {"a missing barrier of the cluster", R"(cluster_barrier\(\);)", ";"},
      {"a store buffer used again too early", R"(warp_barrier\(\);)", ""},
      {"a missing wait for copies", R"(wait_copies<[^>]*>\(\);)", ""},
      {"a wait for copies one group short", R"(wait_copies<k_stages - 2>)", "wait_copies<k_stages - 1>"},
      {"a lost commit", R"(commit_copies\(\);|wgmma_commit\(\);)", ""},
      {"a stage read before it has come", R"(wait_for_parity\([^;]*\bfull\b[^;]*;)", ""},
      {"a stage filled before it is free", R"(wait_for_parity\([^;]*\bempty\b[^;]*;)", ""},
      {"a stage released early", R"((wgmma_wait<\d>\(\);)[^\n]*\n\s*((release|end_scores)\([^;]*;))", "$2 $1"},
      {"a stage released early",
       R"((wgmma_wait<0>\(\);)((?:\s*(?:if constexpr \(\w+\) )?finish\([^;]*;)+)(\s*rings?\.[^;]*release\([^;]*;))",
       "$3 $1 $2"},
      {"a stage never released", R"((rings?\.(\w+\.)?)?release\((ring, previous, lane|\w*)\);)", ""},
      {"a place in a ring that stays", R"(\w+\.advance\(\);)", ""},
      {"a wrong parity of the producer", R"(\.parity \^ 1\))", ".parity)"},
      {"a wrong parity of the consumer", R"((\bfull\b[^;]*\.parity)\);)", "$1 ^ 1);"},
      {"a wrong count of bytes", R"((arrive_and_expect\([^;]*)\);)", "$1 - 128);"},
      {"a wrong count of arrivals", R"((k_consumers \* 4( \* k_cluster)?)\))", "$1 - 1)"},
      {"barriers not published", R"(publish_transaction_barriers\(\);)", ""},
      {"sums used before they are finished", R"(wgmma_wait<0>\(\);)", "wgmma_wait<1>();"},
      {"a missing wait for products", R"(wgmma_wait<[^>]*>\(\);)", ""},
      {"a missing fence of registers", R"(wgmma_fence\(\);)", ""},
      {"sums that start from the last tile's", R"((is_first && k|d) == 0 \? 0 : 1)", "1"},
      {"a wrong stride of a descriptor", R"(descriptor_(mn|k)_major\(([^()]*)\))",
       "(descriptor_$1_major($2) + (16ull << 32))"},
      {"a wrong swizzle of a descriptor", R"(descriptor_(mn|k)_major\(([^()]*)\))",
       "(descriptor_$1_major($2) ^ (3ull << 62))"},
      {"a wrong step along k", R"(\? 128 : 2\b)", "? 64 : 1"},
      {"a wrong step along k", R"(% 64 / 16 \* 2)", "% 64 / 16"},
      {"a wrong step along k", R"(\+ 128 \* k\b)", "+ 64 * k"},
      {"a missing fence before products", R"(fence_shared_for_tma\(\);)", ""},
      {"a missing barrier of a warpgroup", R"(part_barrier\(k_own[^;]*;)", ""},
      {"a turn that is not passed on", R"(pass_turn\(\);)", ";"},
      {"a wrong count of arrivals", R"(1 \+ 3 : 1\))", "1 + 2 : 1)"},
      {"a stage full before its statistics are there", R"(warp_barrier\(\);(\s*if \(thread % 32 == 0\) arrive))", "$1"},
      {"a wrong swizzle of fragments", R"((load_matrices\w*\([ab], stage \+ chunk_at\([^;]*)\)\);)", "$1 ^ 1));"},
      {"a mask of rows off by one", R"(m >= k_m\) return;)", "m > k_m) return;"},
      {"a mask of rows off by one", R"(m < k_m && n)", "m <= k_m && n"},
      {"a mask of columns off by one", R"(n \+ j < k_n)", "n + j <= k_n"},
      {"a mask of runs off by one", R"(n \+ k_run <= k_n)", "n <= k_n"},
      {"a mask along k off by one", R"(clamped\(k_k - at_k, 8\))", "clamped(k_k - at_k + 1, 8)"},
      {"a mask along k off by one", R"(at_k < k_k)", "at_k <= k_k"},
      {"a mask of an operand off by one", R"(at_outer < Operand::k_outer)", "at_outer <= Operand::k_outer"},
      {"a mask of points off by one", R"((row|at) >= (\d+)u\))", "$1 > $2u)"},
      {"a mask of points off by one", R"(at < (\d+)u;)", "at <= $1u;"},
      {"a mask of reduced points off by one", R"(q < (\d+)u;)", "q <= $1u;"},
      {"a stage filled before all are done with it", R"((block_barrier\(\);)[^\n]*\n\s*(fill_stage\([^;]*\);))",
       "$2 $1"},
      {"a mask of keys off by one", R"(key >= k_k_len)", "key > k_k_len"},
      {"a mask of queries off by one", R"(row >= end\b)", "row > end"},
      {"a mask of later keys off by one", R"(key > query_of)", "key >= query_of"},
      {"a tile of later keys taken for a live one's", R"(key <= \(is_of_one_head)", "key < (is_of_one_head"},
      {"a tile at the diagonal taken for a whole one", R"(key \+ keys - 1 <=)", "key + keys - 2 <="},
      {"a tile at the end taken for a whole one", R"(row \+ rows > end)", "row > end"},
      {"a tile at the end taken for a whole one", R"(key \+ keys > k_k_len)", "key > k_k_len"},
      {"a mask of a tensor's rows off by one", R"(first \+ row < count_of<Tensor>)", "first + row <= count_of<Tensor>"},
      {"a mask of a tensor's rows off by one", R"(row >= count_of<Tensor>\))", "row > count_of<Tensor>)"},
      {"a mask of the depth off by one", R"(clamped\(Tensor::k_width - d, 8\))", "clamped(Tensor::k_width - d + 1, 8)"},
      {"a mask of the depth off by one", R"(d( \+ e)? < Tensor::k_width)", "d$1 <= Tensor::k_width"},
      {"a mask of the depth off by one", R"(if \(d < k_value_dim)", "if (d <= k_value_dim"},
      {"another head's keys", R"(at\.head \* k_group)", "at.head"},
      {"a wrong logsumexp", R"((highest(?:\[\w+\])?[^;+]*) \+ op_log\([^)]*\))", "$1"},
      {"a wrong logsumexp", R"((highest\[half\]) \* \(k_unit \* k_log_2\))", "$1 * k_unit"},
      {"a mask of queries off by one", R"(row < k_queries)", "row <= k_queries"},
      {"a mask of queries off by one", R"(row >= k_queries\))", "row > k_queries)"},
      {"a mask of points off by one", R"(i >= static_cast<u32>)", "i > static_cast<u32>"},
      {"a part left out", R"(part < k_parts)", "part < k_parts - 1"},
      {"a tile of a part left out", R"(, k_part_tiles\))", ", k_part_tiles - 1)"},
      {"another part's keys", R"(part \* k_part_tiles \+ tile)", "part + tile"},
      {"another row's part", R"(place \* k_queries \+ row)", "place * k_queries"},
      {"another place's part", R"(\* k_places \+ at\.batch)", "+ at.batch"},
      {"a stale highest score", R"(highest = op_maximum\(highest[^;]*;)", ""},
      {"a stale sum of weights", R"((sum = multiply_add\()rescale)", "$1static_cast<Accumulator>(1)"},
      {"results of stale weights", R"((total = multiply_add\()rescale)", "$1static_cast<Accumulator>(1)"},
      {"a part without keys taken for one that has some", R"(has_keys \? (op_exp[^;:]*) : 0)", "$1"},
      {"a stale highest score", R"(highest\[\w+\] = best;)", ""},
      {"a stale sum of weights", R"(sum\[\w+\] \*= rescale(\[half\])?;)", ""},
      {"a stale sum of weights", R"(sum\[i\] \* rescale)", "sum[i]"},
      {"results of stale weights", R"(\] \*= (rescale|by\[e / 2\]);)", "] *= 1;"},
      {"weights that miss what their gradients share", R"( - delta\[query\]\))", ")"},
      {"weights of another query's logsumexp", R"(lse\[query\])", "lse[query ^ 1]"},
      {"a query without keys taken for one that has some", R"(== nothing\(\) \? -nothing\(\) : (of_\w+(\[i\])?))",
       "== nothing() ? $1 : $1"},
      {"a mask of the depth off by one", R"(d \+ j < k_value_dim)", "d + j <= k_value_dim"},
      {"a gradient without its scale", R"(, k_scale(, lane)?\);)", ", 1$1);"},
      {"no score taken for the highest", R"(best == nothing\(\) \? 0 : best)", "best"},
      {"a combination that leaves lanes out", R"(mask = lanes / 2)", "mask = lanes / 4"},
  };
  return all;
}

std::vector<std::string> mutants_of(const std::string& text, const Mistake& mistake) {
  const std::regex pattern(mistake.pattern);
  std::vector<std::string> mutants;
  for (auto place = std::sregex_iterator(text.begin(), text.end(), pattern); place != std::sregex_iterator(); ++place) {
    const auto at = static_cast<size_t>(place->position()), length = static_cast<size_t>(place->length());
    mutants.push_back(text.substr(0, at) + place->format(mistake.by) + text.substr(at + length));
  }
  return mutants;
}

}  // namespace kiln::cuda_emulator
