#include "backends/cuda/compile/backend.h"

#include <fmt/format.h>

#include <array>
#include <future>
#include <vector>

#include "backends/cuda/compile/attention.h"
#include "backends/cuda/compile/cublaslt_gemm.h"
#include "backends/cuda/compile/cudnn_attention.h"
#include "backends/cuda/compile/cudnn_convolution.h"
#include "backends/cuda/compile/gemm.h"
#include "backends/cuda/compile/loops.h"
#include "backends/cuda/compile/texts.h"

namespace kiln::cuda {
namespace {

// Ten times what the largest kernel takes on a busy machine.
constexpr uint64_t k_compile_deadline_ms = 30'000;

struct KernelKind {
  Status (*claims)(const KernelSpec&, const CudaTarget&);
  std::vector<Schedule> (*candidates)(const KernelSpec&, const CudaTarget&, const Machine&);
  Expected<LaunchSource> (*source)(const KernelSpec&, const Schedule&, const CudaTarget&);
};

Status claims_nothing(const KernelSpec& spec, const CudaTarget&) {
  return error(StatusCode::unimplemented, "cuda: no kernel for {}", kind_name(spec));
}
std::vector<Schedule> no_candidates(const KernelSpec&, const CudaTarget&, const Machine&) { return {}; }
Expected<LaunchSource> no_source(const KernelSpec& spec, const Schedule&, const CudaTarget& target) {
  return claims_nothing(spec, target);
}

// In the order of KernelSpec::kernel's alternatives.
constexpr std::array<KernelKind, 5> k_kinds{{
    {loops_claims, loops_candidates, loops_source},
    {gemm_claims, gemm_candidates, gemm_source},
    {attention_claims, attention_candidates, attention_source},
    {attention_claims, attention_candidates, attention_source},
    {claims_nothing, no_candidates, no_source},
}};
static_assert(k_kinds.size() == std::variant_size_v<decltype(KernelSpec::kernel)>);

bool is_attention(const KernelSpec& spec) {
  return std::holds_alternative<AttentionSpec>(spec.kernel) ||
         std::holds_alternative<AttentionBackwardSpec>(spec.kernel);
}

/// cuDNN, where it computes the spec. Else null.
const Cudnn* cudnn_of(const KernelSpec& spec, const CudaTarget& target) {
  return is_attention(spec) ? cudnn_for(attention_problem_of(spec), target) : cudnn_for(spec, target);
}

Expected<CudnnPlan> plan_of(const KernelSpec& spec, const CudnnChoice& choice, const CudaTarget& target) {
  return is_attention(spec) ? cudnn_plan(attention_problem_of(spec), choice, target) : cudnn_plan(spec, choice, target);
}

const KernelKind& kind_of(const KernelSpec& spec) { return k_kinds[spec.kernel.index()]; }

Expected<const CudaTarget*> resolve(const Target& target) {
  const CudaTarget* found = target.backend == "cuda" ? find_cuda_target(target.name) : nullptr;
  if (found == nullptr) return invalid_argument("cuda: no target {}:{}", target.backend, target.name);
  return found;
}

}  // namespace

std::vector<Target> CudaCompileBackend::targets() const {
  std::vector<Target> result;
  for (const CudaTarget& target : cuda_targets()) result.push_back({"cuda", std::string(target.name)});
  return result;
}

Machine CudaCompileBackend::default_machine(const Target& target) const {
  const auto cuda = resolve(target);
  return cuda.ok() ? cuda::default_machine(**cuda) : Machine();
}

std::string CudaCompileBackend::toolchain() const { return nvrtc().ok() ? nvrtc()->identity() : "no nvrtc"; }

std::string CudaCompileBackend::toolchain_of(const KernelSpec& spec, const Target& target) const {
  const CudaTarget* cuda = target.backend == name() ? find_cuda_target(target.name) : nullptr;
  if (cuda == nullptr) return toolchain();
  if (const Cublaslt* cublaslt = cublaslt_for(spec)) return fmt::format("{}, {}", toolchain(), cublaslt->identity());
  const Cudnn* cudnn = cudnn_of(spec, *cuda);
  return cudnn == nullptr ? toolchain() : fmt::format("{}, {}", toolchain(), cudnn->identity());
}

Status CudaCompileBackend::claims(const KernelSpec& spec, const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const CudaTarget* cuda, resolve(target));
  return kind_of(spec).claims(spec, *cuda);
}

std::vector<Schedule> CudaCompileBackend::candidates(const KernelSpec& spec, const Target& target,
                                                     const Machine& machine) const {
  const auto cuda = resolve(target);
  return cuda.ok() ? kind_of(spec).candidates(spec, **cuda, machine) : std::vector<Schedule>{};
}

Expected<LaunchSource> CudaCompileBackend::source(const KernelSpec& spec, const Schedule& schedule,
                                                  const Target& target) {
  KILN_ASSIGN_OR_RETURN(const CudaTarget* cuda, resolve(target));
  return kind_of(spec).source(spec, schedule, *cuda);
}

Expected<Image> CudaCompileBackend::compile(const KernelSpec& spec, const Schedule& schedule,
                                            const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const LaunchSource launch, source(spec, schedule, target));
  if (!nvrtc().ok()) return nvrtc().status().with_context("cuda");
  LaunchRecord record{.buffers = static_cast<uint32_t>(spec.buffers.size()),
                      .workspace_parts = launch.workspace_parts,
                      .least_driver = nvrtc()->least_driver()};
  std::vector<std::vector<uint8_t>> cubins;
  // At once: a kernel should not wait for another one of its launch.
  std::vector<std::future<Expected<Compiled>>> jobs;
  for (const KernelSource& kernel : launch.kernels) {
    jobs.push_back(std::async(std::launch::async, [&] {
      const std::string text = fmt::format("{}{}{}", prelude_text, scalar_text, kernel.text);
      return nvrtc()->compile(text, target.name, k_compile_deadline_ms);
    }));
  }
  std::vector<std::string> plan_texts;
  if (const auto choice = choice_of<CudnnChoice>(schedule.bytes)) {
    KILN_ASSIGN_OR_RETURN(const CudaTarget* cuda, resolve(target));
    KILN_ASSIGN_OR_RETURN(CudnnPlan plan, plan_of(spec, *choice, *cuda));
    record.plans.push_back(std::move(plan.record));
    plan_texts.push_back(std::move(plan.text));
  }
  if (const auto choice = choice_of<CublasltChoice>(schedule.bytes)) {
    KILN_ASSIGN_OR_RETURN(ProductRecord product, cublaslt_product(spec, *choice));
    record.products.push_back(std::move(product));
  }
  for (size_t i = 0; i < launch.kernels.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(Compiled compiled, jobs[i].get());
    const Resources& resources = compiled.resources;
    if (resources.spill_store_bytes + resources.spill_load_bytes > 0) {
      return error(StatusCode::resource_exhausted, "cuda: {}: registers spill, {} bytes stored and {} loaded",
                   schedule.description, resources.spill_store_bytes, resources.spill_load_bytes);
    }
    if (!compiled.complaint.empty()) {
      return error(StatusCode::resource_exhausted, "cuda: {}: {}", schedule.description, compiled.complaint);
    }
    record.kernels.push_back(launch.kernels[i].record);
    record.kernels.back().resources = resources;
    cubins.push_back(std::move(compiled.cubin));
  }
  Image image;
  image.tasks = record.kernels.front().blocks;
  image.workspace_bytes = workspace_bytes(record);
  image.code = pack(std::move(record), cubins, plan_texts);
  return image;
}

}  // namespace kiln::cuda
