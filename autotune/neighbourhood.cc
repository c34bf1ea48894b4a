#include "autotune/neighbourhood.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "frontend/kernel/affine.h"
#include "frontend/kernel/expensive.h"

namespace kiln {

namespace {

constexpr int k_farthest = 3;  // doublings and halvings of sizes, in all

std::vector<int> logarithms(std::initializer_list<int64_t> sizes) {
  std::vector<int> found;
  for (const int64_t size : sizes) {
    found.push_back(static_cast<int>(std::lround(std::log2(static_cast<double>(std::max<int64_t>(size, 1))))));
  }
  return found;
}

/// n: neighbours along the last dim are adjacent in memory; t: those along the one before are; s: neither.
char order_letter(const Access& access) {
  const std::vector<int64_t>& strides = access.strides;
  const size_t rank = strides.size();
  if (rank > 0 && strides[rank - 1] == 1) return 'n';
  return rank > 1 && strides[rank - 2] == 1 ? 't' : 's';
}

/// What a body reads and writes, and whether it computes: "+" for little, "*" where an operation is expensive.
std::string text_of(const KernelSpec& spec, const Body& body) {
  std::string text;
  for (const Access& access : body.accesses) {
    text += fmt::format(" {}{}", to_string(spec.buffers[access.buffer].dtype), order_letter(access));
  }
  const auto computes = [](const ScalarNode& node) { return arity(node.op) > 0 && node.op != ScalarOp::cast; };
  const bool is_slow = std::ranges::any_of(body.exprs, [](const ScalarNode& node) { return is_expensive(node.op); });
  if (is_slow) return text + " *";
  return std::ranges::any_of(body.exprs, computes) ? text + " +" : text;
}

Neighbourhood neighbourhood_of(const KernelSpec& spec, const GemmSpec& gemm) {
  const std::string groups = gemm.groups ? fmt::format(" groups {}", to_string(gemm.groups->along)) : "";
  return {fmt::format("{}{} {} a{} b{} c{}", kind_name(spec), groups, to_string(gemm.dtype), text_of(spec, gemm.a),
                      text_of(spec, gemm.b), text_of(spec, gemm.epilogue)),
          logarithms({product(gemm.batch), gemm.m, gemm.n, gemm.k})};
}

Neighbourhood neighbourhood_of(const KernelSpec& spec, const AttentionSpec& attention) {
  return {fmt::format("{} {} {}x{}{} score{}", kind_name(spec), to_string(attention.dtype), attention.head_dim,
                      attention.value_dim, attention.causal ? " causal" : "", text_of(spec, attention.score)),
          logarithms({attention.batch * attention.heads, attention.q_len, attention.k_len})};
}

Neighbourhood neighbourhood_of(const KernelSpec& spec, const AttentionBackwardSpec& backward) {
  return neighbourhood_of(spec, backward.forward);
}

Neighbourhood neighbourhood_of(const KernelSpec& spec, const SortSpec&) { return {std::string(kind_name(spec)), {}}; }

Neighbourhood neighbourhood_of(const KernelSpec& spec, const LoopsSpec&) { return {std::string(kind_name(spec)), {}}; }

}  // namespace

std::string Neighbourhood::sizes_text() const { return fmt::format("{}", fmt::join(sizes, ",")); }

Neighbourhood neighbourhood_of(const KernelSpec& spec) {
  return std::visit([&](const auto& kernel) { return neighbourhood_of(spec, kernel); }, spec.kernel);
}

std::vector<Neighbourhood> around(const Neighbourhood& centre) {
  std::vector<Neighbourhood> found{centre};
  size_t ring = 0;  // where those begin that were found last
  for (int distance = 0; distance < k_farthest; ++distance) {
    const size_t end = found.size();
    for (; ring < end; ++ring) {
      for (size_t d = 0; d < centre.sizes.size(); ++d) {
        for (const int step : {-1, 1}) {
          Neighbourhood other = found[ring];
          other.sizes[d] += step;
          if (std::ranges::find(found, other) == found.end()) found.push_back(std::move(other));
        }
      }
    }
  }
  return found;
}

}  // namespace kiln
