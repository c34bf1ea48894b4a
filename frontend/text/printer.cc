#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <unordered_set>

#include "base/limits.h"
#include "frontend/ops/op.h"
#include "frontend/text/lexer.h"
#include "frontend/text/text.h"

namespace kiln {
namespace {

/// Longer parameter lists are printed one input to a line.
constexpr size_t k_line_chars = 110;

std::string escaped(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      quoted += '\\', quoted += c;
    else if (c == '\n')
      quoted += "\\n";
    else if (c == '\t')
      quoted += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      quoted += c;
  }
  return quoted + '"';
}

/// The shortest digits that read back as the same double, never looking like an integer.
std::string number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::to_string(value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// Names as they are when every one is well formed and unique, else none, so that Dim::to_string numbers
/// them.
std::vector<std::string> printable_symbols(const std::vector<std::string>& names) {
  std::unordered_set<std::string_view> seen;
  for (const std::string& name : names) {
    const bool fits = is_identifier(name) && name.size() <= limits::k_name_bytes;
    if (!fits || !seen.insert(name).second) return {};
  }
  return names;
}

class Printer {
 public:
  Printer(const Graph& graph, PrintOptions options)
      : m_graph(graph), m_options(options), m_symbols(printable_symbols(graph.symbols())) {
    name_values();
  }

  std::string print() {
    print_inputs();
    print_symbols();
    m_text += " {\n";
    for (const Node& node : m_graph.nodes()) print_node(node);
    print_return();
    m_text += "}\n";
    return std::move(m_text);
  }

 private:
  void name_values() {
    std::unordered_set<std::string_view> taken;
    m_names.resize(m_graph.values().size());
    size_t number = 0;
    auto give = [&](ValueId id) {
      const std::string& name = m_graph.value(id).name;
      const bool numeric = name.find_first_not_of("0123456789") == std::string::npos;
      const bool keeps = is_value_name(name) && !numeric && name.size() <= limits::k_name_bytes;
      m_names[id] = keeps && taken.insert(name).second ? "%" + name : fmt::format("%{}", number);
      ++number;
    };
    for (ValueId id : m_graph.inputs()) give(id);
    for (const Node& node : m_graph.nodes()) {
      for (ValueId id : node.results) give(id);
    }
  }

  template <typename List, typename Print>
  void separated(const List& list, Print&& print) {
    std::string_view comma;
    for (const auto& item : list) {
      m_text += comma;
      print(item);
      comma = ", ";
    }
  }

  void print_dims(const std::vector<Dim>& dims) {
    separated(dims, [&](const Dim& dim) { m_text += dim.to_string(m_symbols); });
  }

  void print_inputs() {
    std::vector<std::string> inputs;
    size_t chars = 0;
    for (ValueId id : m_graph.inputs()) {
      inputs.push_back(m_names[id] + ": " + m_graph.type(id).to_string(m_symbols));
      chars += inputs.back().size() + 2;
    }
    if (chars <= k_line_chars) {
      m_text += fmt::format("graph({})", fmt::join(inputs, ", "));
    } else {
      m_text += fmt::format("graph(\n  {})", fmt::join(inputs, ",\n  "));
    }
  }

  /// symbols(…) declares the symbols in the order of their ids. A guard declares those it is the first to
  /// name, so bare names stand only where the order would otherwise be lost.
  void print_symbols() {
    if (m_graph.symbols().empty()) return;
    std::vector<std::string> clauses;
    SymbolId declared = 0;
    auto declare_up_to = [&](SymbolId end) {
      for (; declared < end; ++declared) clauses.push_back(Dim::symbol(declared).to_string(m_symbols));
    };
    for (const Guard& guard : m_graph.guards()) {
      SymbolId next = declared;
      SymbolId end = declared;
      for (const Dim::Term& term : guard.dim.terms()) {
        for (SymbolId id : term.symbols) {
          end = std::max(end, id + 1);
          if (id == next) ++next;
        }
      }
      if (next == end) declared = end;  // named in order
      declare_up_to(end);
      clauses.push_back(guard_text(guard));
    }
    declare_up_to(static_cast<SymbolId>(m_graph.symbols().size()));
    m_text += fmt::format(" symbols({})", fmt::join(clauses, ", "));
  }

  /// "s0 >= 2": the constant of the polynomial moves to the right. "(s0 + s1) % 8 == 0" for divisibility.
  std::string guard_text(const Guard& guard) const {
    if (guard.relation == Guard::Relation::divisible) {
      const std::string_view format = guard.dim.terms().size() > 1 ? "({}) % {} == 0" : "{} % {} == 0";
      return fmt::format(fmt::runtime(format), guard.dim.to_string(m_symbols), guard.modulus);
    }
    constexpr std::string_view k_relations[] = {"==", "!=", ">="};
    Dim left = guard.dim, right = 0;
    if (!left.is_constant() && left.terms().back().symbols.empty()) {
      right = Dim(0) - Dim(left.terms().back().coefficient);
      left = left + right;
    }
    if (left.overflowed() || right.overflowed()) left = guard.dim, right = 0;
    return fmt::format("{} {} {}", left.to_string(m_symbols), k_relations[static_cast<int>(guard.relation)],
                       right.to_string(m_symbols));
  }

  void print_node(const Node& node) {
    m_text += "  ";
    separated(node.results, [&](ValueId id) {
      m_text += m_names[id];
      if (m_options.result_types) m_text += ": " + m_graph.type(id).to_string(m_symbols);
    });
    if (!node.results.empty()) m_text += " = ";
    m_text += node.op->name;
    m_text += '(';
    separated(node.operands, [&](ValueId id) { m_text += id == k_none ? "none" : std::string_view(m_names[id]); });
    m_text += ')';
    if (!node.attributes.empty()) {
      m_text += " {";
      separated(node.attributes, [&](const auto& attribute) {
        m_text += attribute.first;
        m_text += " = ";
        print_attribute(*node.op, attribute.first, attribute.second);
      });
      m_text += '}';
    }
    m_text += '\n';
  }

  void print_attribute(const OpDef& op, const std::string& name, const Attribute& attribute) {
    auto row = std::ranges::find(op.attributes, name, &AttributeDef::name);
    const bool extent = row != op.attributes.end() && row->type == AttributeType::extent;
    const auto* shape = std::get_if<Shape>(&attribute);
    if (extent && shape != nullptr) return print_dims(*shape);  // kept as a shape of one dim
    std::visit([&](const auto& value) { print_value(value); }, attribute);
  }

  void print_value(bool value) { m_text += value ? "true" : "false"; }
  void print_value(int64_t value) { fmt::format_to(std::back_inserter(m_text), "{}", value); }
  void print_value(double value) { m_text += number(value); }
  void print_value(const std::string& value) { m_text += escaped(value); }
  void print_value(DType value) { m_text += to_string(value); }
  void print_value(const std::vector<int64_t>& values) { m_text += fmt::format("[{}]", fmt::join(values, ", ")); }
  void print_value(const Shape& shape) {
    m_text += '[';
    print_dims(shape);
    m_text += ']';
  }

  void print_return() {
    m_text += "  return";
    std::string_view comma = " ";
    for (size_t i = 0; i < m_graph.outputs().size(); ++i) {
      m_text += comma;
      m_text += m_names[m_graph.outputs()[i]];
      comma = ", ";
      if (m_graph.output_strides()[i].empty()) continue;
      m_text += " {";
      print_dims(m_graph.output_strides()[i]);
      m_text += '}';
    }
    m_text += '\n';
  }

  const Graph& m_graph;
  const PrintOptions m_options;
  const std::vector<std::string> m_symbols;  // empty: numbered
  std::vector<std::string> m_names;          // by value, with the percent sign
  std::string m_text;
};

}  // namespace

std::string print_text(const Graph& graph, PrintOptions options) { return Printer(graph, options).print(); }

}  // namespace kiln
