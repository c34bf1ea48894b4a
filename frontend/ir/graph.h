#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/ir/dim.h"
#include "frontend/ir/dtype.h"

namespace kiln {

struct OpDef;  // a row of frontend/ops

using ValueId = uint32_t;
using NodeId = uint32_t;
/// An optional operand that is not given, and the producer of a graph input.
inline constexpr uint32_t k_none = UINT32_MAX;

/// dtype, shape (outermost first) and, for graph inputs and outputs, the strides in elements. Empty strides
/// mean dense row-major; values inside a graph have no layout, the fuser chooses it.
struct TensorType {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Dim> strides;

  bool operator==(const TensorType&) const = default;
  size_t rank() const { return shape.size(); }
  /// "f32[512, 768]", "f32[s0, 768]{1, s0}"; symbols as in Dim::to_string.
  std::string to_string(std::span<const std::string> symbols = {}) const;
};

/// Named constants of a node. Kept sorted by name, so that equal attributes have equal bytes.
using Attribute = std::variant<bool, int64_t, double, std::string, DType, std::vector<int64_t>, Shape>;
using Attributes = std::vector<std::pair<std::string, Attribute>>;

struct Node {
  const OpDef* op = nullptr;
  std::vector<ValueId> operands;  // k_none where an optional operand is absent
  Attributes attributes;
  std::vector<ValueId> results;
};

struct Value {
  TensorType type;
  NodeId producer = k_none;   // k_none for a graph input
  uint32_t result_index = 0;  // among the producer's results, or among the graph's inputs
  std::string name;           // for people; never part of a key
};

/// What must hold of symbols for a graph to mean what was captured: `dim` `relation` 0.
struct Guard {
  enum class Relation : uint8_t { equal = 0, not_equal = 1, at_least = 2, divisible = 3 };
  Dim dim;
  Relation relation = Relation::equal;
  int64_t modulus = 0;  // for divisible
  bool operator==(const Guard&) const = default;
};

/// An SSA list of ops over tensors: what a client submits. Nodes are in topological order, always.
///
/// A plain container: it checks ids, not meaning. Use GraphBuilder (frontend/infer) to add nodes with their
/// types inferred and their operands checked; use parse_text and from_wire to read graphs from outside.
/// Threading: as a vector. Copying is deep.
class Graph {
 public:
  SymbolId add_symbol(std::string name);
  ValueId add_input(TensorType type, std::string name = {});
  NodeId add_node(const OpDef* op, std::vector<ValueId> operands, Attributes attributes,
                  std::vector<TensorType> result_types);
  void add_guard(Guard guard) { m_guards.push_back(std::move(guard)); }
  void set_outputs(std::vector<ValueId> outputs);
  /// Output `index` must be written with these strides; empty for dense row-major.
  void set_output_strides(size_t index, std::vector<Dim> strides);

  const std::vector<Node>& nodes() const { return m_nodes; }
  const std::vector<Value>& values() const { return m_values; }
  const std::vector<ValueId>& inputs() const { return m_inputs; }
  const std::vector<ValueId>& outputs() const { return m_outputs; }
  const std::vector<std::vector<Dim>>& output_strides() const { return m_output_strides; }
  const std::vector<std::string>& symbols() const { return m_symbols; }
  const std::vector<Guard>& guards() const { return m_guards; }

  const Node& node(NodeId id) const { return m_nodes[id]; }
  const Value& value(ValueId id) const { return m_values[id]; }
  const TensorType& type(ValueId id) const { return m_values[id].type; }
  void set_name(ValueId id, std::string name) { m_values[id].name = std::move(name); }

  /// users()[value]: the nodes that read it, ascending, once each. Built on each call, linear.
  std::vector<std::vector<NodeId>> users() const;

 private:
  std::vector<std::string> m_symbols;
  std::vector<Guard> m_guards;
  std::vector<Value> m_values;
  std::vector<Node> m_nodes;
  std::vector<ValueId> m_inputs;
  std::vector<ValueId> m_outputs;
  std::vector<std::vector<Dim>> m_output_strides;  // parallel to m_outputs
};

/// The attribute, or null.
const Attribute* find_attribute(const Attributes& attributes, std::string_view name);

}  // namespace kiln
