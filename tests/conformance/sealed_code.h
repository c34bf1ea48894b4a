#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

namespace kiln::conformance {

/// Code in executable memory that is never writable at the same time: written, then sealed.
class SealedCode {
 public:
  explicit SealedCode(std::span<const uint8_t> code) : m_size(code.size()) {
    if (m_size == 0) return;
    m_address = mmap(nullptr, m_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m_address == MAP_FAILED) std::abort();
    std::memcpy(m_address, code.data(), m_size);
    if (mprotect(m_address, m_size, PROT_READ | PROT_EXEC) != 0) std::abort();
  }
  ~SealedCode() {
    if (m_size > 0) munmap(m_address, m_size);
  }
  SealedCode(const SealedCode&) = delete;
  SealedCode& operator=(const SealedCode&) = delete;

  std::span<const uint8_t> bytes() const { return {static_cast<const uint8_t*>(m_address), m_size}; }

 private:
  size_t m_size;
  void* m_address = nullptr;
};

}  // namespace kiln::conformance
