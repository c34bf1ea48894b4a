#include <bit>
#include <cmath>
#include <limits>

#include "frontend/canonical/canonical.h"
#include "frontend/ops/op.h"

namespace kiln {
namespace {

/// Bump when the bytes of a graph change: every key changes with them.
constexpr uint32_t k_canonical_version = 1;

void append_dim(ByteWriter& bytes, const Dim& dim) {
  bytes.write(static_cast<uint32_t>(dim.terms().size()));
  for (const Dim::Term& term : dim.terms()) {
    bytes.write(term.symbols);
    bytes.write(term.coefficient);
  }
}

void append_dims(ByteWriter& bytes, const std::vector<Dim>& dims) {
  bytes.write(static_cast<uint32_t>(dims.size()));
  for (const Dim& dim : dims) append_dim(bytes, dim);
}

void append_value(ByteWriter& bytes, bool value) { bytes.write(static_cast<uint8_t>(value)); }
void append_value(ByteWriter& bytes, int64_t value) { bytes.write(value); }
void append_value(ByteWriter& bytes, double value) {
  // All NaN behave alike here; zeros do not.
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  bytes.write(std::bit_cast<uint64_t>(value));
}
void append_value(ByteWriter& bytes, const std::string& value) { bytes.write(std::string_view(value)); }
void append_value(ByteWriter& bytes, DType value) { bytes.write(value); }
void append_value(ByteWriter& bytes, const std::vector<int64_t>& values) { bytes.write(values); }
void append_value(ByteWriter& bytes, const Shape& shape) { append_dims(bytes, shape); }

}  // namespace

void append_type(ByteWriter& bytes, const TensorType& type) {
  bytes.write(type.dtype);
  append_dims(bytes, type.shape);
  append_dims(bytes, type.strides);
}

void append_attributes(ByteWriter& bytes, const Attributes& attributes) {
  bytes.write(static_cast<uint32_t>(attributes.size()));
  for (const auto& [name, attribute] : attributes) {
    bytes.write(std::string_view(name));
    bytes.write(static_cast<uint8_t>(attribute.index()));
    std::visit([&](const auto& value) { append_value(bytes, value); }, attribute);
  }
}

std::vector<uint8_t> canonical_bytes(const Graph& graph) {
  ByteWriter bytes;
  bytes.write(k_canonical_version);
  bytes.write(static_cast<uint32_t>(graph.symbols().size()));
  bytes.write(static_cast<uint32_t>(graph.guards().size()));
  for (const Guard& guard : graph.guards()) {
    append_dim(bytes, guard.dim);
    bytes.write(guard.relation);
    bytes.write(guard.modulus);
  }
  bytes.write(static_cast<uint32_t>(graph.inputs().size()));
  for (ValueId input : graph.inputs()) {
    bytes.write(input);
    append_type(bytes, graph.type(input));
  }
  bytes.write(static_cast<uint32_t>(graph.nodes().size()));
  for (const Node& node : graph.nodes()) {
    bytes.write(node.op->name);
    bytes.write(node.operands);
    append_attributes(bytes, node.attributes);
    bytes.write(node.results);
    for (ValueId result : node.results) append_type(bytes, graph.type(result));
  }
  bytes.write(graph.outputs());
  for (const std::vector<Dim>& strides : graph.output_strides()) append_dims(bytes, strides);
  return bytes.take();
}

}  // namespace kiln
