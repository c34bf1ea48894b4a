#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "jit/run/data_flow.h"

namespace kiln {

/// Which outputs of a program may be given the memory of which inputs: where no launch reads the input after the output's
/// first write, and the launch that makes this write reads it, if at all, as the kernel allows (overwrites() of its spec).
class InPlace {
 public:
  /// Two buffers of one launch that may be the same memory.
  struct Pair {
    uint32_t output = 0, input = 0;
  };

  /// The next launch; pairs name its accesses by number.
  void add(std::span<const DataFlow::Access> launch, std::span<const Pair> allowed);
  bool allows(uint32_t output, uint32_t input) const;

 private:
  uint32_t m_launches = 0;
  std::map<uint32_t, uint32_t> m_last_reads;          // of inputs, by launch
  std::map<uint32_t, uint32_t> m_first_writes;        // of outputs
  std::set<std::pair<uint32_t, uint32_t>> m_at_once;  // output and input, where the launch of the first write reads it
};

}  // namespace kiln
