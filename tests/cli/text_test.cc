#include "client/terminal/text.h"

#include <gtest/gtest.h>

#include "base/printable.h"
#include "cli/output.h"
#include "client/terminal/progress.h"

namespace kiln::cli {
namespace {

TEST(Text, SizesAreReadInPowersOf1024) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("12B"), 12);
  EXPECT_EQ(parse_bytes("1K"), 1024);
  EXPECT_EQ(parse_bytes("8GiB"), uint64_t{8} << 30);
  EXPECT_EQ(parse_bytes("2T"), uint64_t{2} << 40);
  for (const char* wrong : {"", "K", "-1", "1.5G", "1Q", "1Kx", " 1", "99999999999999999999", "99999999999T"}) {
    EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
  }
}

TEST(Text, NumbersAreWrittenForPeople) {
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(uint64_t{8} << 30), "8.0 GiB");
  EXPECT_EQ(human_duration(999), "999 ms");
  EXPECT_EQ(human_duration(3'200), "3.2 s");
  EXPECT_EQ(human_duration(600'000), "10 min");
  EXPECT_EQ(human_duration(uint64_t{3} * 86'400'000), "3 d");
}

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({"A", "B"});
  table.add({"long cell", "x"});
  table.add({"λ", "y\n"});
  EXPECT_EQ(table.text("", ""), "A          B\nlong cell  x\nλ          y\\n\n");
}

TEST(Progress, ALineHasCountRateTimeLeftAndKernel) {
  const ProgressState state{.label = "mlp.kiln (1 of 2)", .done = 6, .total = 24, .elapsed_s = 2, .item = "gemm_\x1b"};
  EXPECT_EQ(progress_line(state, 0), "6/24  3.0/s  ETA 6.0 s  mlp.kiln (1 of 2)  gemm_\\x1b");
  EXPECT_EQ(progress_line(state, 200).substr(0, 18), "[##--------] 6/24 ");
}

TEST(Progress, ALineIsCutToTheTerminal) {
  const ProgressState state{.label = "漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢漢", .done = 1, .total = 2, .elapsed_s = 1};
  const std::string line = progress_line(state, 50);
  EXPECT_EQ(width_of(line), 49);
  EXPECT_EQ(escaped(line), line);  // whole characters
}

TEST(Progress, BeforeTheFirstKernelThereIsNoRate) {
  EXPECT_EQ(progress_line({.label = "a", .done = 0, .total = 3, .elapsed_s = 5}, 0), "0/3  a");
}

}  // namespace
}  // namespace kiln::cli
