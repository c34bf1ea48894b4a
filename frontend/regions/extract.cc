#include <algorithm>
#include <unordered_map>

#include "frontend/canonical/canonical.h"
#include "frontend/regions/extract.h"

namespace kiln {
namespace {

/// Calls `visit` with each dim that the region's types and attributes are made of, in an order that
/// corresponds across the regions of a class.
template <typename Visit>
void visit_dims(const Graph& graph, const Region& region, Visit&& visit) {
  auto visit_type = [&](const TensorType& type) {
    for (const Dim& dim : type.shape) visit(dim);
    for (const Dim& dim : type.strides) visit(dim);
  };
  for (ValueId input : region.inputs) visit_type(graph.type(input));
  for (NodeId id : region.nodes) {
    for (const auto& [name, attribute] : graph.node(id).attributes) {
      if (const auto* shape = std::get_if<Shape>(&attribute)) std::ranges::for_each(*shape, visit);
    }
    for (ValueId result : graph.node(id).results) visit_type(graph.type(result));
  }
}

/// Rewrites dims from the graph's symbols to the region's.
class Renumbering {
 public:
  Renumbering(const Graph& graph, const Region& region) : m_new_ids(graph.symbols().size(), k_none) {
    for (SymbolId id = 0; id < region.symbols.size(); ++id) m_new_ids[region.symbols[id]] = id;
  }

  bool knows(const Dim& dim) const {
    return std::ranges::all_of(dim.terms(), [&](const Dim::Term& term) {
      return std::ranges::all_of(term.symbols, [&](SymbolId id) { return m_new_ids[id] != k_none; });
    });
  }
  Dim operator()(const Dim& dim) const {
    if (dim.is_constant()) return dim;
    std::vector<Dim::Term> terms = dim.terms();
    for (Dim::Term& term : terms) {
      for (SymbolId& id : term.symbols) id = m_new_ids[id];
    }
    return Dim::from_terms(std::move(terms));
  }
  std::vector<Dim> operator()(std::vector<Dim> dims) const {
    for (Dim& dim : dims) dim = (*this)(dim);
    return dims;
  }
  TensorType operator()(const TensorType& type) const {
    return {type.dtype, (*this)(type.shape), (*this)(type.strides)};
  }
  Attributes operator()(Attributes attributes) const {
    for (auto& [name, attribute] : attributes) {
      if (auto* shape = std::get_if<Shape>(&attribute)) *shape = (*this)(std::move(*shape));
    }
    return attributes;
  }

 private:
  std::vector<SymbolId> m_new_ids;
};

}  // namespace

std::vector<SymbolId> symbols_of(const Graph& graph, const Region& region) {
  std::vector<SymbolId> symbols;
  std::vector<bool> seen(graph.symbols().size());
  if (seen.empty()) return symbols;
  visit_dims(graph, region, [&](const Dim& dim) {
    for (const Dim::Term& term : dim.terms()) {
      for (SymbolId id : term.symbols) {
        if (seen[id]) continue;
        seen[id] = true;
        symbols.push_back(id);
      }
    }
  });
  return symbols;
}

Canonical extract(const Graph& graph, const Region& region) {
  const Renumbering renumber(graph, region);
  Graph part;
  for (size_t i = 0; i < region.symbols.size(); ++i) part.add_symbol({});
  for (const Guard& guard : graph.guards()) {
    if (renumber.knows(guard.dim)) part.add_guard({renumber(guard.dim), guard.relation, guard.modulus});
  }
  std::vector<ValueId> inputs;
  for (ValueId input : region.inputs) inputs.push_back(part.add_input(renumber(graph.type(input))));

  std::unordered_map<ValueId, ValueId> inner;
  auto operand_input = region.operand_inputs.begin();
  for (NodeId id : region.nodes) {
    const Node& node = graph.node(id);
    std::vector<ValueId> operands;
    for (ValueId operand : node.operands) {
      const uint32_t input = *operand_input++;
      if (operand == k_none)
        operands.push_back(k_none);
      else
        operands.push_back(input == k_none ? inner.at(operand) : inputs[input]);
    }
    std::vector<TensorType> types;
    for (ValueId result : node.results)
      types.push_back(renumber({graph.type(result).dtype, graph.type(result).shape, {}}));
    const NodeId added = part.add_node(node.op, std::move(operands), renumber(node.attributes), std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) inner[node.results[i]] = part.node(added).results[i];
  }

  std::vector<ValueId> outputs;
  for (ValueId output : region.outputs) outputs.push_back(inner.at(output));
  part.set_outputs(std::move(outputs));
  for (size_t i = 0; i < region.outputs.size(); ++i) {
    part.set_output_strides(i, renumber(graph.type(region.outputs[i]).strides));
  }
  return canonicalise(part);
}

}  // namespace kiln
