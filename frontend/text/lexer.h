#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kiln {

enum class TokenKind : uint8_t {
  identifier,   // matmul, s0, none
  value,        // %name; the text is without the percent sign
  integer,      // 42, without sign
  number,       // 1.5, 1e-05, without sign
  string,       // "text", with its quotes and escapes
  punctuation,  // one of ( ) [ ] { } , : = + - * % == != >=
  end,
  invalid,  // a character or an unclosed string that no token starts with
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string_view text;
  size_t offset = 0;

  bool is(std::string_view spelling) const {
    return (kind == TokenKind::punctuation || kind == TokenKind::identifier) && text == spelling;
  }
};

/// Splits the text form into tokens; white space and comments (# to the end of the line) lie between them.
/// Copying remembers a place to come back to. Tokens view the text, which must outlive them.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : m_text(text) {}
  Token next();

 private:
  void skip_space();
  size_t number_end(size_t from) const;
  size_t string_end(size_t from) const;

  std::string_view m_text;
  size_t m_at = 0;
};

bool is_identifier(std::string_view text);
/// What may follow '%': letters, digits, '_' and '.'.
bool is_value_name(std::string_view text);

}  // namespace kiln
