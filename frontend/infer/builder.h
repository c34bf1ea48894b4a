#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"
#include "frontend/ops/op.h"

namespace kiln {

/// Adds nodes to a graph with operands and attributes checked and result types inferred.
///
/// Two ways in: `add` returns its error; everything else is sugar for code that builds many nodes (decompositions,
/// gradients, models), returns one value and keeps the first error: from then on sugar does nothing and returns
/// k_none, and `finish` or `status` says what went wrong.
/// Ownership: refers to the graph, which must outlive it. Threading: as the graph.
class GraphBuilder {
 public:
  explicit GraphBuilder(Graph& graph) : m_graph(graph) {}

  /// The results of the new node. Errors: not_found for an unknown op, naming the nearest name; invalid_argument for
  /// operands or attributes that do not fit. Equalities of symbolic dims that cannot be decided become guards.
  Expected<std::vector<ValueId>> add(std::string_view op, std::span<const ValueId> operands,
                                     Attributes attributes = {});
  Expected<std::vector<ValueId>> add(const OpDef& op, std::span<const ValueId> operands, Attributes attributes = {});

  const Graph& graph() const { return m_graph; }
  const TensorType& type(ValueId value) const { return m_graph.type(value); }
  const Shape& shape(ValueId value) const { return m_graph.type(value).shape; }
  DType dtype(ValueId value) const { return m_graph.type(value).dtype; }
  const Status& status() const { return m_status; }
  /// `values`, or the first error of the sugar.
  Expected<std::vector<ValueId>> finish(std::vector<ValueId> values) const;

  // --- sugar -------------------------------------------------------------------------------------------------------

  /// The first result, or all of them.
  ValueId op(std::string_view name, std::initializer_list<ValueId> operands, Attributes attributes = {});
  std::vector<ValueId> ops(std::string_view name, std::span<const ValueId> operands, Attributes attributes = {});

  // Pointwise. Numbers take the other operand's dtype.
  ValueId neg(ValueId x) { return op("neg", {x}); }
  ValueId exp(ValueId x) { return op("exp", {x}); }
  ValueId log(ValueId x) { return op("log", {x}); }
  ValueId add(ValueId a, ValueId b) { return op("add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return op("sub", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return op("mul", {a, b}); }
  ValueId div(ValueId a, ValueId b) { return op("div", {a, b}); }
  ValueId add(ValueId a, double b) { return number("add", a, b); }
  ValueId sub(ValueId a, double b) { return number("sub", a, b); }
  ValueId mul(ValueId a, double b) { return number("mul", a, b); }
  ValueId div(ValueId a, double b) { return number("div", a, b); }
  ValueId rsub(double a, ValueId b) { return op("sub", {constant(a, b), b}); }
  ValueId square(ValueId x) { return mul(x, x); }
  ValueId compare(std::string_view op_name, ValueId a, double b) { return number(op_name, a, b); }
  ValueId select(ValueId condition, ValueId a, ValueId b) { return op("select", {condition, a, b}); }
  /// `x` itself when it has the dtype already.
  ValueId cast(ValueId x, DType dtype);
  /// `x` in the dtype its arithmetic accumulates in.
  ValueId widen(ValueId x);

  // Creation.
  /// A scalar.
  ValueId full(double value, DType dtype) { return full(Shape{}, value, dtype); }
  ValueId full(Shape shape, double value, DType dtype);
  /// A scalar of the dtype of `like`.
  ValueId constant(double value, ValueId like);
  /// 0, 1, … along `dim` of the shape.
  ValueId iota(Shape shape, size_t dim, DType dtype = DType::i64);
  /// The product of the dims as a scalar: a constant, or computed from symbols.
  ValueId extent(const Dim& value, DType dtype);

  // Views.
  ValueId reshape(ValueId x, Shape shape);
  ValueId permute(ValueId x, std::vector<int64_t> dims);
  /// Swaps the last two dims.
  ValueId transpose(ValueId x);
  ValueId expand(ValueId x, Shape shape);
  ValueId slice(ValueId x, size_t dim, const Dim& start, const Dim& end, int64_t step = 1);
  ValueId unsqueeze(ValueId x, size_t dim);
  /// Removes a dim of extent 1.
  ValueId squeeze(ValueId x, size_t dim);
  /// One index of a dim, which goes away.
  ValueId index(ValueId x, size_t dim, int64_t at);

  // Reductions.
  ValueId sum(ValueId x, std::vector<int64_t> dims, bool keep_dims = false);
  ValueId amax(ValueId x, std::vector<int64_t> dims, bool keep_dims = false);
  ValueId mean(ValueId x, std::vector<int64_t> dims, bool keep_dims = false);
  /// Sums what broadcasting repeated: the result has `shape`.
  ValueId sum_to(ValueId x, const Shape& shape);

  ValueId matmul(ValueId a, ValueId b) { return op("matmul", {a, b}); }

 private:
  ValueId number(std::string_view name, ValueId a, double b);

  Graph& m_graph;
  Status m_status;
};

/// The attributes in stored form: sorted, of the declared types, fallbacks written in. Errors name op and attribute.
Expected<Attributes> normalise_attributes(const OpDef& op, Attributes attributes);

/// Counts of operands against the row, then the row's own rule. `attributes` in stored form.
Expected<std::vector<TensorType>> infer_types(const OpDef& op, std::span<const TensorType* const> operands,
                                              const Attributes& attributes, std::vector<Guard>& guards);

}  // namespace kiln
