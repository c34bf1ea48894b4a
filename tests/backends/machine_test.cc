#include "backends/machine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "backends/devices.h"

namespace kiln {
namespace {

const Machine k_machine{.model = "A maker's; model=2", .cores = 3, .first_level_bytes = 4, .third_level_bytes = 5};

TEST(Machines, have_a_text_that_gives_them_back) {
  EXPECT_EQ(to_string(k_machine), "cores=3 l1=4 l2=0 l3=5 model=A maker's; model=2");
  const auto parsed = parse_machine(to_string(k_machine));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, k_machine);
  EXPECT_EQ(*parse_machine(to_string(Machine())), Machine());
}

TEST(Machines, are_not_made_of_other_texts) {
  for (const char* text : {"", "Success", "cores=3", "cores=3 l1=4 l2=0 l3=5", "cores=03 l1=4 l2=0 l3=5 model=x",
                           "cores=-1 l1=4 l2=0 l3=5 model=x"}) {
    EXPECT_EQ(parse_machine(text).status().code(), StatusCode::invalid_argument) << text;
  }
}

TEST(Machines, the_hosts_is_what_the_system_says) {
  const Discovery& discovery = host_backend().discover();
  if (discovery.devices.empty()) GTEST_SKIP() << discovery.status.to_string();
  const Machine& machine = discovery.devices.front().machine;
  EXPECT_EQ(machine.model, discovery.devices.front().name);
  EXPECT_GE(machine.cores, std::thread::hardware_concurrency());
  EXPECT_GT(machine.second_level_bytes, 0u) << "schedules divide it";
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index2/size");
  uint64_t kib = 0;
  if (file >> kib) {
    EXPECT_EQ(machine.second_level_bytes, kib << 10);
  }
}

}  // namespace
}  // namespace kiln
