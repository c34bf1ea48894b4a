// Configuration files of any content: an error or a configuration, never more.

#include "base/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kiln::LoadedConfig config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  [[maybe_unused]] const kiln::Status status = kiln::apply_yaml(text, "fuzz", kiln::ConfigLayer::user_file, config);
  return 0;
}
