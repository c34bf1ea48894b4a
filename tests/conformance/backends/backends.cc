#include "backends/cpu/compile/backend.h"
#include "backends/cpu/runtime/runtime.h"
#include "tests/conformance/backend_under_test.h"

namespace kiln::conformance {

std::vector<BackendUnderTest> backends_under_test() {
  std::vector<BackendUnderTest> result;
  const auto add = [&](std::shared_ptr<const CompileBackend> compile, const RuntimeBackend& runtime) {
    for (const Target& target : compile->targets()) result.push_back(on_this_host(compile, runtime, target));
  };
  add(std::make_shared<cpu::CpuCompileBackend>(), cpu::CpuRuntimeBackend());
  return result;
}

}  // namespace kiln::conformance
