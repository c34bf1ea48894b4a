#include <cmath>

#include "frontend/ops/op.h"
#include "frontend/wire/graph_generated.h"
#include "frontend/wire/wire.h"

namespace kiln {
namespace {

using flatbuffers::Offset;
using flatbuffers::Vector;

class Writer {
  // First, for its return type is deduced.
  template <typename List, typename Write>
  auto each(const List& list, Write&& write) {
    std::vector<decltype(write(*list.begin()))> offsets;
    offsets.reserve(list.size());
    for (const auto& item : list) offsets.push_back(write(item));
    return m_builder.CreateVector(offsets);
  }

 public:
  explicit Writer(const Graph& graph) : m_graph(graph), m_wire_ids(graph.values().size(), k_none) {}

  std::vector<uint8_t> run() {
    number_values();
    const auto symbols = m_builder.CreateVectorOfStrings(m_graph.symbols());
    const auto guards = each(m_graph.guards(), [&](const Guard& guard) {
      const auto dim_offset = dim(guard.dim);
      return wire::CreateGuard(m_builder, dim_offset, static_cast<wire::Relation>(guard.relation), guard.modulus);
    });
    const auto inputs = each(m_graph.inputs(), [&](ValueId id) { return type(m_graph.type(id)); });
    const auto nodes = each(m_graph.nodes(), [&](const Node& n) { return node(n); });
    std::vector<Offset<wire::Output>> output_offsets;
    for (size_t i = 0; i < m_graph.outputs().size(); ++i) {
      const auto strides = optional_dims(m_graph.output_strides()[i]);
      output_offsets.push_back(wire::CreateOutput(m_builder, m_wire_ids[m_graph.outputs()[i]], strides));
    }
    const auto outputs = m_builder.CreateVector(output_offsets);
    const auto names = value_names();
    m_builder.Finish(wire::CreateGraph(m_builder, k_wire_graph_version, symbols, guards, inputs, nodes, outputs, names),
                     wire::GraphIdentifier());
    return {m_builder.GetBufferPointer(), m_builder.GetBufferPointer() + m_builder.GetSize()};
  }

 private:
  /// The reader numbers values by order: inputs first.
  void number_values() {
    uint32_t next = 0;
    for (ValueId id : m_graph.inputs()) m_wire_ids[id] = next++;
    for (const Node& node : m_graph.nodes()) {
      for (ValueId id : node.results) m_wire_ids[id] = next++;
    }
  }

  Offset<wire::Dim> dim(const Dim& dim) {
    return wire::CreateDim(m_builder, each(dim.terms(), [&](const Dim::Term& term) {
                             const auto symbols = m_builder.CreateVector(term.symbols);
                             return wire::CreateTerm(m_builder, term.coefficient, symbols);
                           }));
  }
  Offset<Vector<Offset<wire::Dim>>> dims(const std::vector<Dim>& list) {
    return each(list, [&](const Dim& item) { return dim(item); });
  }
  Offset<Vector<Offset<wire::Dim>>> optional_dims(const std::vector<Dim>& list) {
    return list.empty() ? Offset<Vector<Offset<wire::Dim>>>() : dims(list);
  }

  Offset<wire::TensorType> type(const TensorType& type) {
    const auto shape = dims(type.shape);
    const auto strides = optional_dims(type.strides);
    return wire::CreateTensorType(m_builder, static_cast<uint8_t>(type.dtype), shape, strides);
  }

  Offset<wire::Node> node(const Node& node) {
    const auto op = m_builder.CreateSharedString(node.op->name.data(), node.op->name.size());
    std::vector<uint32_t> operand_ids;
    for (ValueId id : node.operands) operand_ids.push_back(id == k_none ? k_none : m_wire_ids[id]);
    const auto operands = m_builder.CreateVector(operand_ids);
    const auto attributes = each(node.attributes, [&](const auto& named) { return attribute(named); });
    const auto results = each(node.results, [&](ValueId id) { return type(m_graph.type(id)); });
    return wire::CreateNode(m_builder, op, operands, attributes, results);
  }

  Offset<wire::Attribute> attribute(const Attributes::value_type& named) {
    const auto name = m_builder.CreateSharedString(named.first);
    const auto [type, value] = std::visit([&](const auto& held) { return attribute_value(held); }, named.second);
    return wire::CreateAttribute(m_builder, name, type, value);
  }

  using Held = std::pair<wire::AttributeValue, Offset<void>>;
  Held attribute_value(bool value) {
    return {wire::AttributeValue::Boolean, wire::CreateBoolean(m_builder, value).Union()};
  }
  Held attribute_value(int64_t value) {
    return {wire::AttributeValue::Integer, wire::CreateInteger(m_builder, value).Union()};
  }
  Held attribute_value(double value) {
    m_builder.ForceDefaults(std::signbit(value));  // -0.0 equals the default, which would be read instead of it
    const auto number = wire::CreateNumber(m_builder, value).Union();
    m_builder.ForceDefaults(false);
    return {wire::AttributeValue::Number, number};
  }
  Held attribute_value(const std::string& value) {
    return {wire::AttributeValue::Text, wire::CreateText(m_builder, m_builder.CreateString(value)).Union()};
  }
  Held attribute_value(DType value) {
    const auto number = static_cast<uint8_t>(value);
    return {wire::AttributeValue::ElementType, wire::CreateElementType(m_builder, number).Union()};
  }
  Held attribute_value(const std::vector<int64_t>& values) {
    return {wire::AttributeValue::Integers, wire::CreateIntegers(m_builder, m_builder.CreateVector(values)).Union()};
  }
  Held attribute_value(const Shape& values) {
    return {wire::AttributeValue::Dims, wire::CreateDims(m_builder, dims(values)).Union()};
  }

  Offset<Vector<Offset<flatbuffers::String>>> value_names() {
    std::vector<Offset<flatbuffers::String>> names(m_graph.values().size());
    bool any = false;
    for (ValueId id = 0; id < names.size(); ++id) {
      const std::string& name = m_graph.value(id).name;
      any = any || !name.empty();
      names[m_wire_ids[id]] = m_builder.CreateSharedString(name);
    }
    return any ? m_builder.CreateVector(names) : Offset<Vector<Offset<flatbuffers::String>>>();
  }

  const Graph& m_graph;
  std::vector<uint32_t> m_wire_ids;
  flatbuffers::FlatBufferBuilder m_builder;
};

}  // namespace

std::vector<uint8_t> to_wire(const Graph& graph) { return Writer(graph).run(); }

}  // namespace kiln
