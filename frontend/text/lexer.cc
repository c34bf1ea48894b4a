#include "frontend/text/lexer.h"

#include <algorithm>

namespace kiln {
namespace {

// Not <cctype>: its answers depend on the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_letter(c) || is_digit(c); }
bool is_name(char c) { return is_word(c) || c == '.'; }

}  // namespace

bool is_identifier(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && std::ranges::all_of(text, is_word);
}

bool is_value_name(std::string_view text) { return !text.empty() && std::ranges::all_of(text, is_name); }

void Lexer::skip_space() {
  while (m_at < m_text.size()) {
    const char c = m_text[m_at];
    if (c == '#') {
      m_at = std::min(m_text.find('\n', m_at), m_text.size());
    } else if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      ++m_at;
    } else {
      return;
    }
  }
}

/// digits [. digits] [e [+-] digits]; the exponent only counts when it has digits.
size_t Lexer::number_end(size_t from) const {
  auto digits = [&](size_t at) {
    while (at < m_text.size() && is_digit(m_text[at])) ++at;
    return at;
  };
  size_t at = digits(from);
  if (at < m_text.size() && m_text[at] == '.') at = digits(at + 1);
  if (at < m_text.size() && (m_text[at] == 'e' || m_text[at] == 'E')) {
    size_t exponent = at + 1;
    if (exponent < m_text.size() && (m_text[exponent] == '+' || m_text[exponent] == '-')) ++exponent;
    if (const size_t end = digits(exponent); end > exponent) at = end;
  }
  return at;
}

/// One past the closing quote, or npos.
size_t Lexer::string_end(size_t from) const {
  for (size_t at = from + 1; at < m_text.size(); ++at) {
    if (m_text[at] == '\\')
      ++at;
    else if (m_text[at] == '"')
      return at + 1;
    else if (m_text[at] == '\n')
      break;
  }
  return std::string_view::npos;
}

Token Lexer::next() {
  skip_space();
  const size_t start = m_at;
  auto token = [&](TokenKind kind, size_t end) {
    m_at = end;
    return Token{kind, m_text.substr(start, end - start), start};
  };
  if (start == m_text.size()) return {TokenKind::end, {}, start};

  const char c = m_text[start];
  const char following = start + 1 < m_text.size() ? m_text[start + 1] : '\0';
  size_t end = start + 1;
  if (is_letter(c)) {
    while (end < m_text.size() && is_word(m_text[end])) ++end;
    return token(TokenKind::identifier, end);
  }
  if (is_digit(c)) {
    end = number_end(start);
    const bool integer = std::ranges::all_of(m_text.substr(start, end - start), is_digit);
    return token(integer ? TokenKind::integer : TokenKind::number, end);
  }
  if (c == '%' && is_name(following)) {
    while (end < m_text.size() && is_name(m_text[end])) ++end;
    Token value = token(TokenKind::value, end);
    value.text.remove_prefix(1);
    return value;
  }
  if (c == '"') {
    end = string_end(start);
    return end == std::string_view::npos ? token(TokenKind::invalid, start + 1) : token(TokenKind::string, end);
  }
  if (following == '=' && (c == '=' || c == '!' || c == '>')) return token(TokenKind::punctuation, start + 2);
  if (std::string_view("()[]{},:=+-*%").find(c) != std::string_view::npos) {
    return token(TokenKind::punctuation, start + 1);
  }
  return token(TokenKind::invalid, start + 1);
}

}  // namespace kiln
