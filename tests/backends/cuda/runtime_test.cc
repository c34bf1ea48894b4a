#include "backends/cuda/runtime/runtime.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <thread>

#include "backends/cuda/launch_record.h"
#include "tests/backends/cuda/fake_launch.h"

namespace kiln::cuda {
namespace {

SearchPath fakes(const std::string& kind) { return {{{std::string(KILN_FAKE_CUDA) + "/" + kind, "test"}}}; }

void expect_unavailable(const Discovery& discovery, std::string_view words) {
  EXPECT_EQ(discovery.status.code(), StatusCode::unavailable) << discovery.status.to_string();
  EXPECT_NE(discovery.status.message().find(words), std::string::npos) << discovery.status.to_string();
  for (const DeviceDescription& device : discovery.devices) EXPECT_TRUE(device.targets.empty()) << device.name;
}

TEST(CudaDriver, a_host_without_one_says_so) {
  const Discovery discovery = discover_devices({{{"/nonexistent", "test"}}});
  if (discovery.status.ok()) GTEST_SKIP() << "this host has a driver";
  EXPECT_EQ(discovery.status.code(), StatusCode::unavailable);
  EXPECT_FALSE(discovery.components.empty());
  const auto device = open_cuda_device({{{"/nonexistent", "test"}}}, 0);
  EXPECT_EQ(device.status().code(), StatusCode::unavailable);
}

TEST(CudaDriver, the_toolkits_stub_is_no_driver) { expect_unavailable(discover_devices(fakes("stub")), "stub"); }

TEST(CudaDriver, a_half_installed_one_is_named_with_what_it_lacks) {
  expect_unavailable(discover_devices(fakes("lacks")), "cuLaunchKernel");
}

TEST(CudaDriver, hidden_devices_are_told_from_absent_ones) {
  unsetenv("CUDA_VISIBLE_DEVICES");
  expect_unavailable(discover_devices(fakes("empty")), "finds no device");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  expect_unavailable(discover_devices(fakes("empty")), "CUDA_VISIBLE_DEVICES is \"\"");
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(CudaDriver, a_device_that_runs_no_target_is_listed_and_not_used) {
  const Discovery discovery = discover_devices(fakes("small"));
  expect_unavailable(discovery, "none of 1 devices");
  bool is_listed = false;
  for (const auto& component : discovery.components)
    is_listed = is_listed || component.found.find("7.5") != std::string::npos;
  EXPECT_TRUE(is_listed);
}

TEST(CudaDriver, devices_keep_the_drivers_numbers_beside_one_that_runs_no_target) {
  const Discovery discovery = discover_devices(fakes("mixed"));
  ASSERT_TRUE(discovery.status.ok()) << discovery.status.to_string();
  ASSERT_EQ(discovery.devices.size(), 2u);
  EXPECT_TRUE(discovery.devices[0].targets.empty());
  EXPECT_FALSE(discovery.devices[1].targets.empty());
}

TEST(CudaDriver, a_device_is_described_with_its_targets) {
  const Discovery discovery = discover_devices(fakes("good"));
  ASSERT_TRUE(discovery.status.ok()) << discovery.status.to_string();
  ASSERT_EQ(discovery.devices.size(), 1u);
  EXPECT_EQ(discovery.devices[0].name, "fake device");
  // Code for 8.0 is none for 9.0.
  EXPECT_EQ(discovery.devices[0].targets, (std::vector<Target>{{"cuda", "sm_90a", ""}}));
  EXPECT_EQ(discovery.devices[0].machine, (Machine{.model = "fake device", .cores = 5, .second_level_bytes = 7 << 20}));
}

class CudaLaunch : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = std::string(KILN_FAKE_CUDA) + "/good/libcuda.so.1";
    m_fake = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(m_fake, nullptr) << dlerror();
    std::memset(recorded(), 0, sizeof(FakeLaunch));
    auto device = open_cuda_device(fakes("good"), 0);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    m_device = std::move(device).value();
    for (size_t i = 0; i < 3; ++i) {
      auto memory = m_device->allocate(1 << 16);
      ASSERT_TRUE(memory.ok());
      m_memory.push_back(*memory);
    }
  }
  void TearDown() override {
    for (void* memory : m_memory) m_device->release(memory);
    m_device.reset();
    for (const char* counter : {"fake_contexts", "fake_pushed", "fake_modules", "fake_allocations", "fake_streams",
                                "fake_graphs", "fake_events"}) {
      EXPECT_EQ(*static_cast<int*>(dlsym(m_fake, counter)), 0) << counter;
    }
  }

  FakeLaunch* recorded() { return static_cast<FakeLaunch*>(dlsym(m_fake, "fake_launch")); }

  /// A persistent kernel with a map of buffer 1 that needs it aligned, then one for any address.
  static std::vector<uint8_t> code() {
    LaunchRecord record{.buffers = 2, .least_driver = 13000};
    KernelRecord fast{.entry = "fast", .blocks = 40, .is_persistent = true, .threads = 384, .cluster = 2};
    fast.shared_bytes = 200000;
    fast.aligned_buffers = {1};
    fast.maps = {{.buffer = 1, .dtype = DType::bf16, .offset_bytes = 32}};
    fast.maps[0].extents = {64, 100, 3, 2};
    fast.maps[0].stride_bytes = {128, 12800, 38400};
    fast.maps[0].box = {64, 128, 1, 1};
    record.kernels = {fast, {.entry = "any", .blocks = 7, .threads = 256}};
    const std::vector<uint8_t> cubin = {0x7f, 'E', 'L', 'F', 0, 0, 0, 0};
    return pack(record, {cubin, cubin});
  }

  Expected<std::unique_ptr<Executable>> load(const std::vector<uint8_t>& code) { return m_device->load(Image{}, code); }

  void* m_fake = nullptr;
  std::unique_ptr<Device> m_device;
  std::vector<void*> m_memory;
};

TEST_F(CudaLaunch, pointers_then_status_reach_the_kernel_on_the_callers_stream) {
  const auto executable = load(code());
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  int stream = 0;
  const auto queue = m_device->adopt_queue(&stream);
  ASSERT_TRUE(queue.ok());
  ASSERT_TRUE((*executable)->device()->launch(**queue, m_memory.data(), nullptr, m_memory[2], {}).ok());
  EXPECT_EQ(recorded()->stream, &stream);
  EXPECT_EQ(std::memcmp(recorded()->argument, static_cast<const void*>(m_memory.data()), 3 * sizeof(void*)), 0);
}

TEST_F(CudaLaunch, a_persistent_kernel_gets_as_many_blocks_as_run_at_once_in_whole_clusters) {
  const auto executable = load(code());
  ASSERT_TRUE(executable.ok());
  const auto queue = m_device->create_queue();
  ASSERT_TRUE((*executable)->device()->launch(**queue, m_memory.data(), nullptr, m_memory[2], {}).ok());
  EXPECT_EQ(recorded()->blocks, 4u);  // of five multiprocessors
  EXPECT_EQ(recorded()->threads, 384u);
  EXPECT_EQ(recorded()->shared_bytes, 200000u);
}

TEST_F(CudaLaunch, maps_are_encoded_from_the_buffers_address) {
  const auto executable = load(code());
  ASSERT_TRUE(executable.ok());
  const auto queue = m_device->create_queue();
  ASSERT_TRUE((*executable)->device()->launch(**queue, m_memory.data(), nullptr, m_memory[2], {}).ok());
  EXPECT_EQ(recorded()->maps, 1u);
  EXPECT_EQ(recorded()->map_address, reinterpret_cast<uint64_t>(m_memory[1]) + 32);
  EXPECT_EQ(recorded()->map_extents[1], 100u);
  EXPECT_EQ(recorded()->map_strides[1], 12800u);
  EXPECT_EQ(recorded()->map_box[1], 128u);
  EXPECT_EQ(recorded()->map_type, 9);
  EXPECT_EQ(recorded()->map_swizzle, 3);
}

TEST_F(CudaLaunch, an_address_the_first_kernel_cannot_take_goes_to_the_next) {
  const auto executable = load(code());
  ASSERT_TRUE(executable.ok());
  const auto queue = m_device->create_queue();
  void* const odd[] = {m_memory[0], static_cast<uint8_t*>(m_memory[1]) + 2};
  ASSERT_TRUE((*executable)->device()->launch(**queue, odd, nullptr, m_memory[2], {}).ok());
  EXPECT_EQ(recorded()->blocks, 7u);
  EXPECT_EQ(recorded()->threads, 256u);
  EXPECT_EQ(recorded()->maps, 0u);
}

TEST_F(CudaLaunch, kernels_of_one_alternative_are_launched_one_after_another_with_the_launches_own_buffers) {
  LaunchRecord record{.buffers = 1, .workspace_parts = {200, 64}, .least_driver = 13000};
  record.kernels = {{.blocks = 5, .threads = 32, .is_followed = true},
                    {.blocks = 6, .threads = 32, .aligned_buffers = {0, 2}},
                    {.blocks = 7, .threads = 32}};
  const std::vector<uint8_t> cubin = {0x7f, 'E', 'L', 'F', 0, 0, 0, 0};
  const std::vector<uint8_t> code = pack(record, {cubin, cubin, cubin});
  EXPECT_EQ(load(code).status().code(), StatusCode::data_loss) << "the launch data speaks of no workspace";
  const auto executable = m_device->load(Image{.workspace_bytes = 256 + 128}, code);
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  EXPECT_EQ((*executable)->workspace_bytes(), 256u + 128u);
  const auto queue = m_device->create_queue();
  ASSERT_TRUE((*executable)->device()->launch(**queue, m_memory.data(), m_memory[1], m_memory[2], {}).ok());
  EXPECT_EQ(recorded()->launches, 2u);
  EXPECT_EQ(recorded()->blocks_of[0], 5u);
  EXPECT_EQ(recorded()->blocks_of[1], 6u);
  void* const expected[] = {m_memory[0], m_memory[1], static_cast<uint8_t*>(m_memory[1]) + 256, m_memory[2]};
  EXPECT_EQ(std::memcmp(recorded()->argument, static_cast<const void*>(expected), sizeof expected), 0);
  void* const odd[] = {static_cast<uint8_t*>(m_memory[0]) + 2};
  ASSERT_TRUE((*executable)->device()->launch(**queue, odd, m_memory[1], m_memory[2], {}).ok());
  EXPECT_EQ(recorded()->launches, 3u) << "nothing of an alternative that does not take the addresses";
  EXPECT_EQ(recorded()->blocks_of[2], 7u);
}

TEST_F(CudaLaunch, extents_follow_the_pointers) {
  const auto executable = load(code());
  ASSERT_TRUE(executable.ok());
  const auto queue = m_device->create_queue();
  void* const odd[] = {m_memory[0], static_cast<uint8_t*>(m_memory[1]) + 2};
  const std::vector<int64_t> extents = {3, 50'257};
  ASSERT_TRUE((*executable)->device()->launch(**queue, odd, nullptr, m_memory[2], extents).ok());
  const uint8_t* const behind = recorded()->argument + 3 * sizeof(void*);
  EXPECT_EQ(std::memcmp(behind, extents.data(), 2 * sizeof(int64_t)), 0);
}

TEST_F(CudaLaunch, what_is_recorded_runs_when_it_is_put_on_a_queue) {
  const auto executable = load(code());
  ASSERT_TRUE(executable.ok());
  const auto twice = [&](Queue& queue) {
    EXPECT_TRUE(*queue.is_recorded());
    for (int i = 0; i < 2; ++i) {
      const Status put = (*executable)->device()->launch(queue, m_memory.data(), nullptr, m_memory[2], {});
      if (!put.ok()) return put;
    }
    return Status();
  };
  const auto recording = m_device->record(twice);
  ASSERT_TRUE(recording.ok()) << recording.status().to_string();
  EXPECT_EQ(recorded()->recorded, 2u);
  EXPECT_EQ(recorded()->replays, 0u);
  int stream = 0;
  const auto queue = m_device->adopt_queue(&stream);
  EXPECT_FALSE(*(*queue)->is_recorded());
  ASSERT_TRUE((*recording)->replay(**queue).ok());
  ASSERT_TRUE((*recording)->replay(**queue).ok());
  EXPECT_EQ(recorded()->replays, 2u);
  EXPECT_EQ(recorded()->launches, 2u);
  EXPECT_EQ(recorded()->stream, &stream);
}

TEST_F(CudaLaunch, a_launch_is_timed_by_the_devices_clock) {
  const auto executable = load(code());
  const auto queue = m_device->create_queue();
  const auto seconds = (*queue)->seconds_of(
      [&] { return (*executable)->device()->launch(**queue, m_memory.data(), nullptr, m_memory[2], {}); });
  ASSERT_TRUE(seconds.ok()) << seconds.status().to_string();
  EXPECT_DOUBLE_EQ(*seconds, 0.25e-3);
  EXPECT_EQ(recorded()->recorded_events, 2u);
  EXPECT_EQ(recorded()->launches_at_event[0], 0u);
  EXPECT_EQ(recorded()->launches_at_event[1], 1u);
  const auto failing = (*queue)->seconds_of([] { return error(StatusCode::internal, "no"); });
  EXPECT_EQ(failing.status().message(), "no");
}

TEST_F(CudaLaunch, a_recording_that_fails_leaves_nothing_behind) {
  const auto failing = [](Queue&) { return error(StatusCode::internal, "no"); };
  EXPECT_EQ(m_device->record(failing).status().message(), "no");
  EXPECT_TRUE(m_device->record([](Queue&) { return Status(); }).ok()) << "the first capture has ended";
}

TEST_F(CudaLaunch, memory_goes_there_and_back) {
  const auto queue = m_device->create_queue();
  const std::vector<uint8_t> sent = {1, 2, 3, 4};
  std::vector<uint8_t> got(4);
  ASSERT_TRUE((*queue)->upload(m_memory[0], sent.data(), 4).ok());
  ASSERT_TRUE((*queue)->copy(m_memory[1], m_memory[0], 4).ok());
  ASSERT_TRUE((*queue)->download(got.data(), m_memory[1], 4).ok());
  ASSERT_TRUE((*queue)->synchronise().ok());
  EXPECT_EQ(got, sent);
}

TEST_F(CudaLaunch, a_thread_that_has_no_context_may_do_all_of_it) {
  std::thread([&] {
    const auto executable = load(code());
    ASSERT_TRUE(executable.ok()) << executable.status().to_string();
    const auto queue = m_device->create_queue();
    ASSERT_TRUE(queue.ok()) << queue.status().to_string();
    const auto memory = m_device->allocate(4);
    ASSERT_TRUE(memory.ok()) << memory.status().to_string();
    const uint32_t sent = 7;
    EXPECT_TRUE((*queue)->upload(*memory, &sent, sizeof sent).ok());
    EXPECT_TRUE((*executable)->device()->launch(**queue, m_memory.data(), nullptr, m_memory[2], {}).ok());
    EXPECT_TRUE((*queue)->synchronise().ok());
    m_device->release(*memory);
  }).join();
}

TEST_F(CudaLaunch, too_much_memory_is_resource_exhausted) {
  const auto memory = m_device->allocate(size_t{1} << 40);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::resource_exhausted);
}

TEST_F(CudaLaunch, what_is_no_code_is_refused) {
  EXPECT_EQ(load({1, 2, 3}).status().code(), StatusCode::data_loss);
  LaunchRecord record{.buffers = 0};
  record.kernels = {{.entry = "k", .threads = 32}};
  EXPECT_EQ(load(pack(record, {{9, 9, 9, 9}})).status().code(), StatusCode::invalid_argument);
}

TEST(CudaOldDriver, code_of_a_newer_compiler_is_refused_with_both_versions) {
  const auto device = open_cuda_device(fakes("aged"), 0);
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  for (const uint32_t least : {13000U, UINT32_MAX}) {
    LaunchRecord record{.buffers = 0, .least_driver = least};
    record.kernels = {{.entry = "k", .threads = 32}};
    const auto executable = (*device)->load(Image{}, pack(record, {{0x7f, 'E', 'L', 'F'}}));
    ASSERT_FALSE(executable.ok()) << least;
    EXPECT_EQ(executable.status().code(), StatusCode::failed_precondition);
    EXPECT_NE(executable.status().message().find("12040"), std::string::npos);
  }
}

}  // namespace
}  // namespace kiln::cuda
