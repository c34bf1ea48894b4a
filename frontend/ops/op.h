#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"
#include "frontend/kernel/scalar.h"

namespace kiln {

class GraphBuilder;
class ElementEvaluator;

enum class OperandKind : uint8_t { required, optional, variadic };

struct OperandDef {
  std::string_view name;
  OperandKind kind = OperandKind::required;
};

/// `extent` is a Dim: an int64_t when it is constant, else a Shape of one Dim.
enum class AttributeType : uint8_t { boolean, integer, number, string, dtype, integers, shape, extent };

struct AttributeDef {
  std::string_view name;
  AttributeType type = AttributeType::integer;
  bool required = true;
  /// Written into the node when the caller leaves the attribute out, so that equal nodes have equal attributes.
  /// An attribute that is neither required nor has a fallback may be missing (clamp's min).
  std::optional<Attribute> fallback;
};

/// How an op relates to iteration, which is what regions and fusion need to know of it.
enum class OpKind : uint8_t {
  pointwise,    // each result element from the operands' elements at the same (broadcast) index, by `scalar`
  reduction,    // over attribute `dims`, by `combiner`
  view,         // a renaming of indices: reshape, permute, expand, slice, …
  creation,     // from attributes alone: full, iota
  indexing,     // gather, scatter, concatenation, padding, scan, argmax
  contraction,  // matmul, grouped_matmul
  attention,    // fused attention and its backward
  ordering,     // argsort, topk
  composite,    // has a decomposition
};

/// What a rule sees of the node it judges.
struct OpContext {
  const OpDef& op;
  std::span<const TensorType* const> operands;  // null where an optional operand is absent
  const Attributes& attributes;
  /// Equalities between symbolic dims that the rule needs and cannot decide are added here.
  std::vector<Guard>& guards;
};

/// A row of the op table: all that Kiln knows of one op. To add an op, add a row (docs/adding_an_op.md).
struct OpDef {
  std::string_view name;
  OpKind kind;
  std::vector<OperandDef> operands;
  std::vector<AttributeDef> attributes;
  uint32_t result_count = 1;
  ScalarOp scalar = ScalarOp::constant;  // for kind pointwise
  Combiner combiner = Combiner::sum;     // for kind reduction

  /// The results' types, or why the operands do not fit: names the op, the operand, expected and got.
  Expected<std::vector<TensorType>> (*infer)(const OpContext&) = nullptr;

  /// The reference: element `index` (row-major, flat) of result `result` in f64, from the operands' elements as the
  /// evaluator gives them. Integers and booleans are exact up to 2^53.
  double (*element)(ElementEvaluator&, const Graph&, NodeId node, uint32_t result, int64_t index) = nullptr;

  /// The same for many elements at once, where that is much cheaper; null: one after another.
  void (*elements)(ElementEvaluator&, const Graph&, NodeId node, std::span<const int64_t> indices,
                   std::span<double> out) = nullptr;

  /// For kind view: the flat index in operand 0 of the result's element `index`; null where it is `index` itself.
  /// Along one dim of the result it is affine.
  int64_t (*source)(const ElementEvaluator&, const Node&, int64_t index) = nullptr;

  /// Builds the same results from simpler ops; null for primitives. `node` must not be a reference into the graph
  /// that grows.
  Expected<std::vector<ValueId>> (*decompose)(GraphBuilder&, const Node& node,
                                              std::span<const ValueId> operands) = nullptr;

  /// Gradients with respect to each operand (k_none: none) from those of the results (k_none where zero).
  /// Null: the decomposition is differentiated; with neither, the op has no gradient.
  Expected<std::vector<ValueId>> (*gradient)(GraphBuilder&, const Node& node, std::span<const ValueId> operands,
                                             std::span<const ValueId> results,
                                             std::span<const ValueId> result_gradients) = nullptr;
};

/// The row, or null. Rows live for the whole process.
const OpDef* find_op(std::string_view name);

/// All rows, in the order they are written.
std::span<const OpDef* const> all_ops();

}  // namespace kiln
