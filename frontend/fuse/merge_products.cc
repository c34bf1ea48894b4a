/// x a, x b and x c are x [a b c], which reads x once and is one launch; a c, b c and d c are [a; b; d] c.
///
/// One set of products is merged after another. A set's products come where its first was, and whatever they read comes
/// before: so none of them may need the result of another.
#include "frontend/fuse/merge_products.h"

#include <algorithm>
#include <cassert>
#include <optional>

#include "frontend/infer/builder.h"
#include "frontend/ir/graph_copy.h"
#include "frontend/ops/attributes.h"
#include "frontend/ops/op.h"

namespace kiln {

namespace {

/// Products of one graph, ascending, and which of their two operands they share.
struct Siblings {
  std::vector<NodeId> products;
  size_t shared = 0;
};

class SiblingFinder {
 public:
  explicit SiblingFinder(const Graph& graph) : m_graph(graph) {}

  /// The first product that has any, with all of its siblings.
  std::optional<Siblings> find() const {
    std::vector<NodeId> products;
    for (NodeId id = 0; id < m_graph.nodes().size(); ++id) {
      if (m_graph.node(id).op->name == "matmul") products.push_back(id);
    }
    for (size_t first = 0; first < products.size(); ++first) {
      for (const size_t shared : {0, 1}) {
        Siblings found{{products[first]}, shared};
        for (size_t other = first + 1; other < products.size(); ++other) {
          if (fits(found, products[other])) found.products.push_back(products[other]);
        }
        if (found.products.size() > 1) return found;
      }
    }
    return std::nullopt;
  }

 private:
  bool fits(const Siblings& siblings, NodeId product) const {
    const Node &first = m_graph.node(siblings.products[0]), &other = m_graph.node(product);
    const size_t apart = 1 - siblings.shared;
    return first.attributes == other.attributes &&
           is_same(first.operands[siblings.shared], other.operands[siblings.shared]) &&
           lie_side_by_side(first.operands[apart], other.operands[apart], apart) && !needs(product, siblings.products);
  }

  /// Whether both are the same value, or the same views of it.
  bool is_same(ValueId a, ValueId b) const {
    while (a != b) {
      if (m_graph.value(a).producer == k_none || m_graph.value(b).producer == k_none) return false;
      const Node &of_a = m_graph.node(m_graph.value(a).producer), &of_b = m_graph.node(m_graph.value(b).producer);
      if (of_a.op != of_b.op || of_a.op->kind != OpKind::view || of_a.attributes != of_b.attributes) return false;
      a = of_a.operands[0];
      b = of_b.operands[0];
    }
    return true;
  }

  /// Whether they differ in nothing but rows, as left operands, or columns.
  bool lie_side_by_side(ValueId a, ValueId b, size_t side) const {
    Shape of_a = m_graph.type(a).shape, of_b = m_graph.type(b).shape;
    if (of_a.size() != of_b.size()) return false;
    const size_t dim = of_a.size() - 2 + side;
    of_b[dim] = of_a[dim];
    return of_a == of_b;
  }

  bool needs(NodeId node, const std::vector<NodeId>& others) const {
    std::vector<bool> is_seen(node + 1, false);
    std::vector<NodeId> pending{node};
    while (!pending.empty()) {
      const NodeId now = pending.back();
      pending.pop_back();
      for (const ValueId operand : m_graph.node(now).operands) {
        const NodeId producer = operand == k_none ? k_none : m_graph.value(operand).producer;
        if (producer == k_none || is_seen[producer]) continue;
        if (std::ranges::find(others, producer) != others.end()) return true;
        is_seen[producer] = true;
        pending.push_back(producer);
      }
    }
    return false;
  }

  const Graph& m_graph;
};

/// Writes the graph anew with one set of siblings merged.
class Merger {
 public:
  Merger(const Graph& graph, const Siblings& siblings)
      : m_graph(graph), m_siblings(siblings), m_copy(graph), m_builder(m_copy.graph()) {}

  Graph run(std::vector<ValueId>& values) {
    for (NodeId id = 0; id < m_graph.nodes().size(); ++id) write(id);
    m_copy.carry(values);
    return m_copy.finish();
  }

 private:
  bool is_written(NodeId id) const { return m_copy[m_graph.node(id).results[0]] != k_none; }
  bool is_sibling(NodeId id) const { return std::ranges::find(m_siblings.products, id) != m_siblings.products.end(); }

  /// The node, after what it reads.
  void write(NodeId id) {
    std::vector<NodeId> pending{id};
    while (!pending.empty()) {
      const NodeId now = pending.back();
      const size_t before = pending.size();
      if (!is_written(now)) add_missing(now, pending);
      if (pending.size() > before) continue;
      pending.pop_back();
      if (!is_written(now)) is_sibling(now) ? write_merged() : m_copy.add(m_graph.node(now));
    }
  }

  /// What has to be written before the node.
  void add_missing(NodeId id, std::vector<NodeId>& pending) const {
    for (const NodeId product : is_sibling(id) ? m_siblings.products : std::vector<NodeId>{id}) {
      for (const ValueId operand : m_graph.node(product).operands) {
        if (operand != k_none && m_copy[operand] == k_none) pending.push_back(m_graph.value(operand).producer);
      }
    }
  }

  void write_merged() {
    const size_t apart = 1 - m_siblings.shared;
    const ValueId shared = m_copy[m_graph.node(m_siblings.products[0]).operands[m_siblings.shared]];
    std::vector<ValueId> parts;
    for (const NodeId product : m_siblings.products) parts.push_back(m_copy[m_graph.node(product).operands[apart]]);
    // Left operands have rows of their own, right ones columns, and so have their results.
    const auto own_dim = [&](ValueId value) { return m_builder.shape(value).size() - 2 + apart; };
    const ValueId whole = joined(parts, own_dim(parts[0]));
    const auto [left, right] = apart == 1 ? std::pair{shared, whole} : std::pair{whole, shared};
    const ValueId product = m_builder.op("matmul", {left, right}, m_graph.node(m_siblings.products[0]).attributes);
    int64_t at = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t end = at + m_builder.shape(parts[i])[own_dim(parts[i])].constant();
      m_copy.bind(m_graph.node(m_siblings.products[i]).results[0],
                  m_builder.slice(product, own_dim(product), Dim(at), Dim(end)));
      at = end;
    }
    assert(m_builder.status().ok() && "products that fit one another make a product");
  }

  /// The parts side by side. Where all are permuted alike that comes after, so that they are copied as they lie.
  ValueId joined(const std::vector<ValueId>& parts, size_t dim) {
    std::vector<const Node*> makers;
    for (const ValueId part : parts) {
      const NodeId producer = m_builder.graph().value(part).producer;
      if (producer != k_none) makers.push_back(&m_builder.graph().node(producer));
    }
    const bool are_permuted_alike =
        makers.size() == parts.size() && std::ranges::all_of(makers, [&](const Node* maker) {
          return maker->op->name == "permute" && maker->attributes == makers[0]->attributes;
        });
    if (!are_permuted_alike) return m_builder.ops("concat", parts, {{"dim", static_cast<int64_t>(dim)}}).front();
    std::vector<ValueId> permuted;
    for (const Node* maker : makers) permuted.push_back(maker->operands[0]);
    const std::vector<int64_t> dims = integers_of(makers[0]->attributes, "dims");
    return m_builder.permute(joined(permuted, static_cast<size_t>(dims[dim])), dims);
  }

  const Graph& m_graph;
  const Siblings& m_siblings;
  GraphCopy m_copy;
  GraphBuilder m_builder;
};

}  // namespace

bool has_products_to_merge(const Graph& graph) { return SiblingFinder(graph).find().has_value(); }

Graph merge_products(const Graph& graph, std::vector<ValueId>& values) {
  Graph result = graph;
  while (const std::optional<Siblings> siblings = SiblingFinder(result).find()) {
    result = Merger(result, *siblings).run(values);
  }
  return result;
}

}  // namespace kiln
