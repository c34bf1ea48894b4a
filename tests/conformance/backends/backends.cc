#include <cctype>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/runtime/runtime.h"
#include "tests/conformance/backend_under_test.h"

namespace kiln::conformance {

std::vector<BackendUnderTest> backends_under_test() {
  std::vector<BackendUnderTest> result;
  const auto add = [&](std::shared_ptr<const CompileBackend> compile, std::shared_ptr<const RuntimeBackend> runtime) {
    for (const Target& target : compile->targets()) result.push_back({compile, runtime, target});
  };
  add(std::make_shared<cpu::CpuCompileBackend>(), std::make_shared<cpu::CpuRuntimeBackend>());
  return result;
}

std::string name_of(const BackendUnderTest& backend) {
  std::string name = backend.target.backend + "_" + backend.target.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

}  // namespace kiln::conformance
