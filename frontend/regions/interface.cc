#include "frontend/regions/interface.h"

#include <algorithm>
#include <map>
#include <unordered_map>

// A region's parameters need an order that two graphs agree on without names. Nodes get hashes in three
// sweeps over the copy: what a node is computed from; then what is computed from it; then the first again
// with what the second knows, so that values read through two uses are told from two values. Results are
// sorted by their producers' hashes. Results that stay alike (two experts of a mixture) are either symmetric,
// then any order gives the same graph, or not told apart, then two equal regions may miss each other, which
// costs a compilation and breaks nothing. The first is marked and the sweeps run again, so that nodes which
// the marked one is connected with are told apart too. Parameters follow by a depth-first walk from the results.
//
// Hashes are taken without attributes first: a layer whose epsilon differs keeps the order of its siblings.

namespace kiln {
namespace {

/// Each mark costs three sweeps. Regions with more results alike than this keep the graph's order for the
/// rest.
constexpr size_t k_most_marks = 64;

struct Output {
  uint32_t index;   // of the producer in the copy
  uint32_t result;  // of the producer's results
  bool operator==(const Output&) const = default;
};

class Interface {
 public:
  Interface(const Wiring& wiring, const Copies& copies, const Places& places)
      : m_wiring(wiring), m_graph(wiring.graph()), m_copies(copies), m_places(places) {
    find_inputs();
    find_outputs();
    sort_outputs();
    order_inputs();
  }

  std::vector<Region> regions() const {
    std::vector<Region> regions;
    for (size_t copy = 0; copy < m_copies.count(); ++copy) {
      Region& region = regions.emplace_back();
      region.nodes = m_copies.nodes[copy];
      for (size_t input : m_input_order) region.inputs.push_back(m_inputs[input][copy]);
      for (const Output& output : m_outputs) region.outputs.push_back(value(copy, output));
      std::vector<uint32_t> position(m_inputs.size(), k_none);
      for (uint32_t i = 0; i < m_input_order.size(); ++i) position[m_input_order[i]] = i;
      for (const std::vector<uint32_t>& slots : m_slot_inputs) {
        for (uint32_t input : slots) region.operand_inputs.push_back(input == k_none ? k_none : position[input]);
      }
    }
    return regions;
  }

 private:
  const Node& node(size_t copy, size_t index) const { return m_graph.node(m_copies.nodes[copy][index]); }
  ValueId value(size_t copy, const Output& output) const { return node(copy, output.index).results[output.result]; }

  /// The index of the operand's producer in the first copy; k_none when outside or absent.
  uint32_t inner_producer(uint32_t index, size_t slot) const {
    const NodeId producer = m_wiring.producer(m_copies.nodes[0][index], slot);
    return producer != k_none && m_places.copy(producer) == 0 ? m_places.index(producer) : k_none;
  }

  /// One input for the operands that read the same value in every copy.
  void find_inputs() {
    std::map<std::vector<ValueId>, uint32_t> known;
    m_slot_inputs.resize(m_copies.size());
    for (uint32_t index = 0; index < m_copies.size(); ++index) {
      const size_t slots = node(0, index).operands.size();
      m_slot_inputs[index].assign(slots, k_none);
      for (size_t slot = 0; slot < slots; ++slot) {
        if (node(0, index).operands[slot] == k_none || inner_producer(index, slot) != k_none) continue;
        std::vector<ValueId> values;
        for (size_t copy = 0; copy < m_copies.count(); ++copy) values.push_back(node(copy, index).operands[slot]);
        const auto [input, is_new] = known.try_emplace(values, static_cast<uint32_t>(m_inputs.size()));
        if (is_new) m_inputs.push_back(std::move(values));
        m_slot_inputs[index][slot] = input->second;
      }
    }
  }

  /// Results that something outside reads, in any copy.
  void find_outputs() {
    std::vector<std::vector<bool>> is_output(m_copies.size());
    for (uint32_t index = 0; index < m_copies.size(); ++index) is_output[index].resize(node(0, index).results.size());
    for (uint32_t copy = 0; copy < m_copies.count(); ++copy) {
      for (uint32_t index = 0; index < m_copies.size(); ++index) {
        for (const Wiring::Use& use : m_wiring.uses(m_copies.nodes[copy][index])) {
          if (m_places.copy(use.user) == copy) continue;
          for (ValueId operand : m_graph.node(use.user).operands) mark_if_inside(operand, copy, is_output);
        }
      }
    }
    for (ValueId output : m_graph.outputs()) {
      const NodeId producer = m_graph.value(output).producer;
      if (producer != k_none && m_places.holds(producer)) mark_if_inside(output, m_places.copy(producer), is_output);
    }
    for (uint32_t index = 0; index < m_copies.size(); ++index) {
      for (uint32_t result = 0; result < is_output[index].size(); ++result) {
        if (is_output[index][result]) m_outputs.push_back({index, result});
      }
    }
  }

  void mark_if_inside(ValueId id, uint32_t copy, std::vector<std::vector<bool>>& is_output) const {
    if (id == k_none) return;
    const Value& value = m_graph.value(id);
    if (value.producer == k_none || m_places.copy(value.producer) != copy) return;
    is_output[m_places.index(value.producer)][value.result_index] = true;
  }

  /// The three sweeps. `labels` by index.
  std::vector<uint64_t> sweep(const std::vector<uint64_t>& labels) const {
    const auto size = static_cast<uint32_t>(m_copies.size());
    std::vector<uint64_t> inputs(m_inputs.size(), 0);
    const std::vector<uint64_t> from_above = sweep_down(labels, inputs);

    std::vector<uint64_t> from_below(size, 0);
    for (const Output& output : m_outputs) from_below[output.index] += mix(1, output.result);
    for (uint32_t index = size; index-- > 0;) {
      from_below[index] = mix(from_above[index], from_below[index]);
      for (size_t slot = 0; slot < m_slot_inputs[index].size(); ++slot) {
        const uint32_t inner = inner_producer(index, slot);
        const uint32_t input = m_slot_inputs[index][slot];
        if (inner == k_none && input == k_none) continue;
        // Users are a set, so they add up. Which result of its producer an input is, is the business of outside.
        if (inner == k_none)
          inputs[input] += mix(slot, from_below[index]);
        else
          from_below[inner] += mix(m_wiring.port(m_copies.nodes[0][index], slot), from_below[index]);
      }
    }
    return sweep_down(from_below, inputs);
  }

  std::vector<uint64_t> sweep_down(const std::vector<uint64_t>& labels, const std::vector<uint64_t>& inputs) const {
    std::vector<uint64_t> hashes = labels;
    for (uint32_t index = 0; index < hashes.size(); ++index) {
      for (size_t slot = 0; slot < m_slot_inputs[index].size(); ++slot) {
        const uint32_t inner = inner_producer(index, slot);
        const uint32_t input = m_slot_inputs[index][slot];
        if (inner != k_none) {
          hashes[index] = mix(hashes[index], mix(hashes[inner], m_wiring.port(m_copies.nodes[0][index], slot)));
        } else {
          hashes[index] = mix(hashes[index], input == k_none ? slot : inputs[input]);
        }
      }
    }
    return hashes;
  }

  void sort_outputs() {
    std::vector<uint64_t> loose, strict;
    for (NodeId id : m_copies.nodes[0]) {
      loose.push_back(m_wiring.loose_label(id));
      strict.push_back(m_wiring.strict_label(id));
    }
    for (size_t marks = 0;; ++marks) {
      const std::vector<uint64_t> first = sweep(loose), second = sweep(strict);
      auto key = [&](const Output& output) {
        return std::tuple(first[output.index], second[output.index], output.result);
      };
      std::ranges::stable_sort(m_outputs, {}, key);
      auto alike = std::ranges::adjacent_find(m_outputs, {}, key);
      if (alike == m_outputs.end() || marks == k_most_marks) return;
      loose[alike->index] = mix(loose[alike->index], marks + 1);
      strict[alike->index] = mix(strict[alike->index], marks + 1);
    }
  }

  /// Orders inputs by a depth-first walk from the outputs over the operands, without recursion.
  void order_inputs() {
    struct Visit {
      uint32_t index;
      size_t next_slot;
    };
    std::vector<bool> entered(m_copies.size()), listed(m_inputs.size());
    std::vector<Visit> stack;
    for (const Output& output : m_outputs) {
      if (!entered[output.index]) stack.push_back({output.index, 0});
      entered[output.index] = true;
      while (!stack.empty()) {
        Visit& visit = stack.back();
        if (visit.next_slot == m_slot_inputs[visit.index].size()) {
          stack.pop_back();
          continue;
        }
        const size_t slot = visit.next_slot++;
        const uint32_t input = m_slot_inputs[visit.index][slot];
        if (input != k_none && !listed[input]) {
          listed[input] = true;
          m_input_order.push_back(input);
        }
        const uint32_t inner = inner_producer(visit.index, slot);
        if (inner == k_none || entered[inner]) continue;
        entered[inner] = true;
        stack.push_back({inner, 0});
      }
    }
    for (uint32_t input = 0; input < listed.size(); ++input) {
      if (!listed[input]) m_input_order.push_back(input);  // read by dead nodes only
    }
  }

  const Wiring& m_wiring;
  const Graph& m_graph;
  const Copies& m_copies;
  const Places& m_places;
  std::vector<std::vector<ValueId>> m_inputs;        // by input, then by copy
  std::vector<std::vector<uint32_t>> m_slot_inputs;  // by index, then by operand: input or k_none
  std::vector<uint32_t> m_input_order;
  std::vector<Output> m_outputs;
};

}  // namespace

std::vector<Region> make_regions(const Wiring& wiring, const Copies& copies, Places& places) {
  // Indices in the first copy's topological order, which the others share.
  std::vector<uint32_t> order(copies.size());
  for (uint32_t index = 0; index < order.size(); ++index) order[index] = index;
  std::ranges::sort(order, {}, [&](uint32_t index) { return copies.nodes[0][index]; });
  Copies sorted;
  for (const std::vector<NodeId>& copy : copies.nodes) {
    std::vector<NodeId>& nodes = sorted.nodes.emplace_back();
    for (uint32_t index : order) nodes.push_back(copy[index]);
  }
  places.set(sorted);
  std::vector<Region> regions = Interface(wiring, sorted, places).regions();
  places.clear(sorted);
  return regions;
}

}  // namespace kiln
