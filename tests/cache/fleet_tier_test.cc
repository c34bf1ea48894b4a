// Of a fleet's store what needs none.

#include "base/limits.h"
#include "tests/cache/fleet_testing.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

TEST(Breaker, RestsTwiceAsLongAfterEachFailureAndForgetsThemWithASuccess) {
  Breaker breaker;
  const Deadline start = Clock::now();
  const auto after = [&](uint64_t ms) { return start + std::chrono::milliseconds(ms); };
  EXPECT_FALSE(breaker.is_open(start));
  for (const uint64_t rest : {limits::k_fleet_rest_ms, 2 * limits::k_fleet_rest_ms, 4 * limits::k_fleet_rest_ms}) {
    breaker.fail(start);
    EXPECT_TRUE(breaker.is_open(after(rest - 1)));
    EXPECT_FALSE(breaker.is_open(after(rest)));
  }
  for (int i = 0; i < 100; ++i) breaker.fail(start);
  EXPECT_TRUE(breaker.is_open(after(limits::k_fleet_rest_max_ms - 1)));
  EXPECT_FALSE(breaker.is_open(after(limits::k_fleet_rest_max_ms)));
  breaker.succeed();
  EXPECT_FALSE(breaker.is_open(start));
  breaker.fail(start);
  EXPECT_FALSE(breaker.is_open(after(limits::k_fleet_rest_ms)));
}

TEST(FleetTier, AnAddressThatIsNoneSaysWhy) {
  const auto refusal = [](const std::string& url) {
    const auto tier = FleetTier::open({{url, ""}, "", "", ""}, {});
    EXPECT_EQ(tier.status().code(), StatusCode::invalid_argument) << url;
    return tier.status().message();
  };
  EXPECT_THAT(refusal("redis"), HasSubstr("no URL"));
  EXPECT_THAT(refusal("redis://:secret@host"), HasSubstr("remote.password_file"));
  EXPECT_THAT(refusal("redis://host/first"), HasSubstr("no number of a database"));
  EXPECT_THAT(refusal("s3://bucket?endpoint=gopher://host"), HasSubstr("no endpoint of S3"));
  EXPECT_THAT(refusal("s3://bucket?region=over.there"), HasSubstr("no region of S3"));
  EXPECT_THAT(refusal("gopher://host"), HasSubstr("no protocol of a fleet's store"));
}

}  // namespace
}  // namespace kiln::testing
