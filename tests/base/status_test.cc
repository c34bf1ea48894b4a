#include "base/status.h"

#include <gtest/gtest.h>

#include "base/expected.h"

namespace kiln {
namespace {

Expected<int> half(int value) {
  if (value % 2 != 0) return invalid_argument("{} is odd", value);
  return value / 2;
}

Expected<int> quarter(int value) {
  KILN_ASSIGN_OR_RETURN(int first, half(value));
  return half(first);
}

TEST(Status, ReadsAsASentenceWithItsCode) {
  Status status = invalid_argument("header is {} bytes, expected {}", 12, 40);
  EXPECT_EQ(status.to_string(), "invalid_argument: header is 12 bytes, expected 40");
  EXPECT_EQ(status.with_context("artifact 7f3a").message(), "artifact 7f3a: header is 12 bytes, expected 40");
}

TEST(Status, NamesTheOpThatItIsOfWhateverIsSaidAround) {
  const Status status = error(StatusCode::unimplemented, "no kernel").with_op("cumsum").with_context("loops_f64_3");
  EXPECT_EQ(status.op(), "cumsum");
  EXPECT_EQ(status.message(), "loops_f64_3: no kernel");
  EXPECT_EQ(Status().with_op("cumsum").op(), "");
}

TEST(Status, ACodeFromOutsideTheEnumIsUnknown) { EXPECT_EQ(to_string(static_cast<StatusCode>(200)), "unknown"); }

TEST(Expected, TheFirstErrorComesBack) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
}

}  // namespace
}  // namespace kiln
