#include "base/printable.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace kiln {
namespace {

TEST(Printable, ControlCharactersAreShownNotSent) {
  EXPECT_EQ(escaped("\x1b[31mred\x1b[0m"), "\\x1b[31mred\\x1b[0m");
  EXPECT_EQ(escaped("two\nlines\tand\r\x07\x7f"), "two\\nlines\\tand\\x0d\\x07\\x7f");
  EXPECT_EQ(escaped("\xc2\x9b"
                    "31m"),
            "\\u009b31m");  // the one-character form of ESC [
  EXPECT_EQ(escaped("\xe2\x80\xae"
                    "evil"),
            "\\u202eevil");  // right-to-left override
}

TEST(Printable, BytesThatAreNoUtf8AreShownAsNumbers) {
  EXPECT_EQ(escaped("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(escaped("\xc0\xaf"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(escaped("\xe2\x82"), "\\xe2\\x82");           // cut short
  EXPECT_EQ(escaped("λ → 漢 😀"), "λ → 漢 😀");
}

TEST(Printable, NamesAreBoundedAndCutBetweenCharacters) {
  EXPECT_EQ(printable_name("GPT2LMHeadModel\n2026 fake"), "GPT2LMHeadModel\\n2026 fake");
  const std::string longest(limits::k_name_bytes, 'x');
  EXPECT_EQ(printable_name(longest), longest);
  for (const char* unit : {"x", "λ", "漢", "😀", "\n"}) {
    std::string text;
    while (text.size() <= 2 * limits::k_name_bytes) text += unit;
    const std::string name = printable_name(text);
    EXPECT_LE(name.size(), limits::k_name_bytes) << unit;
    EXPECT_TRUE(name.ends_with("…")) << unit;
    EXPECT_EQ(escaped(name), name) << unit << ": cut within a character";
  }
}

}  // namespace
}  // namespace kiln
