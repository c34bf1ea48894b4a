// The CUDA backend with the stand-ins for its driver, its compiler, cuBLASLt and cuDNN. Of what a spec's candidates are, those by a
// library are tried, and where none computes the spec the best kernel alone.
#include <algorithm>

#include "backends/cuda/compile/backend.h"
#include "backends/cuda/compile/cublaslt_gemm.h"
#include "backends/cuda/compile/cudnn_planner.h"
#include "backends/cuda/runtime/runtime.h"
#include "tests/conformance/backend_under_test.h"

namespace kiln::conformance {
namespace {

class ProductsBackend final : public CompileBackend {
 public:
  std::string_view name() const override { return m_real.name(); }
  std::vector<Target> targets() const override { return m_real.targets(); }
  Machine default_machine(const Target& target) const override { return m_real.default_machine(target); }
  std::string toolchain() const override { return m_real.toolchain(); }
  Status claims(const KernelSpec& spec, const Target& target) const override { return m_real.claims(spec, target); }
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target,
                                   const Machine& machine) const override {
    std::vector<Schedule> all = m_real.candidates(spec, target, machine);
    const auto is_other = [](const Schedule& schedule) {
      return !cuda::choice_of<cuda::CublasltChoice>(schedule.bytes) &&
             !cuda::choice_of<cuda::CudnnChoice>(schedule.bytes);
    };
    // Three: the library proposes two.
    std::vector<Schedule> chosen = all;
    std::erase_if(chosen, is_other);
    chosen.resize(std::min<size_t>(chosen.size(), 3));
    return chosen.empty() ? std::vector<Schedule>{all.front()} : chosen;
  }
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override {
    return m_real.compile(spec, schedule, target);
  }

 private:
  cuda::CudaCompileBackend m_real;
};

}  // namespace

std::vector<BackendUnderTest> backends_under_test() {
  const cuda::CudaRuntimeBackend runtime;
  const auto compile = std::make_shared<const ProductsBackend>();
  return {on_this_host(compile, runtime, compile->targets().front())};
}

}  // namespace kiln::conformance
