#include "autotune/record.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

TuningRecord some_record() {
  return {"gemm_f32_64x64x64_nn",
          "a processor, 2 cores",
          0.5,
          1,
          {{"tile 8x48", "", {1, 0xff, 0}, {2.0, 2.2, 2.1}, 2.1, 0.05, 1, "", true},
           {"tile 14x32", "gemm_f32_64x96x64_nn", {2, 0xfe}, {1.0, 1.1, 1.05}, 1.05, 0.04, 0, "", true},
           {"tile 1x1", "", {}, {}, 0, 0, 0, "candidate died of signal 11", false}}};
}

TEST(TuningRecord, comes_back_as_it_was_written) {
  const TuningRecord record = some_record();
  const auto back = TuningRecord::parse(record.to_json());
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->to_json(), record.to_json());
  EXPECT_EQ(back->candidates[0].schedule, record.candidates[0].schedule);
  EXPECT_EQ(back->candidates[1].origin, "gemm_f32_64x96x64_nn");
  EXPECT_EQ(back->candidates[1].seconds, record.candidates[1].seconds);
  EXPECT_EQ(back->candidates[2].dropped, "candidate died of signal 11");
  EXPECT_DOUBLE_EQ(back->gain(), 2.0);
}

TEST(TuningRecord, a_damaged_one_is_refused) {
  const std::string whole = some_record().to_json();
  for (size_t size = 0; size < whole.size(); size += 7) {
    EXPECT_EQ(TuningRecord::parse(whole.substr(0, size)).status().code(), StatusCode::data_loss) << size;
  }
  std::string winner = whole;
  winner.replace(winner.find("\"winner\":1"), 10, "\"winner\":9");
  EXPECT_EQ(TuningRecord::parse(winner).status().code(), StatusCode::data_loss);
}

TEST(TuningRecord, one_of_another_version_is_told_apart) {
  std::string other = some_record().to_json();
  other.replace(other.find("\"version\":2"), 11, "\"version\":7");
  EXPECT_EQ(TuningRecord::parse(other).status().code(), StatusCode::unimplemented);
}

}  // namespace
}  // namespace kiln
