#include <limits>

#include "base/aligned_elements.h"
#include "base/flatbuffer_values.h"
#include "base/limits.h"
#include "frontend/infer/builder.h"
#include "frontend/ir/validate.h"
#include "frontend/ops/op.h"
#include "frontend/wire/graph_generated.h"
#include "frontend/wire/wire.h"

// The verifier proves that every offset lies inside the bytes; it proves nothing about what they say.
// FlatBuffers leave absent vectors null, which here means empty.

namespace kiln {
namespace {

/// Nested at most graph, node, attribute, dims, dim, term.
constexpr uint32_t k_verifier_depth = 16;
/// A table is never smaller than 4 bytes, but may be referred to many times.
constexpr uint32_t k_verifier_tables = 16'000'000;

Status exhausted(std::string_view what, size_t count, size_t limit) {
  return error(StatusCode::resource_exhausted, "{} {}, the limit is {}", count, what, limit);
}

Expected<Dim> read_dim(const wire::Dim* from, size_t symbol_count) {
  if (from == nullptr || from->terms() == nullptr) return Dim(0);
  if (from->terms()->size() > Dim::k_dim_terms)
    return exhausted("terms in a dim", from->terms()->size(), Dim::k_dim_terms);
  std::vector<Dim::Term> terms;
  for (const wire::Term* term : *from->terms()) {
    Dim::Term& read = terms.emplace_back();
    read.coefficient = term->coefficient();
    if (size_of_list(term->symbols()) > Dim::k_dim_degree) {
      return exhausted("symbols in a term", term->symbols()->size(), Dim::k_dim_degree);
    }
    if (term->symbols() != nullptr) read.symbols.assign(term->symbols()->begin(), term->symbols()->end());
  }
  Dim dim = Dim::from_terms(std::move(terms));
  KILN_RETURN_IF_ERROR(validate(dim, symbol_count));
  return dim;
}

using WireDims = flatbuffers::Vector<flatbuffers::Offset<wire::Dim>>;

Expected<std::vector<Dim>> read_dims(const WireDims* from, size_t symbol_count) {
  std::vector<Dim> dims;
  if (from == nullptr) return dims;
  if (from->size() > limits::k_node_operands) return exhausted("dims", from->size(), limits::k_node_operands);
  for (const wire::Dim* item : *from) {
    KILN_ASSIGN_OR_RETURN(Dim dim, read_dim(item, symbol_count));
    dims.push_back(std::move(dim));
  }
  return dims;
}

Expected<DType> read_dtype(uint8_t number) {
  if (number >= k_dtype_count) return invalid_argument("dtype is {}, expected below {}", number, k_dtype_count);
  return static_cast<DType>(number);
}

Expected<TensorType> read_type(const wire::TensorType* from, size_t symbol_count) {
  TensorType type;
  KILN_ASSIGN_OR_RETURN(type.dtype, read_dtype(from->dtype()));
  KILN_ASSIGN_OR_RETURN(type.shape, read_dims(from->shape(), symbol_count));
  KILN_ASSIGN_OR_RETURN(type.strides, read_dims(from->strides(), symbol_count));
  KILN_RETURN_IF_ERROR(validate(type, symbol_count));
  return type;
}

class Reader {
 public:
  explicit Reader(const wire::Graph& from) : m_from(from) {}

  Expected<Graph> run() {
    KILN_RETURN_IF_ERROR(check_sizes());
    KILN_RETURN_IF_ERROR(read_head());
    if (m_from.nodes() != nullptr) {
      for (const wire::Node* node : *m_from.nodes()) KILN_RETURN_IF_ERROR(read_node(*node));
    }
    KILN_RETURN_IF_ERROR(read_outputs());
    KILN_RETURN_IF_ERROR(read_names());
    return std::move(m_graph);
  }

 private:
  size_t symbol_count() const { return m_graph.symbols().size(); }

  Status check_sizes() const {
    auto check = [](std::string_view what, size_t count, size_t limit) {
      return count > limit ? exhausted(what, count, limit) : Status();
    };
    KILN_RETURN_IF_ERROR(check("symbols", size_of_list(m_from.symbols()), limits::k_symbols));
    KILN_RETURN_IF_ERROR(check("guards", size_of_list(m_from.guards()), limits::k_guards));
    KILN_RETURN_IF_ERROR(check("inputs", size_of_list(m_from.inputs()), limits::k_graph_values));
    KILN_RETURN_IF_ERROR(check("nodes", size_of_list(m_from.nodes()), limits::k_graph_nodes));
    return check("outputs", size_of_list(m_from.outputs()), limits::k_graph_values);
  }

  static Expected<std::string> read_name(const flatbuffers::String* from) {
    if (from == nullptr) return std::string();
    if (from->size() > limits::k_name_bytes) return exhausted("bytes in a name", from->size(), limits::k_name_bytes);
    return from->str();
  }

  Status read_head() {
    if (m_from.symbols() != nullptr) {
      for (const flatbuffers::String* symbol : *m_from.symbols()) {
        KILN_ASSIGN_OR_RETURN(std::string name, read_name(symbol));
        m_graph.add_symbol(std::move(name));
      }
    }
    if (m_from.guards() != nullptr) {
      for (const wire::Guard* guard : *m_from.guards()) KILN_RETURN_IF_ERROR(read_guard(*guard));
    }
    if (m_from.inputs() == nullptr) return {};
    for (const wire::TensorType* input : *m_from.inputs()) {
      Expected<TensorType> type = read_type(input, symbol_count());
      if (!type.ok()) return type.status().with_context(fmt::format("input {}", m_graph.inputs().size()));
      m_graph.add_input(std::move(*type));
    }
    return {};
  }

  Status read_guard(const wire::Guard& from) {
    Guard guard;
    KILN_ASSIGN_OR_RETURN(guard.dim, read_dim(from.dim(), symbol_count()));
    const auto relation = static_cast<uint8_t>(from.relation());
    if (relation > static_cast<uint8_t>(Guard::Relation::divisible)) {
      return invalid_argument("guard {} has relation {}", m_graph.guards().size(), relation);
    }
    guard.relation = static_cast<Guard::Relation>(relation);
    guard.modulus = from.modulus();
    const bool divisible = guard.relation == Guard::Relation::divisible;
    if (divisible ? guard.modulus < 1 : guard.modulus != 0) {
      return invalid_argument("guard {} has modulus {}", m_graph.guards().size(), guard.modulus);
    }
    m_graph.add_guard(std::move(guard));
    return {};
  }

  Status read_node(const wire::Node& from) {
    const size_t index = m_graph.nodes().size();
    Status status = add_node(from);
    return status.ok() ? status : status.with_context(fmt::format("node {}", index));
  }

  Status add_node(const wire::Node& from) {
    const size_t operand_count = size_of_list(from.operands());
    if (operand_count > limits::k_node_operands) {
      return exhausted("operands", operand_count, limits::k_node_operands);
    }
    std::vector<ValueId> operands;
    if (from.operands() != nullptr) operands.assign(from.operands()->begin(), from.operands()->end());
    for (ValueId operand : operands) {
      if (operand == k_none || operand < m_graph.values().size()) continue;
      return invalid_argument("operand is value {}, only {} are defined before it", operand, m_graph.values().size());
    }
    KILN_ASSIGN_OR_RETURN(Attributes attributes, read_attributes(from));
    KILN_ASSIGN_OR_RETURN(std::vector<ValueId> results,
                          m_builder.add(from.op()->string_view(), operands, std::move(attributes)));
    if (m_graph.values().size() > limits::k_graph_values) {
      return exhausted("values", m_graph.values().size(), limits::k_graph_values);
    }
    return check_results(from, results);
  }

  Status check_results(const wire::Node& from, const std::vector<ValueId>& results) const {
    if (size_of_list(from.results()) != results.size()) {
      return invalid_argument("{} has {} results, expected {}", from.op()->string_view(), size_of_list(from.results()),
                              results.size());
    }
    for (uint32_t i = 0; i < results.size(); ++i) {
      KILN_ASSIGN_OR_RETURN(TensorType claimed, read_type(from.results()->Get(i), symbol_count()));
      if (claimed == m_graph.type(results[i])) continue;
      return invalid_argument("{}: result {} is said to be {}, inferred {}", from.op()->string_view(), i,
                              claimed.to_string(), m_graph.type(results[i]).to_string());
    }
    return {};
  }

  Expected<Attributes> read_attributes(const wire::Node& from) const {
    Attributes attributes;
    if (from.attributes() == nullptr) return attributes;
    constexpr size_t k_most_attributes = 64;  // no op has a quarter of that
    if (from.attributes()->size() > k_most_attributes) {
      return exhausted("attributes", from.attributes()->size(), k_most_attributes);
    }
    for (const wire::Attribute* named : *from.attributes()) {
      KILN_ASSIGN_OR_RETURN(std::string name, read_name(named->name()));
      Expected<Attribute> value = read_attribute(*named);
      if (!value.ok()) return value.status().with_context(name);
      attributes.emplace_back(std::move(name), std::move(*value));
    }
    return attributes;
  }

  Expected<Attribute> read_attribute(const wire::Attribute& from) const {
    switch (from.value_type()) {
      case wire::AttributeValue::Boolean:
        return Attribute(from.value_as_Boolean()->value());
      case wire::AttributeValue::Integer:
        return Attribute(from.value_as_Integer()->value());
      case wire::AttributeValue::Number:
        return Attribute(from.value_as_Number()->value());
      case wire::AttributeValue::Text: {
        KILN_ASSIGN_OR_RETURN(std::string text, read_name(from.value_as_Text()->value()));
        return Attribute(std::move(text));
      }
      case wire::AttributeValue::ElementType: {
        KILN_ASSIGN_OR_RETURN(DType dtype, read_dtype(from.value_as_ElementType()->value()));
        return Attribute(dtype);
      }
      case wire::AttributeValue::Integers: {
        const auto* values = from.value_as_Integers()->values();
        if (size_of_list(values) > limits::k_node_operands) {
          return exhausted("integers", values->size(), limits::k_node_operands);
        }
        if (values == nullptr) return Attribute(std::vector<int64_t>());
        if (!has_aligned_elements(values)) {
          return error(StatusCode::data_loss, "{} integers are not aligned", values->size());
        }
        return Attribute(std::vector<int64_t>(values->begin(), values->end()));
      }
      case wire::AttributeValue::Dims: {
        KILN_ASSIGN_OR_RETURN(Shape dims, read_dims(from.value_as_Dims()->values(), symbol_count()));
        return Attribute(std::move(dims));
      }
      case wire::AttributeValue::NONE:
        break;
    }
    return invalid_argument("attribute has the unknown type {}", static_cast<int>(from.value_type()));
  }

  Status read_outputs() {
    std::vector<ValueId> outputs;
    std::vector<std::vector<Dim>> strides;
    if (m_from.outputs() == nullptr) return {};
    for (const wire::Output* output : *m_from.outputs()) {
      if (output->value() >= m_graph.values().size()) {
        return invalid_argument("output {} is value {}, the graph has {}", outputs.size(), output->value(),
                                m_graph.values().size());
      }
      outputs.push_back(output->value());
      KILN_ASSIGN_OR_RETURN(std::vector<Dim> read, read_dims(output->strides(), symbol_count()));
      KILN_RETURN_IF_ERROR(validate_strides(read, m_graph.type(output->value()), symbol_count()));
      strides.push_back(std::move(read));
    }
    m_graph.set_outputs(std::move(outputs));
    for (size_t i = 0; i < strides.size(); ++i) m_graph.set_output_strides(i, std::move(strides[i]));
    return {};
  }

  Status read_names() {
    if (m_from.names() == nullptr) return {};
    if (m_from.names()->size() != m_graph.values().size()) {
      return invalid_argument("{} names for {} values", m_from.names()->size(), m_graph.values().size());
    }
    for (ValueId id = 0; id < m_graph.values().size(); ++id) {
      KILN_ASSIGN_OR_RETURN(std::string name, read_name(m_from.names()->Get(id)));
      m_graph.set_name(id, std::move(name));
    }
    return {};
  }

  const wire::Graph& m_from;
  Graph m_graph;
  GraphBuilder m_builder{m_graph};
};

}  // namespace

Expected<Graph> from_wire(std::span<const uint8_t> bytes) {
  if (bytes.size() > limits::k_frame_bytes) return exhausted("bytes", bytes.size(), limits::k_frame_bytes);
  std::vector<uint64_t> aligned;
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint64_t) != 0) {
    aligned.resize(bytes.size() / sizeof(uint64_t) + 1);
    std::memcpy(aligned.data(), bytes.data(), bytes.size());
    bytes = {reinterpret_cast<const uint8_t*>(aligned.data()), bytes.size()};
  }
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), k_verifier_depth, k_verifier_tables);
  if (!wire::VerifyGraphBuffer(verifier)) {
    return error(StatusCode::data_loss, "{} bytes are no graph: the verifier rejects them", bytes.size());
  }
  const wire::Graph& graph = *wire::GetGraph(bytes.data());
  if (graph.version() != k_wire_graph_version) {
    return error(StatusCode::unimplemented, "graph has wire version {}, expected {}", graph.version(),
                 k_wire_graph_version);
  }
  return Reader(graph).run();
}

}  // namespace kiln
