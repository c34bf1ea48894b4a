// The conformance suite for a machine with a device: this backend alone, so that it carries no other compiler.
#include "backends/cuda/compile/backend.h"
#include "backends/cuda/runtime/runtime.h"
#include "tests/conformance/backend_under_test.h"

namespace kiln::conformance {

std::vector<BackendUnderTest> backends_under_test() {
  const cuda::CudaRuntimeBackend runtime;
  const auto compile = std::make_shared<cuda::CudaCompileBackend>();
  std::vector<BackendUnderTest> result;
  const auto& devices = runtime.discover().devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    for (const Target& target : devices[i].targets) {
      if (auto device = runtime.open(i); device.ok()) result.push_back({compile, target, std::move(*device)});
    }
    break;  // devices of one kind would show the same
  }
  // Without one the suite skips, and says that this host lacks the target.
  if (result.empty()) result.push_back({compile, compile->targets().front(), nullptr});
  return result;
}

}  // namespace kiln::conformance
