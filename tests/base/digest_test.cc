#include "base/digest.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

TEST(Digest, HexRoundTrips) {
  Digest digest = digest_of("kiln");
  EXPECT_EQ(Digest::from_hex(digest.to_hex()), digest);
  EXPECT_FALSE(Digest::from_hex("12").has_value());
  EXPECT_FALSE(Digest::from_hex(std::string(64, 'g')).has_value());
}

TEST(Digest, OneBitOfInputChangesBothHalves) {
  Digest a = digest_of("kiln0"), b = digest_of("kiln1");
  EXPECT_NE(std::memcmp(a.bytes.data(), b.bytes.data(), 16), 0);
  EXPECT_NE(std::memcmp(a.bytes.data() + 16, b.bytes.data() + 16, 16), 0);
}

}  // namespace
}  // namespace kiln
