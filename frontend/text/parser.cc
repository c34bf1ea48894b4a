#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <ranges>
#include <unordered_map>

#include "base/limits.h"
#include "base/nearest.h"
#include "frontend/infer/builder.h"
#include "frontend/ir/validate.h"
#include "frontend/ops/op.h"
#include "frontend/text/lexer.h"
#include "frontend/text/text.h"

// Recursive descent with one token of lookahead. The grammar (docs/text_form.md) does not nest, so neither
// does this: no function here is reached from itself.
//
// Symbols are declared behind the inputs that name them, in symbols(…), where their order gives them their
// ids. That clause is therefore read first; the lexer is a value, so going back is an assignment.

namespace kiln {
namespace {

/// More dims in one attribute than any op has use for.
constexpr size_t k_list_items = 4'096;

Status exhausted(std::string_view what, size_t limit) {
  return error(StatusCode::resource_exhausted, "more than {} {}", limit, what);
}

class Parser {
 public:
  explicit Parser(std::string_view text) : m_text(text), m_lexer(text) { advance(); }

  Expected<Graph> parse() {
    Status status = parse_graph();
    if (!status.ok()) return located(status);
    return std::move(m_graph);
  }

 private:
  // --- tokens

  void advance() {
    m_here = m_token.offset;
    m_token = m_lexer.next();
  }

  bool accept(std::string_view spelling) {
    if (!m_token.is(spelling)) return false;
    advance();
    return true;
  }

  Status expect(std::string_view spelling) {
    if (accept(spelling)) return {};
    return unexpected(fmt::format("'{}'", spelling));
  }

  Status unexpected(std::string_view expected) {
    m_here = m_token.offset;
    if (m_token.kind == TokenKind::end) return invalid_argument("expected {}, got the end of the text", expected);
    constexpr size_t k_shown = 40;
    const std::string_view sign = m_token.kind == TokenKind::value ? "%" : "";
    return invalid_argument("expected {}, got '{}{}'", expected, sign, m_token.text.substr(0, k_shown));
  }

  /// "line:column: message" for the token that was read last, or that was not expected.
  Status located(const Status& status) const {
    const std::string_view before = m_text.substr(0, m_here);
    const size_t line = 1 + static_cast<size_t>(std::ranges::count(before, '\n'));
    const size_t column = m_here - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    return status.with_context(fmt::format("{}:{}", line, column));
  }

  /// Reads items up to `close`, separated by commas.
  template <typename ReadItem>
  Status list(std::string_view open, std::string_view close, size_t limit, ReadItem&& read_item) {
    KILN_RETURN_IF_ERROR(expect(open));
    if (accept(close)) return {};
    for (size_t count = 0; count < limit; ++count) {
      KILN_RETURN_IF_ERROR(read_item());
      if (accept(close)) return {};
      if (!accept(",")) return unexpected(fmt::format("',' or '{}'", close));
    }
    return exhausted("items in a list", limit);
  }

  // --- dims and types

  Expected<int64_t> integer() {
    const bool negative = accept("-");
    if (m_token.kind != TokenKind::integer) return unexpected("an integer");
    const std::string digits = (negative ? "-" : "") + std::string(m_token.text);
    int64_t value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (read.ec != std::errc{}) return unexpected("an integer of 64 bits");
    advance();
    return value;
  }

  Expected<Dim> symbol() {
    const std::string_view name = m_token.text;
    if (auto found = m_symbols.find(name); found != m_symbols.end()) {
      advance();
      return Dim::symbol(found->second);
    }
    m_here = m_token.offset;
    if (!m_declaring) {
      const std::string_view nearest = nearest_name(name, std::views::keys(m_symbols));
      if (nearest.empty()) return invalid_argument("unknown symbol '{}'", name);
      return invalid_argument("unknown symbol '{}', nearest is '{}'", name, nearest);
    }
    if (m_symbols.size() == limits::k_symbols) return exhausted("symbols", limits::k_symbols);
    if (name.size() > limits::k_name_bytes) return exhausted("bytes in a name", limits::k_name_bytes);
    const SymbolId id = m_graph.add_symbol(std::string(name));
    m_symbols.emplace(name, id);
    advance();
    return Dim::symbol(id);
  }

  Expected<Dim> product() {
    Dim product = 1;
    do {
      if (m_token.kind == TokenKind::identifier) {
        KILN_ASSIGN_OR_RETURN(Dim factor, symbol());
        product = product * factor;
      } else if (m_token.kind == TokenKind::integer) {
        KILN_ASSIGN_OR_RETURN(int64_t factor, integer());
        product = product * Dim(factor);
      } else {
        return unexpected("an integer or a symbol");
      }
    } while (accept("*"));
    return product;
  }

  Expected<Dim> dim() {
    Dim sum;
    const size_t start = m_token.offset;
    for (bool negative = accept("-");; negative = m_token.is("-"), advance()) {
      KILN_ASSIGN_OR_RETURN(Dim term, product());
      sum = negative ? sum - term : sum + term;
      if (!m_token.is("+") && !m_token.is("-")) break;
    }
    if (sum.overflowed()) {
      m_here = start;
      return validate(sum, m_symbols.size());
    }
    return sum;
  }

  Expected<Shape> dims(std::string_view open, std::string_view close) {
    Shape shape;
    KILN_RETURN_IF_ERROR(list(open, close, k_list_items, [&]() -> Status {
      KILN_ASSIGN_OR_RETURN(Dim next, dim());
      shape.push_back(std::move(next));
      return {};
    }));
    return shape;
  }

  Expected<DType> dtype() {
    const std::optional<DType> dtype = dtype_from_string(m_token.text);
    if (m_token.kind != TokenKind::identifier || !dtype) return unexpected("a dtype such as f32");
    advance();
    return *dtype;
  }

  Expected<TensorType> type() {
    const size_t start = m_token.offset;
    TensorType type;
    KILN_ASSIGN_OR_RETURN(type.dtype, dtype());
    KILN_ASSIGN_OR_RETURN(type.shape, dims("[", "]"));
    if (m_token.is("{")) {
      KILN_ASSIGN_OR_RETURN(type.strides, dims("{", "}"));
    }
    Status valid = validate(type, m_symbols.size());
    if (valid.ok()) return type;
    m_here = start;
    return valid;
  }

  // --- the head: inputs and symbols

  Status parse_graph() {
    if (m_text.size() > limits::k_text_bytes) return exhausted("bytes of text", limits::k_text_bytes);
    KILN_RETURN_IF_ERROR(expect("graph"));
    const Parser::Place inputs = place();
    skip_inputs();
    m_declaring = true;
    if (accept("symbols")) {
      KILN_RETURN_IF_ERROR(list("(", ")", limits::k_symbols + limits::k_guards, [&] { return clause(); }));
    }
    const Parser::Place body = place();
    go_to(inputs);
    KILN_RETURN_IF_ERROR(list("(", ")", limits::k_graph_values, [&] { return input(); }));
    go_to(body);
    m_declaring = false;
    KILN_RETURN_IF_ERROR(expect("{"));
    while (!m_token.is("return")) KILN_RETURN_IF_ERROR(statement());
    return parse_return();
  }

  struct Place {
    Lexer lexer;
    Token token;
  };
  Place place() const { return {m_lexer, m_token}; }
  void go_to(const Place& place) { m_lexer = place.lexer, m_token = place.token; }

  /// Moves behind the parenthesis that closes the inputs; whether they are well formed is seen when they are read.
  void skip_inputs() {
    while (m_token.kind != TokenKind::end && !m_token.is(")")) advance();
    advance();
  }

  /// "s0", "s0 >= 2", "(s0 + s1) % 8 == 0". A dim with nothing behind it declares its symbol.
  Status clause() {
    const bool grouped = accept("(");
    const bool bare = m_token.kind == TokenKind::identifier;
    KILN_ASSIGN_OR_RETURN(Dim left, dim());
    if (grouped) KILN_RETURN_IF_ERROR(expect(")"));
    Guard guard{left, Guard::Relation::equal, 0};
    if (accept("%")) {
      guard.relation = Guard::Relation::divisible;
      KILN_ASSIGN_OR_RETURN(guard.modulus, integer());
      if (guard.modulus < 1) return invalid_argument("modulus is {}, expected at least 1", guard.modulus);
      KILN_RETURN_IF_ERROR(expect("=="));
      if (m_token.kind != TokenKind::integer || m_token.text != "0") return unexpected("0");
      advance();
      m_graph.add_guard(std::move(guard));
      return {};
    }
    if (accept(">="))
      guard.relation = Guard::Relation::at_least;
    else if (accept("!="))
      guard.relation = Guard::Relation::not_equal;
    else if (!accept("=="))
      return bare ? Status() : unexpected("'==', '!=', '>=' or '%'");
    KILN_ASSIGN_OR_RETURN(Dim right, dim());
    guard.dim = left - right;
    KILN_RETURN_IF_ERROR(validate(guard.dim, m_symbols.size()));
    m_graph.add_guard(std::move(guard));
    return {};
  }

  Status input() {
    KILN_ASSIGN_OR_RETURN(std::string_view name, new_name());
    KILN_RETURN_IF_ERROR(expect(":"));
    KILN_ASSIGN_OR_RETURN(TensorType input_type, type());
    return define(name, m_graph.add_input(std::move(input_type)));
  }

  // --- values

  /// A name on the left; whether it is taken is seen when its value is defined.
  Expected<std::string_view> new_name() {
    if (m_token.kind != TokenKind::value) return unexpected("a value such as %x");
    if (m_token.text.size() > limits::k_name_bytes) return exhausted("bytes in a name", limits::k_name_bytes);
    const std::string_view name = m_token.text;
    advance();
    return name;
  }

  /// Numbers (%12) only tell values apart; other names are kept.
  Status define(std::string_view name, ValueId id) {
    if (!m_values.emplace(name, id).second) return invalid_argument("value %{} is defined twice", name);
    if (m_values.size() > limits::k_graph_values) return exhausted("values", limits::k_graph_values);
    const bool numbered = name.find_first_not_of("0123456789") == std::string_view::npos;
    if (!numbered) m_graph.set_name(id, std::string(name));
    return {};
  }

  Expected<ValueId> value() {
    if (m_token.kind != TokenKind::value) return unexpected("a value such as %x");
    auto found = m_values.find(m_token.text);
    if (found == m_values.end()) {
      m_here = m_token.offset;
      return invalid_argument("value %{} is not defined before it is used", m_token.text);
    }
    advance();
    return found->second;
  }

  // --- statements

  struct Result {
    std::string_view name;
    std::optional<TensorType> annotation;
  };

  Status statement() {
    KILN_ASSIGN_OR_RETURN(std::vector<Result> results, statement_results());
    const size_t start = m_token.offset;
    KILN_ASSIGN_OR_RETURN(const OpDef* op, op_name());
    KILN_ASSIGN_OR_RETURN(std::vector<ValueId> operands, statement_operands());
    KILN_ASSIGN_OR_RETURN(Attributes attributes, statement_attributes(*op));

    m_here = start;  // what is wrong from here on is wrong with the op
    if (results.size() != op->result_count) {
      return invalid_argument("{}: {} results are named, expected {}", op->name, results.size(), op->result_count);
    }
    KILN_ASSIGN_OR_RETURN(std::vector<ValueId> ids, m_builder.add(*op, operands, std::move(attributes)));
    for (size_t i = 0; i < ids.size(); ++i) {
      KILN_RETURN_IF_ERROR(check_annotation(*op, i, ids[i], results[i].annotation));
      KILN_RETURN_IF_ERROR(define(results[i].name, ids[i]));
    }
    m_here = m_token.offset;
    return {};
  }

  Expected<std::vector<Result>> statement_results() {
    std::vector<Result> results;
    if (m_token.kind != TokenKind::value) return results;  // an op without results
    do {
      Result result;
      KILN_ASSIGN_OR_RETURN(result.name, new_name());
      if (accept(":")) {
        KILN_ASSIGN_OR_RETURN(result.annotation, type());
      }
      results.push_back(std::move(result));
      if (results.size() > limits::k_node_operands) return exhausted("results", limits::k_node_operands);
    } while (accept(","));
    KILN_RETURN_IF_ERROR(expect("="));
    return results;
  }

  Expected<const OpDef*> op_name() {
    if (m_token.kind != TokenKind::identifier) return unexpected("an op, '%' with a name, or 'return'");
    const OpDef* op = find_op(m_token.text);
    if (op == nullptr) {
      m_here = m_token.offset;
      auto names = all_ops() | std::views::transform([](const OpDef* row) { return row->name; });
      const std::string_view nearest = nearest_name(m_token.text, names);
      if (nearest.empty()) return invalid_argument("unknown op '{}'", m_token.text);
      return invalid_argument("unknown op '{}', nearest is '{}'", m_token.text, nearest);
    }
    advance();
    return op;
  }

  Expected<std::vector<ValueId>> statement_operands() {
    std::vector<ValueId> operands;
    KILN_RETURN_IF_ERROR(list("(", ")", limits::k_node_operands, [&]() -> Status {
      if (accept("none")) {
        operands.push_back(k_none);
        return {};
      }
      KILN_ASSIGN_OR_RETURN(ValueId operand, value());
      operands.push_back(operand);
      return {};
    }));
    return operands;
  }

  /// Extents that only the values of symbols can tell apart become guards.
  Status check_annotation(const OpDef& op, size_t index, ValueId id, const std::optional<TensorType>& annotation) {
    if (!annotation || *annotation == m_graph.type(id)) return {};
    const TensorType inferred = m_graph.type(id);
    bool may_agree = annotation->dtype == inferred.dtype && annotation->rank() == inferred.rank() &&
                     annotation->strides == inferred.strides;
    for (size_t d = 0; may_agree && d < inferred.rank(); ++d) {
      const Dim difference = annotation->shape[d] - inferred.shape[d];
      may_agree = difference == Dim(0) || !difference.is_constant();
      if (!difference.is_constant()) m_graph.add_guard({difference, Guard::Relation::equal, 0});
    }
    if (may_agree) return {};
    const std::vector<std::string>& symbols = m_graph.symbols();
    return invalid_argument("{}: result {} is annotated {}, inferred {}", op.name, index,
                            annotation->to_string(symbols), inferred.to_string(symbols));
  }

  // --- attributes

  Expected<Attributes> statement_attributes(const OpDef& op) {
    Attributes attributes;
    if (!m_token.is("{")) return attributes;
    KILN_RETURN_IF_ERROR(list("{", "}", op.attributes.size(), [&]() -> Status {
      KILN_ASSIGN_OR_RETURN(const AttributeDef* definition, attribute_name(op, attributes));
      KILN_RETURN_IF_ERROR(expect("="));
      KILN_ASSIGN_OR_RETURN(Attribute read, attribute(definition->type));
      attributes.emplace_back(definition->name, std::move(read));
      return {};
    }));
    return attributes;
  }

  Expected<const AttributeDef*> attribute_name(const OpDef& op, const Attributes& given) {
    if (m_token.kind != TokenKind::identifier) return unexpected("an attribute's name");
    const std::string_view name = m_token.text;
    auto row = std::ranges::find(op.attributes, name, &AttributeDef::name);
    m_here = m_token.offset;
    if (row == op.attributes.end()) {
      auto names = op.attributes | std::views::transform(&AttributeDef::name);
      const std::string_view nearest = nearest_name(name, names);
      if (nearest.empty()) return invalid_argument("{}: unknown attribute '{}'", op.name, name);
      return invalid_argument("{}: unknown attribute '{}', nearest is '{}'", op.name, name, nearest);
    }
    if (find_attribute(given, name)) return invalid_argument("{}: attribute '{}' is given twice", op.name, name);
    advance();
    return &*row;
  }

  Expected<Attribute> attribute(AttributeType type) {
    switch (type) {
      case AttributeType::boolean:
        return as_attribute(boolean());
      case AttributeType::integer:
        return as_attribute(integer());
      case AttributeType::number:
        return as_attribute(number());
      case AttributeType::string:
        return as_attribute(string());
      case AttributeType::dtype:
        return as_attribute(dtype());
      case AttributeType::integers:
        return as_attribute(integers());
      case AttributeType::shape:
        return as_attribute(dims("[", "]"));
      case AttributeType::extent:
        return extent();
    }
    return error(StatusCode::internal, "attribute type {} has no text form", static_cast<int>(type));
  }

  template <typename T>
  static Expected<Attribute> as_attribute(Expected<T> value) {
    if (!value.ok()) return value.status();
    return Attribute(std::move(value).value());
  }

  Expected<bool> boolean() {
    if (accept("true")) return true;
    if (accept("false")) return false;
    return unexpected("true or false");
  }

  Expected<double> number() {
    const bool negative = accept("-");
    double value = 0;
    if (m_token.is("inf")) {
      value = std::numeric_limits<double>::infinity();
    } else if (m_token.is("nan")) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (m_token.kind == TokenKind::number || m_token.kind == TokenKind::integer) {
      const char* end = m_token.text.data() + m_token.text.size();
      if (std::from_chars(m_token.text.data(), end, value).ec != std::errc{}) return unexpected("a number in range");
    } else {
      return unexpected("a number");
    }
    advance();
    return negative ? -value : value;
  }

  Expected<std::vector<int64_t>> integers() {
    std::vector<int64_t> values;
    KILN_RETURN_IF_ERROR(list("[", "]", k_list_items, [&]() -> Status {
      KILN_ASSIGN_OR_RETURN(int64_t next, integer());
      values.push_back(next);
      return {};
    }));
    return values;
  }

  /// The form GraphBuilder keeps extents in: an integer when constant.
  Expected<Attribute> extent() {
    KILN_ASSIGN_OR_RETURN(Dim read, dim());
    if (read.is_constant()) return Attribute(read.constant());
    return Attribute(Shape{std::move(read)});
  }

  Expected<std::string> string() {
    if (m_token.kind != TokenKind::string) return unexpected("a string in double quotes");
    const std::string_view quoted = m_token.text.substr(1, m_token.text.size() - 2);
    std::string text;
    for (size_t i = 0; i < quoted.size(); ++i) {
      if (quoted[i] != '\\') {
        text += quoted[i];
        continue;
      }
      const char escape = quoted[++i];
      uint8_t byte = 0;
      if (escape == 'n')
        text += '\n';
      else if (escape == 't')
        text += '\t';
      else if (escape == '"' || escape == '\\')
        text += escape;
      else if (escape == 'x' && read_hex(quoted.substr(i + 1, 2), byte))
        text += static_cast<char>(byte), i += 2;
      else
        return unexpected("a string whose escapes are \\n, \\t, \\\", \\\\ or \\x with two hexadecimal digits");
    }
    if (text.size() > limits::k_name_bytes) return exhausted("bytes in a string", limits::k_name_bytes);
    advance();
    return text;
  }

  static bool read_hex(std::string_view digits, uint8_t& byte) {
    const char* end = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data(), end, byte, 16);
    return digits.size() == 2 && read.ec == std::errc{} && read.ptr == end;
  }

  // --- the end

  Status parse_return() {
    KILN_RETURN_IF_ERROR(expect("return"));
    std::vector<ValueId> outputs;
    std::vector<std::vector<Dim>> strides;
    while (m_token.kind == TokenKind::value) {
      KILN_ASSIGN_OR_RETURN(ValueId output, value());
      outputs.push_back(output);
      strides.emplace_back();
      if (outputs.size() > limits::k_graph_values) return exhausted("outputs", limits::k_graph_values);
      if (m_token.is("{")) {
        KILN_ASSIGN_OR_RETURN(strides.back(), dims("{", "}"));
        KILN_RETURN_IF_ERROR(validate_strides(strides.back(), m_graph.type(output), m_symbols.size()));
      }
      if (!accept(",")) break;
      if (m_token.kind != TokenKind::value) return unexpected("a value such as %x");
    }
    KILN_RETURN_IF_ERROR(expect("}"));
    if (m_token.kind != TokenKind::end) return unexpected("the end of the text");
    m_graph.set_outputs(std::move(outputs));
    for (size_t i = 0; i < strides.size(); ++i) m_graph.set_output_strides(i, std::move(strides[i]));
    return {};
  }

  const std::string_view m_text;
  Lexer m_lexer;
  Token m_token;
  size_t m_here = 0;  // offset that an error is reported at
  bool m_declaring = false;
  Graph m_graph;
  GraphBuilder m_builder{m_graph};
  std::unordered_map<std::string_view, SymbolId> m_symbols;
  std::unordered_map<std::string_view, ValueId> m_values;
};

}  // namespace

Expected<Graph> parse_text(std::string_view text) { return Parser(text).parse(); }

}  // namespace kiln
