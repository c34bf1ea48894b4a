// Any bytes are a graph or an error, and what is a graph survives being written and read.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "frontend/wire/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const kiln::Expected<kiln::Graph> graph = kiln::from_wire({data, size_bytes});
  if (!graph.ok()) return 0;
  const std::vector<uint8_t> once = kiln::to_wire(*graph);
  const kiln::Expected<kiln::Graph> again = kiln::from_wire(once);
  if (!again.ok() || kiln::to_wire(*again) != once) std::abort();
  return 0;
}
