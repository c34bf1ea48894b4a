#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kiln {

/// A loop that keeps a core of the host at what it multiplies fastest, in registers: what the speed of kernels is held against.
struct HostLoop {
  std::string_view dtype;  // of what is multiplied
  double operations = 0;   // floating-point operations of a round
  void (*run)(uint64_t rounds) = nullptr;
};

/// One for each dtype that the host multiplies by instructions of its own; none on a host without fused multiply-adds.
std::vector<HostLoop> host_loops();

/// Reads whole blocks of 256 bytes from front to back.
void read_memory(std::span<const std::byte> memory);

}  // namespace kiln
