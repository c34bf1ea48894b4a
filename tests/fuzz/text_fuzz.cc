// Any text is a graph or an error, and what is a graph prints to text that reads back as the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "frontend/text/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const kiln::Expected<kiln::Graph> graph = kiln::parse_text({reinterpret_cast<const char*>(data), size_bytes});
  if (!graph.ok()) return 0;
  const std::string once = kiln::print_text(*graph);
  const kiln::Expected<kiln::Graph> again = kiln::parse_text(once);
  if (!again.ok() || kiln::print_text(*again) != once) std::abort();
  return 0;
}
