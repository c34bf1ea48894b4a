// Which outputs may lie where an input lies, from what the launches of a program read and write.

#include "jit/run/in_place.h"

#include <gtest/gtest.h>

#include <vector>

namespace kiln {
namespace {

using Access = DataFlow::Access;
using enum DataFlow::Place;
using enum DataFlow::Role;

Access reads(uint32_t index) { return {input, read, index}; }
Access writes(uint32_t index) { return {output, written, index}; }
const std::vector<InPlace::Pair> k_none_allowed = {};

TEST(InPlace, AnInputThatIsReadBeforeTheFirstWriteMayBeOverwritten) {
  InPlace places;
  places.add(std::vector<Access>{reads(0), {scratch, written, 0, 0, 64}}, k_none_allowed);
  places.add(std::vector<Access>{{scratch, read, 0, 0, 64}, writes(0)}, k_none_allowed);
  EXPECT_TRUE(places.allows(0, 0));
  EXPECT_TRUE(places.allows(0, 1)) << "nobody reads it";
  EXPECT_FALSE(places.allows(1, 0)) << "nobody writes it";
}

TEST(InPlace, AnInputThatIsReadLaterMayNot) {
  InPlace places;
  places.add(std::vector<Access>{reads(0), writes(0)}, std::vector<InPlace::Pair>{{1, 0}});
  places.add(std::vector<Access>{reads(0), writes(1)}, std::vector<InPlace::Pair>{{1, 0}});
  EXPECT_FALSE(places.allows(0, 0));
  EXPECT_TRUE(places.allows(1, 0));
}

TEST(InPlace, InTheLaunchOfTheFirstWriteTheKernelDecides) {
  InPlace places;
  places.add(std::vector<Access>{reads(0), reads(1), writes(0), writes(1)}, std::vector<InPlace::Pair>{{2, 0}, {3, 1}});
  EXPECT_TRUE(places.allows(0, 0));
  EXPECT_TRUE(places.allows(1, 1));
  EXPECT_FALSE(places.allows(0, 1));
  EXPECT_FALSE(places.allows(1, 0));
}

TEST(InPlace, AnInputThatComesInTwiceMustBeAllowedTwice) {
  InPlace once, twice;
  once.add(std::vector<Access>{reads(0), reads(0), writes(0)}, std::vector<InPlace::Pair>{{2, 0}});
  twice.add(std::vector<Access>{reads(0), reads(0), writes(0)}, std::vector<InPlace::Pair>{{2, 0}, {2, 1}});
  EXPECT_FALSE(once.allows(0, 0));
  EXPECT_TRUE(twice.allows(0, 0));
}

TEST(InPlace, AnOutputThatIsWrittenInPartsCountsFromItsFirstPart) {
  InPlace places;
  places.add(std::vector<Access>{writes(0)}, k_none_allowed);
  places.add(std::vector<Access>{reads(0), writes(0)}, std::vector<InPlace::Pair>{{1, 0}});
  EXPECT_FALSE(places.allows(0, 0));
}

}  // namespace
}  // namespace kiln
