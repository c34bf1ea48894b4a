#include "tests/conformance/backend_under_test.h"
#include "tests/stand_ins/cuda/emulated_backend.h"

namespace kiln::conformance {

std::vector<BackendUnderTest> backends_under_test() {
  const auto compile = std::make_shared<const cuda_emulator::EmulatedCompileBackend>();
  const auto device = std::make_shared<cuda_emulator::EmulatedDevice>();
  std::vector<BackendUnderTest> result;
  for (const Target& target : compile->targets()) result.push_back({compile, target, device});
  return result;
}

}  // namespace kiln::conformance
