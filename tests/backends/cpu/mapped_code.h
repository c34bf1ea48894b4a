#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "backends/cpu/features.h"
#include "backends/cpu/runtime/runtime.h"

namespace kiln::cpu {

/// Code in executable memory that is never writable at the same time: written, then sealed.
class MappedCode {
 public:
  explicit MappedCode(std::span<const uint8_t> code) : m_size(code.size()) {
    m_address = mmap(nullptr, m_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(m_address, MAP_FAILED);
    std::memcpy(m_address, code.data(), m_size);
    EXPECT_EQ(mprotect(m_address, m_size, PROT_READ | PROT_EXEC), 0);
  }
  ~MappedCode() { munmap(m_address, m_size); }
  MappedCode(const MappedCode&) = delete;
  MappedCode& operator=(const MappedCode&) = delete;

  std::span<const uint8_t> bytes() const { return {static_cast<const uint8_t*>(m_address), m_size}; }

 private:
  void* m_address;
  size_t m_size;
};

/// An image that was loaded as a client loads it.
class LoadedImage {
 public:
  explicit LoadedImage(const Image& image) : m_code(image.code) {
    auto loaded = load_image(image, m_code.bytes());
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    if (loaded.ok()) m_executable = std::move(loaded).value();
  }

  /// Runs the whole grid.
  LaunchStatus run(const std::vector<void*>& buffers) const {
    auto status = LaunchStatus::ok;
    std::vector<uint8_t> workspace(m_executable->workspace_bytes() + 64);
    const auto address = (reinterpret_cast<uintptr_t>(workspace.data()) + 63) & ~uintptr_t{63};
    m_executable->run(buffers.data(), reinterpret_cast<void*>(address), &status, 0, m_executable->tasks());
    return status;
  }
  const HostExecutable& executable() const { return *m_executable; }

 private:
  MappedCode m_code;
  std::unique_ptr<HostExecutable> m_executable;
};

inline bool host_runs(const CpuTarget& target) { return (target.features & ~host_features()) == 0; }

}  // namespace kiln::cpu
