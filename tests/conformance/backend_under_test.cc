#include "tests/conformance/backend_under_test.h"

#include <cctype>

namespace kiln::conformance {

BackendUnderTest on_this_host(std::shared_ptr<const CompileBackend> compile, const RuntimeBackend& runtime,
                              const Target& target) {
  const auto& devices = runtime.discover().devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    for (const Target& runnable : devices[i].targets) {
      if (runnable.name != target.name) continue;
      if (auto device = runtime.open(i); device.ok()) return {std::move(compile), runnable, std::move(*device)};
    }
  }
  return {std::move(compile), target, nullptr};
}

std::string name_of(const BackendUnderTest& backend) {
  std::string name = backend.target.backend + "_" + backend.target.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

}  // namespace kiln::conformance
