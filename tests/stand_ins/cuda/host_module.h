#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.h"

namespace kiln::cuda_emulator {

/// Compiles a kernel's text (all that follows the device prelude) for the host, behind prelude_on_host.h, with every
/// load and store announced to the machine. `entry` is its __global__ function with one argument, a struct.
/// Answers a shared object. Errors: internal, with the compiler's words.
Expected<std::vector<uint8_t>> compile_for_host(std::string_view text, std::string_view entry);

/// What compile_for_host made, loaded.
class HostModule {
 public:
  static Expected<HostModule> load(std::span<const uint8_t> shared_object);
  HostModule(HostModule&& other) noexcept;
  HostModule& operator=(HostModule&&) = delete;
  ~HostModule();

  /// One thread's part of the kernel. `arguments` points to the kernel's struct.
  void call(const void* arguments) const { m_call(arguments); }
  /// Whether its kernel has this name.
  bool has(const char* entry) const;
  /// Blocks of a cluster, as the kernel is declared.
  uint32_t cluster() const { return m_cluster; }
  /// Bytes of the kernel's struct.
  size_t argument_bytes() const { return m_argument_bytes; }
  /// Memory of the module itself.
  std::span<const uint8_t> constants() const { return m_constants; }

 private:
  HostModule() = default;
  int m_file = -1;  // open as long as it is loaded: the loader tells objects apart by the name that has its number
  void* m_handle = nullptr;
  void (*m_call)(const void*) = nullptr;
  uint32_t m_cluster = 1;
  size_t m_argument_bytes = 0;
  std::span<const uint8_t> m_constants;
};

}  // namespace kiln::cuda_emulator
