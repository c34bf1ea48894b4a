#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <string>

#include "backends/cuda/runtime/runtime.h"
#include "tests/backends/cuda/fake_launch.h"

namespace kiln::cuda {

/// A device of the driver in host memory that records launches, and a vendor's library beside it that records calls.
class FakeLibraryTest : public testing::Test {
 protected:
  /// `found`: the library of this process, which is to be that `file`.
  template <typename Found>
  void open(const Expected<Found>& found, const std::string& file) {
    const std::string folder = std::string(KILN_FAKES) + "/good";
    auto device = open_cuda_device({{{folder, "test"}}}, 0);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    m_device = std::move(*device);
    m_driver = dlopen((folder + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_NOLOAD);
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    ASSERT_EQ(found->library().path(), folder + "/" + file);
    m_library = dlopen(found->library().path().c_str(), RTLD_NOW | RTLD_NOLOAD);
    launch() = {};
  }
  /// What the library counts of what it has made and not been given back.
  void expect_none_left(std::initializer_list<const char*> counters) {
    if (m_library == nullptr) return;
    for (const char* counter : counters) EXPECT_EQ(in_library<int>(counter), 0) << counter;
  }

  template <typename T>
  T& in_library(const char* name) {
    return *static_cast<T*>(dlsym(m_library, name));
  }
  FakeLaunch& launch() { return *static_cast<FakeLaunch*>(dlsym(m_driver, "fake_launch")); }

  void run(const Executable& executable, void* const* buffers, void* workspace) {
    const auto queue = m_device->adopt_queue(&m_stream);
    ASSERT_TRUE(queue.ok());
    const Status launched = executable.device()->launch(**queue, buffers, workspace, nullptr, {});
    ASSERT_TRUE(launched.ok()) << launched.to_string();
  }

  std::unique_ptr<Device> m_device;
  int m_stream = 0;

 private:
  void *m_driver = nullptr, *m_library = nullptr;
};

}  // namespace kiln::cuda
