#include "frontend/kernel/kernel_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/bytes.h"
#include "frontend/kernel/gemm_dims.h"

namespace kiln {
namespace {

// Leads the bytes, so that another layout of this file gives other keys.
constexpr uint32_t k_spec_format_version = 4;

/// Every field, in the order of the headers.
class SpecWriter {
 public:
  void write(const ScalarNode& node) {
    m_writer.write(node.op);
    m_writer.write(node.dtype);
    for (const ExprId operand : node.operands) m_writer.write(operand);
    m_writer.write(node.slot);
    m_writer.write(node.immediate);
    m_writer.write(node.immediate_int);
  }

  void write(const IndirectTerm& term) {
    m_writer.write(term.index);
    m_writer.write(term.stride);
    m_writer.write(term.bound);
  }

  template <typename T>
  void write_list(const std::vector<T>& list) {
    m_writer.write(static_cast<uint32_t>(list.size()));
    for (const T& item : list) write(item);
  }

  void write(const Access& access) {
    m_writer.write(access.buffer);
    m_writer.write(access.offset);
    m_writer.write(access.strides);
    write_list(access.indirect);
  }

  void write(const Store& store) {
    m_writer.write(store.value);
    m_writer.write(store.access);
    m_writer.write(store.mode);
  }

  void write(const Body& body) {
    write_list(body.exprs);
    write_list(body.accesses);
  }

  void write(const BufferSpec& buffer) {
    m_writer.write(buffer.dtype);
    m_writer.write(buffer.elements);
    m_writer.write(buffer.role);
  }

  void write(const Reduction& reduction) {
    m_writer.write(reduction.combiner);
    m_writer.write(reduction.value);
  }

  void write(const Stage& stage) {
    m_writer.write(stage.per_row);
    m_writer.write(stage.reductions);
    write_list(stage.stores);
  }

  void write(const LoopsSpec& loops) {
    m_writer.write(loops.extents);
    m_writer.write(loops.parallel_rank);
    write(loops.body);
    write_list(loops.reductions);
    write_list(loops.stages);
  }

  void write(const GemmPieces& pieces) {
    m_writer.write(pieces.rows);
    m_writer.write(pieces.columns);
  }

  void write(const GemmSpec& gemm) {
    m_writer.write(gemm.batch);
    for (const int64_t extent : {gemm.m, gemm.n, gemm.k, gemm.window}) m_writer.write(extent);
    m_writer.write(gemm.dtype);
    write(gemm.a);
    write(gemm.b);
    m_writer.write(gemm.a_value);
    m_writer.write(gemm.b_value);
    write(gemm.a_pieces);
    write(gemm.b_pieces);
    m_writer.write(gemm.groups.has_value());
    if (gemm.groups) {
      m_writer.write(gemm.groups->along);
      write(gemm.groups->ends);
    }
    write(gemm.epilogue);
    write_list(gemm.stores);
  }

  void write(const AttentionSpec& attention) {
    for (const int64_t extent : {attention.batch, attention.heads, attention.kv_heads, attention.q_len, attention.k_len,
                                 attention.head_dim, attention.value_dim}) {
      m_writer.write(extent);
    }
    m_writer.write(attention.dtype);
    m_writer.write(attention.scale);
    m_writer.write(attention.causal);
    m_writer.write(attention.causal_offset);
    for (const Access* access : {&attention.q, &attention.k, &attention.v, &attention.out, &attention.lse}) {
      write(*access);
    }
    write(attention.score);
    m_writer.write(attention.score_value);
  }

  void write(const AttentionBackwardSpec& backward) {
    write(backward.forward);
    for (const Access* access : {&backward.grad_out, &backward.grad_q, &backward.grad_k, &backward.grad_v}) {
      write(*access);
    }
  }

  void write(const SortSpec& sort) {
    m_writer.write(sort.extents);
    m_writer.write(sort.descending);
    write(sort.x);
    write(sort.order);
    m_writer.write(sort.topk.has_value());
    if (!sort.topk) return;
    m_writer.write(sort.topk->k);
    m_writer.write(sort.topk->sorted);
  }

  void write(const KernelSpec& spec) {
    m_writer.write(k_spec_format_version);
    write_list(spec.buffers);
    m_writer.write(static_cast<uint8_t>(spec.kernel.index()));
    std::visit([this](const auto& kernel) { write(kernel); }, spec.kernel);
  }

  std::vector<uint8_t> take() { return m_writer.take(); }

 private:
  ByteWriter m_writer;
};

std::string joined(const std::vector<int64_t>& extents) {
  return extents.empty() ? "1" : fmt::format("{}", fmt::join(extents, "x"));
}

// n: the operand is loaded row-major (its last dim is adjacent in memory); t: the other one is; p: a
// prologue; w: it lies in pieces, as windows do.
char operand_letter(const Body& body, ExprId value, const GemmPieces& pieces) {
  if (!pieces.empty()) return 'w';
  const ScalarNode& node = body.exprs[value];
  if (node.op != ScalarOp::load) return 'p';
  const std::vector<int64_t>& strides = body.accesses[node.slot].strides;
  const size_t rank = strides.size();
  return strides[rank - 1] != 1 && strides[rank - 2] == 1 ? 't' : 'n';
}

size_t scalar_op_count(const Body& body) {
  return static_cast<size_t>(
      std::count_if(body.exprs.begin(), body.exprs.end(), [](const ScalarNode& node) { return arity(node.op) > 0; }));
}

std::string name_of(const KernelSpec& spec, const LoopsSpec& loops) {
  DType dtype = DType::f32;
  for (auto stage = loops.stages.rbegin(); stage != loops.stages.rend(); ++stage) {
    if (stage->stores.empty()) continue;
    dtype = spec.buffers[loops.body.accesses[stage->stores.front().access].buffer].dtype;
    break;
  }
  std::string name = fmt::format("loops_{}_{}", to_string(dtype), joined(loops.extents));
  const size_t reduced_rank = loops.extents.size() - loops.parallel_rank;
  if (reduced_rank > 0) name += fmt::format("_r{}", reduced_rank);
  if (loops.stages.size() > 1) name += fmt::format("_s{}", loops.stages.size());
  return name;
}

std::string name_of(const KernelSpec&, const GemmSpec& gemm) {
  std::string name = "gemm_";
  if (gemm.groups) name += fmt::format("groups_{}_", to_string(gemm.groups->along));
  name += fmt::format("{}_", to_string(gemm.dtype));
  if (!gemm.batch.empty()) name += joined(gemm.batch) + "x";
  name += fmt::format("{}x{}x{}_{}{}", gemm.m, gemm.n, gemm.k, operand_letter(gemm.a, gemm.a_value, gemm.a_pieces),
                      operand_letter(gemm.b, gemm.b_value, gemm.b_pieces));
  if (const size_t count = scalar_op_count(gemm.epilogue); count > 0) name += fmt::format("_e{}", count);
  return name;
}

std::string attention_suffix(const AttentionSpec& attention) {
  std::string name = fmt::format("{}_{}x{}x{}x{}x{}", to_string(attention.dtype), attention.batch, attention.heads,
                                 attention.q_len, attention.k_len, attention.head_dim);
  if (attention.kv_heads != attention.heads) name += fmt::format("_kv{}", attention.kv_heads);
  if (attention.causal) name += "_causal";
  if (attention.score_value != k_no_expr) name += "_score";
  return name;
}

std::string name_of(const KernelSpec&, const AttentionSpec& attention) {
  return "attention_" + attention_suffix(attention);
}

std::string name_of(const KernelSpec&, const AttentionBackwardSpec& backward) {
  return "attention_backward_" + attention_suffix(backward.forward);
}

std::string name_of(const KernelSpec& spec, const SortSpec& sort) {
  const std::string rows = fmt::format("{}_{}", to_string(spec.buffers[sort.x.buffer].dtype), joined(sort.extents));
  return sort.topk ? fmt::format("sort_{}_top{}", rows, sort.topk->k) : "sort_" + rows;
}

bool has_indirect_access(const Body& body) {
  return std::ranges::any_of(body.accesses, [](const Access& access) { return !access.indirect.empty(); });
}
bool has_indirect_access(const LoopsSpec& loops) { return has_indirect_access(loops.body); }
bool has_indirect_access(const GemmSpec& gemm) {
  return has_indirect_access(gemm.a) || has_indirect_access(gemm.b) || has_indirect_access(gemm.epilogue);
}
bool has_indirect_access(const AttentionSpec& attention) { return has_indirect_access(attention.score); }
bool has_indirect_access(const AttentionBackwardSpec& backward) { return has_indirect_access(backward.forward); }
bool has_indirect_access(const SortSpec&) { return false; }

}  // namespace

DType reduced_dtype(const LoopsSpec& loops, const Reduction& reduction) {
  if (reduction.combiner == Combiner::logical_and || reduction.combiner == Combiner::logical_or) {
    return DType::boolean;
  }
  return accumulator_of(loops.body.exprs[reduction.value].dtype);
}

std::string_view to_string(GemmGroups::Along along) { return along == GemmGroups::Along::m ? "m" : "k"; }

namespace {

std::vector<int64_t> operand_extents(std::vector<int64_t> batch, const GemmOperandDims& dims) {
  for (const GemmDims* each : {&dims.rows, &dims.columns}) {
    batch.insert(batch.end(), each->pieces.begin(), each->pieces.end());
  }
  return batch;
}

}  // namespace

std::vector<int64_t> a_extents(const GemmSpec& gemm) { return operand_extents(gemm.batch, a_dims(gemm)); }
std::vector<int64_t> b_extents(const GemmSpec& gemm) { return operand_extents(gemm.batch, b_dims(gemm)); }

std::vector<int64_t> SortSpec::order_extents() const {
  std::vector<int64_t> told = extents;
  if (topk) told.back() = topk->k;
  return told;
}

const ScalarNode* load_behind_casts(const Body& body, ExprId value) {
  while (body.exprs[value].op == ScalarOp::cast) value = body.exprs[value].operands[0];
  return body.exprs[value].op == ScalarOp::load ? &body.exprs[value] : nullptr;
}

bool has_indirect_access(const KernelSpec& spec) {
  return std::visit([](const auto& kernel) { return has_indirect_access(kernel); }, spec.kernel);
}

std::vector<uint8_t> canonical_bytes(const KernelSpec& spec) {
  SpecWriter writer;
  writer.write(spec);
  return writer.take();
}

std::string_view kind_name(const KernelSpec& spec) {
  constexpr std::string_view k_names[] = {"loops", "gemm", "attention", "attention_backward", "sort"};
  static_assert(std::size(k_names) == std::variant_size_v<decltype(KernelSpec::kernel)>);
  return k_names[spec.kernel.index()];
}

std::string kernel_name(const KernelSpec& spec) {
  return std::visit([&](const auto& kernel) { return name_of(spec, kernel); }, spec.kernel);
}

}  // namespace kiln
