#include "backends/level_zero/compile/backend.h"
#include "backends/level_zero/runtime/runtime.h"
#include "tests/conformance/backend_under_test.h"

namespace kiln::conformance {

std::vector<BackendUnderTest> backends_under_test() {
  const auto compile = std::make_shared<level_zero::LevelZeroCompileBackend>();
  std::vector<BackendUnderTest> result;
  for (const Target& target : compile->targets()) {
    result.push_back(on_this_host(compile, level_zero::LevelZeroRuntimeBackend(), target));
  }
  return result;
}

}  // namespace kiln::conformance
