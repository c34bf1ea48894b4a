#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::conformance {

/// Memory that ends at a page nobody may touch and begins behind a red zone: reading or writing past the end
/// faults, writing before the start is found by intact(). Aligned to no more than the element. `slack_bytes` before the
/// page move it; writing there is found by intact() as well.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t size_bytes, size_t slack_bytes = 0) : m_size(size_bytes), m_slack(slack_bytes) {
    m_pages = (m_size + m_slack + k_red_zone + k_page - 1) / k_page;
    m_base = static_cast<uint8_t*>(
        mmap(nullptr, (m_pages + 1) * k_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(m_base, MAP_FAILED);
    EXPECT_EQ(mprotect(m_base + m_pages * k_page, k_page, PROT_NONE), 0);
    std::memset(m_base, k_poison, m_pages * k_page);
  }
  ~GuardedBuffer() { munmap(m_base, (m_pages + 1) * k_page); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  uint8_t* data() { return m_base + m_pages * k_page - m_slack - m_size; }
  size_t size() const { return m_size; }
  std::span<uint8_t> bytes() { return {data(), m_size}; }
  bool intact() {
    const auto is_poison = [](uint8_t byte) { return byte == k_poison; };
    return std::all_of(m_base, data(), is_poison) && std::all_of(data() + m_size, m_base + m_pages * k_page, is_poison);
  }

 private:
  static constexpr size_t k_page = 4096;
  static constexpr size_t k_red_zone = 256;
  static constexpr int k_poison = 0xA5;

  size_t m_size, m_slack;
  size_t m_pages = 0;
  uint8_t* m_base = nullptr;
};

}  // namespace kiln::conformance
