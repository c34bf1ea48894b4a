// Prints every sample of samples.cc with what the reference makes of it, one JSON object per line, for
// torch_compare.py: {"op", "attributes", "operands": [tensor or null], "results": [tensor]}, where a tensor is
// {"dtype", "dims", "values"}; NaN and infinities are the strings "nan", "inf" and "-inf".

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "frontend/ops/element_evaluator.h"
#include "samples.h"

namespace kiln {
namespace {

using nlohmann::json;

json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

json dims_of(const Shape& shape) {
  json dims = json::array();
  for (const Dim& dim : shape) dims.push_back(dim.constant());
  return dims;
}

json describe(const Tensor& tensor) {
  json values = json::array();
  for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(number(tensor.at(i)));
  return {{"dtype", to_string(tensor.dtype)}, {"dims", tensor.dims}, {"values", values}};
}

json describe(const Attributes& attributes) {
  json object = json::object();
  for (const auto& [name, value] : attributes) {
    std::visit(
        [&, &key = name](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, DType>) {
            object[key] = to_string(v);
          } else if constexpr (std::is_same_v<T, Shape>) {
            object[key] = dims_of(v);
          } else {
            object[key] = v;
          }
        },
        value);
  }
  return object;
}

int print_samples() {
  std::vector<Sample> samples = op_samples();
  for (Sample& sample : special_samples()) samples.push_back(std::move(sample));
  for (const Sample& sample : samples) {
    const Graph graph = graph_of(sample);
    const auto results = evaluate_exact(graph, inputs_of(sample));
    if (!results.ok()) {
      std::fprintf(stderr, "%s: %s\n", sample.op.c_str(), results.status().message().c_str());
      return 1;
    }
    json line = {{"op", sample.op}, {"attributes", describe(graph.nodes().front().attributes)}};
    line["operands"] = json::array();
    for (const auto& operand : sample.operands) line["operands"].push_back(operand ? describe(*operand) : json());
    line["results"] = json::array();
    for (size_t r = 0; r < results->size(); ++r) {
      const TensorType& type = graph.type(graph.outputs()[r]);
      json values = json::array();
      for (const double value : (*results)[r]) values.push_back(number(value));
      line["results"].push_back({{"dtype", to_string(type.dtype)}, {"dims", dims_of(type.shape)}, {"values", values}});
    }
    std::puts(line.dump().c_str());
  }
  return 0;
}

}  // namespace
}  // namespace kiln

int main() { return kiln::print_samples(); }
