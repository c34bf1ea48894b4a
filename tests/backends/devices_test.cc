#include "backends/devices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kiln {
namespace {

TEST(Devices, every_target_has_one_name_and_is_found_by_it) {
  std::set<std::string> names;
  for (const RuntimeBackend* backend : runtime_backends()) {
    for (const Target& target : backend->known_targets()) {
      EXPECT_TRUE(names.insert(target.name).second) << target.name << " is there twice";
      EXPECT_EQ(target.backend, backend->name());
      ASSERT_TRUE(find_target(target.name).ok());
      EXPECT_EQ(*find_target(target.name), target);
    }
  }
}

TEST(Devices, an_unknown_target_is_answered_with_those_there_are) {
  const auto found = find_target("native");
  EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(found.status().message().find("x86-64-v3"), std::string::npos) << found.status().message();
}

TEST(Devices, no_name_is_the_host_which_has_memory_and_a_queue_like_any_device) {
  const auto host = open_device("");
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  EXPECT_TRUE(host->device->is_host());
  EXPECT_FALSE(host->targets.empty());
  const auto memory = host->device->allocate(8);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % 256, 0u);
  const auto queue = host->device->create_queue();
  const uint64_t sent = 42;
  uint64_t received = 0;
  EXPECT_TRUE((*queue)->upload(*memory, &sent, sizeof sent).ok());
  EXPECT_TRUE((*queue)->download(&received, *memory, sizeof sent).ok());
  EXPECT_TRUE((*queue)->synchronise().ok());
  EXPECT_EQ(received, sent);
  host->device->release(*memory);
}

TEST(Devices, a_device_that_is_none_or_not_there_is_a_typed_error) {
  for (const char* name : {"toaster", "cpu:", "cpu:x", "cpu:-1", ":", "cpu:0:0"}) {
    EXPECT_EQ(open_device(name).status().code(), StatusCode::invalid_argument) << name;
  }
  EXPECT_EQ(open_device("cpu:7").status().code(), StatusCode::not_found);
}

TEST(Devices, a_backend_without_devices_says_why) {
  for (const RuntimeBackend* backend : runtime_backends()) {
    const Discovery& discovery = backend->discover();
    const bool is_any_usable = std::ranges::any_of(discovery.devices, [](const auto& d) { return !d.targets.empty(); });
    EXPECT_EQ(is_any_usable, discovery.status.ok()) << backend->name();
    EXPECT_FALSE(discovery.components.empty()) << backend->name();
  }
}

}  // namespace
}  // namespace kiln
