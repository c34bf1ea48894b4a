#include "client/nearest/graph_difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "frontend/ops/op.h"

namespace kiln {
namespace {

struct AttributeText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::to_string(value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(DType value) const { return std::string(to_string(value)); }
  std::string operator()(const std::vector<int64_t>& values) const {
    return fmt::format("[{}]", fmt::join(values, ", "));
  }
  std::string operator()(const Shape& shape) const {
    std::vector<std::string> dims;
    for (const Dim& dim : shape) dims.push_back(dim.to_string());
    return fmt::format("[{}]", fmt::join(dims, ", "));
  }
};

std::string text_of(const Attribute* attribute) {
  return attribute == nullptr ? "absent" : std::visit(AttributeText(), *attribute);
}

class Comparison {
 public:
  Comparison(const Graph& ours, const Graph& theirs) : m_ours(ours), m_theirs(theirs) {}

  std::vector<std::string> run() {
    compare_inputs();
    if (have_equal_ops()) {
      for (NodeId i = 0; i < m_ours.nodes().size(); ++i) compare_node(i);
    } else {
      count_ops();
    }
    compare_outputs();
    return std::move(m_found);
  }

 private:
  void compare_inputs() {
    count("inputs", m_ours.inputs().size(), m_theirs.inputs().size());
    for (size_t i = 0; i < std::min(m_ours.inputs().size(), m_theirs.inputs().size()); ++i) {
      tell(fmt::format("input {}", i), m_ours.type(m_ours.inputs()[i]).to_string(m_ours.symbols()),
           m_theirs.type(m_theirs.inputs()[i]).to_string(m_theirs.symbols()));
    }
  }

  bool have_equal_ops() const { return std::ranges::equal(m_ours.nodes(), m_theirs.nodes(), {}, &Node::op, &Node::op); }

  void compare_node(NodeId id) {
    const Node &ours = m_ours.node(id), &theirs = m_theirs.node(id);
    const std::string where = fmt::format("node {}, {}", id, ours.op->name);
    for (const auto& [name, value] : ours.attributes) {
      tell(fmt::format("{}: {}", where, name), text_of(&value), text_of(find_attribute(theirs.attributes, name)), " ");
    }
    for (const auto& [name, value] : theirs.attributes) {
      if (find_attribute(ours.attributes, name) == nullptr)
        tell(fmt::format("{}: {}", where, name), "absent", text_of(&value), " ");
    }
    if (ours.operands != theirs.operands) m_found.push_back(where + ": reads other values");
  }

  void count_ops() {
    std::map<std::string_view, std::pair<size_t, size_t>> counts;
    for (const Node& node : m_ours.nodes()) ++counts[node.op->name].first;
    for (const Node& node : m_theirs.nodes()) ++counts[node.op->name].second;
    const size_t before = m_found.size();
    for (const auto& [name, both] : counts) count(name, both.first, both.second);
    if (m_found.size() == before) m_found.push_back("the same ops, in another order");
  }

  void compare_outputs() {
    count("outputs", m_ours.outputs().size(), m_theirs.outputs().size());
    for (size_t i = 0; i < std::min(m_ours.outputs().size(), m_theirs.outputs().size()); ++i) {
      TensorType ours = m_ours.type(m_ours.outputs()[i]), theirs = m_theirs.type(m_theirs.outputs()[i]);
      ours.strides = m_ours.output_strides()[i];
      theirs.strides = m_theirs.output_strides()[i];
      tell(fmt::format("output {}", i), ours.to_string(m_ours.symbols()), theirs.to_string(m_theirs.symbols()));
    }
  }

  void tell(const std::string& what, const std::string& ours, const std::string& theirs, const char* between = ": ") {
    if (ours != theirs) m_found.push_back(fmt::format("{}{}{} was {}", what, between, ours, theirs));
  }
  void count(std::string_view what, size_t ours, size_t theirs) {
    if (ours != theirs) m_found.push_back(fmt::format("{} {}, {} there", ours, what, theirs));
  }

  const Graph& m_ours;
  const Graph& m_theirs;
  std::vector<std::string> m_found;
};

}  // namespace

std::vector<std::string> graph_differences(const Graph& ours, const Graph& theirs) {
  return Comparison(ours, theirs).run();
}

}  // namespace kiln
