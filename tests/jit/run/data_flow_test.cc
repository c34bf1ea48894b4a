#include "jit/run/data_flow.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

using Access = DataFlow::Access;
using Place = DataFlow::Place;
using Role = DataFlow::Role;

Access reads(uint64_t offset, uint64_t bytes) { return {Place::scratch, Role::read, 0, offset, bytes}; }
Access writes(uint64_t offset, uint64_t bytes) { return {Place::scratch, Role::written, 0, offset, bytes}; }
Access changes(uint64_t offset, uint64_t bytes) { return {Place::scratch, Role::changed, 0, offset, bytes}; }

bool accepts(const std::vector<std::vector<Access>>& launches) {
  DataFlow flow(1);
  for (const auto& launch : launches) {
    if (!flow.add(launch).ok()) return false;
  }
  return true;
}

TEST(DataFlow, WhatIsReadWasWrittenWholeAndStillIs) {
  EXPECT_TRUE(accepts({{writes(0, 64)}, {reads(0, 64), writes(64, 64)}, {reads(64, 64), reads(0, 64)}}));
  EXPECT_FALSE(accepts({{reads(0, 64)}}));
  EXPECT_FALSE(accepts({{changes(0, 64)}}));
  EXPECT_FALSE(accepts({{writes(0, 64)}, {reads(0, 128)}}));
  EXPECT_FALSE(accepts({{writes(0, 64)}, {reads(0, 32)}}));
  EXPECT_TRUE(accepts({{reads(0, 0)}}));
}

TEST(DataFlow, BuffersThatLiveAtOnceDoNotOverlap) {
  EXPECT_FALSE(accepts({{writes(0, 128)}, {writes(64, 64)}, {reads(0, 128)}}));
  EXPECT_FALSE(accepts({{writes(64, 64)}, {writes(0, 65)}, {reads(64, 64)}}));
  EXPECT_FALSE(accepts({{writes(0, 64)}, {reads(0, 64), writes(32, 64)}}));
  EXPECT_FALSE(accepts({{writes(0, 64)}, {reads(0, 64), changes(0, 64)}}));
  EXPECT_TRUE(accepts({{writes(0, 128)}, {writes(64, 64)}, {reads(64, 64)}}));  // the first is not needed any more
}

TEST(DataFlow, InputsAndConstantsAreReadOnly) {
  EXPECT_TRUE(accepts({{Access{Place::input, Role::read, 3}, Access{Place::constant, Role::read}}}));
  EXPECT_FALSE(accepts({{Access{Place::input, Role::written, 3}}}));
  EXPECT_FALSE(accepts({{Access{Place::constant, Role::changed}}}));
  EXPECT_FALSE(accepts({{Access{Place::output, Role::read}}}));
  EXPECT_TRUE(accepts({{Access{Place::output, Role::written}}, {Access{Place::output, Role::read}}}));
}

}  // namespace
}  // namespace kiln
