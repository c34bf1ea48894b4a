#include "frontend/kernel/kernel_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>

namespace kiln {
namespace {

constexpr std::string_view k_roles[] = {"input", "output", "inout"};
constexpr std::string_view k_combiners[] = {"sum", "product", "maximum", "minimum", "all", "any"};

std::string list(const std::vector<int64_t>& numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

/// " + 5", " - 3*i0", or without the sign where it is the first.
void add_term(std::string& sum, int64_t factor, const std::string& of) {
  // Negated as unsigned: the least number has no positive one.
  const uint64_t size = factor < 0 ? 0 - static_cast<uint64_t>(factor) : static_cast<uint64_t>(factor);
  if (!sum.empty())
    sum += factor < 0 ? " - " : " + ";
  else if (factor < 0)
    sum += '-';
  if (of.empty())
    sum += fmt::to_string(size);
  else
    sum += size == 1 ? of : fmt::format("{}*{}", size, of);
}

/// "b0[i0*64 + i1 + %3*8 + 5], %3 < 100": what an index from data must stay below stands behind.
std::string address(const Access& access) {
  std::string sum, bounds;
  for (size_t dim = 0; dim < access.strides.size(); ++dim) {
    if (access.strides[dim] != 0) add_term(sum, access.strides[dim], fmt::format("i{}", dim));
  }
  for (const IndirectTerm& term : access.indirect) {
    add_term(sum, term.stride, fmt::format("%{}", term.index));
    bounds += fmt::format(", %{} < {}", term.index, term.bound);
  }
  if (access.offset != 0 || sum.empty()) add_term(sum, access.offset, "");
  return fmt::format("b{}[{}]{}", access.buffer, sum, bounds);
}

class KernelPrinter {
 public:
  std::string print(const KernelSpec& spec) {
    line(0, "{}", kernel_name(spec));
    for (size_t i = 0; i < spec.buffers.size(); ++i) {
      const BufferSpec& buffer = spec.buffers[i];
      line(1, "b{}: {} {}[{}]", i, k_roles[static_cast<size_t>(buffer.role)], to_string(buffer.dtype), buffer.elements);
    }
    std::visit([this](const auto& kernel) { print(kernel); }, spec.kernel);
    return std::move(m_text);
  }

 private:
  template <typename... Arguments>
  void line(size_t indent, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    m_text.append(2 * indent, ' ');
    fmt::format_to(std::back_inserter(m_text), format, std::forward<Arguments>(arguments)...);
    m_text += '\n';
  }

  static std::string expression(const Body& body, const ScalarNode& node) {
    switch (node.op) {
      case ScalarOp::constant:
        return is_floating(node.dtype) ? fmt::format("{}", node.immediate) : fmt::format("{}", node.immediate_int);
      case ScalarOp::load: {
        const std::string from = "load " + address(body.accesses[node.slot]);
        return node.operands[0] == k_no_expr ? from : fmt::format("{} where %{}", from, node.operands[0]);
      }
      case ScalarOp::index:
        return fmt::format("i{}", node.slot);
      case ScalarOp::reduced:
        return fmt::format("reduction {}", node.slot);
      default: {
        const auto operands = std::span(node.operands).first(static_cast<size_t>(std::max(arity(node.op), 0)));
        std::string text(to_string(node.op));
        for (const ExprId operand : operands) text += fmt::format(" %{}", operand);
        return text;
      }
    }
  }

  void print(const Body& body) {
    for (size_t id = 0; id < body.exprs.size(); ++id) {
      line(2, "%{}: {} = {}", id, to_string(body.exprs[id].dtype), expression(body, body.exprs[id]));
    }
  }

  void print(const Body& body, const std::vector<Store>& stores) {
    for (const Store& store : stores) {
      line(2, "{} {} = %{}", store.mode == StoreMode::add ? "add" : "store", address(body.accesses[store.access]),
           store.value);
    }
  }

  void print(const LoopsSpec& loops) {
    const auto middle = loops.extents.begin() + loops.parallel_rank;
    line(1, "loops over {}, each point over {}", list({loops.extents.begin(), middle}),
         list({middle, loops.extents.end()}));
    print(loops.body);
    for (size_t i = 0; i < loops.reductions.size(); ++i) {
      const Reduction& reduction = loops.reductions[i];
      line(2, "reduction {}: {} of %{}", i, k_combiners[static_cast<size_t>(reduction.combiner)], reduction.value);
    }
    for (size_t i = 0; i < loops.stages.size(); ++i) {
      const Stage& stage = loops.stages[i];
      line(1, "stage {}{}, reductions [{}]", i, stage.per_row ? ", once a row" : "", fmt::join(stage.reductions, ", "));
      print(loops.body, stage.stores);
    }
  }

  void print(std::string_view name, const Body& body, ExprId value, const std::vector<int64_t>& extents,
             const GemmPieces& pieces) {
    const std::string cut =
        pieces.empty() ? "" : fmt::format(", in pieces {} x {}", list(pieces.rows), list(pieces.columns));
    line(1, "{} = %{} over {}{}", name, value, list(extents), cut);
    print(body);
  }

  void print(const GemmSpec& gemm) {
    const std::string windows = gemm.window == 1 ? "" : fmt::format(" in windows of {}", gemm.window);
    line(1, "product of {}: batch {}, m {}, n {}, k {}{}", to_string(gemm.dtype), list(gemm.batch), gemm.m, gemm.n,
         gemm.k, windows);
    if (const auto& groups = gemm.groups) {
      line(1, "groups along {}, ends {}", to_string(groups->along), address(groups->ends));
    }
    print("a", gemm.a, gemm.a_value, a_extents(gemm), gemm.a_pieces);
    print("b", gemm.b, gemm.b_value, b_extents(gemm), gemm.b_pieces);
    line(1, "epilogue");
    print(gemm.epilogue);
    print(gemm.epilogue, gemm.stores);
  }

  void print(const AttentionSpec& attention) {
    line(1, "attention of {}: batch {}, heads {}, key heads {}, queries {}, keys {}, head {}, value {}, scale {}",
         to_string(attention.dtype), attention.batch, attention.heads, attention.kv_heads, attention.q_len,
         attention.k_len, attention.head_dim, attention.value_dim, attention.scale);
    if (attention.causal) line(1, "causal, from key {} on", attention.causal_offset);
    print({{"q", &attention.q},
           {"k", &attention.k},
           {"v", &attention.v},
           {"out", &attention.out},
           {"lse", &attention.lse}});
    if (attention.score_value != k_no_expr) line(1, "score = %{}", attention.score_value);
    print(attention.score);
  }

  void print(const AttentionBackwardSpec& backward) {
    print(backward.forward);
    print({{"grad_out", &backward.grad_out},
           {"grad_q", &backward.grad_q},
           {"grad_k", &backward.grad_k},
           {"grad_v", &backward.grad_v}});
  }

  void print(const SortSpec& sort) {
    const std::string_view order = sort.descending ? "descending" : "ascending";
    if (!sort.topk) {
      line(1, "places of {} in {} order", list(sort.extents), order);
    } else {
      line(1, "first {} places of {} in {} order{}", sort.topk->k, list(sort.extents), order,
           sort.topk->sorted ? "" : ", unsorted");
    }
    print({{"x", &sort.x}, {"order", &sort.order}});
  }

  void print(const std::vector<std::pair<std::string_view, const Access*>>& accesses) {
    for (const auto& [name, access] : accesses) line(1, "{}: {}", name, address(*access));
  }

  std::string m_text;
};

}  // namespace

std::string kernel_text(const KernelSpec& spec) { return KernelPrinter().print(spec); }

}  // namespace kiln
