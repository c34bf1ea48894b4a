#include "backends/cpu/compile/backend.h"

#include <llvm/Config/llvm-config.h>
#include <llvm/IR/LLVMContext.h>

#include <array>

#include "backends/cpu/compile/attention.h"
#include "backends/cpu/compile/emitter.h"
#include "backends/cpu/compile/gemm.h"
#include "backends/cpu/compile/loops.h"

namespace kiln::cpu {
namespace {

/// Bump when any emitter changes the code it writes for an unchanged spec and schedule.
constexpr int k_generator_version = 2;

struct KernelKind {
  Status (*claims)(const KernelSpec&, const CpuTarget&);
  std::vector<Schedule> (*candidates)(const KernelSpec&, const CpuTarget&);
  Expected<LaunchShape> (*emit)(Emitter&, const KernelSpec&, const Schedule&);
};

// In the order of KernelSpec::kernel's alternatives.
constexpr std::array<KernelKind, 4> k_kinds{{
    {loops_claims, loops_candidates, emit_loops},
    {gemm_claims, gemm_candidates, emit_gemm},
    {attention_claims, attention_candidates, emit_attention},
    {attention_backward_claims, attention_backward_candidates, emit_attention_backward},
}};
static_assert(k_kinds.size() == std::variant_size_v<decltype(KernelSpec::kernel)>);

const KernelKind& kind_of(const KernelSpec& spec) { return k_kinds[spec.kernel.index()]; }

Expected<const CpuTarget*> resolve(const Target& target) {
  const CpuTarget* found = target.backend == "cpu" ? find_target(target.name) : nullptr;
  if (found == nullptr) return invalid_argument("cpu: no target {}:{}", target.backend, target.name);
  return found;
}

}  // namespace

std::vector<Target> CpuCompileBackend::targets() const {
  std::vector<Target> result;
  for (const CpuTarget& target : ladder()) result.push_back({"cpu", std::string(target.name)});
  return result;
}

TargetTraits CpuCompileBackend::traits(const Target& target) const {
  TargetTraits traits;
  if (const auto found = resolve(target); found.ok()) traits.vector_bytes = found.value()->vector_bytes;
  return traits;
}

std::string CpuCompileBackend::toolchain() const {
  return fmt::format("llvm {} generator {}", LLVM_VERSION_STRING, k_generator_version);
}

Status CpuCompileBackend::claims(const KernelSpec& spec, const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const CpuTarget* cpu, resolve(target));
  return kind_of(spec).claims(spec, *cpu);
}

std::vector<Schedule> CpuCompileBackend::candidates(const KernelSpec& spec, const Target& target) const {
  const auto cpu = resolve(target);
  return cpu.ok() ? kind_of(spec).candidates(spec, **cpu) : std::vector<Schedule>{};
}

Expected<Image> CpuCompileBackend::compile(const KernelSpec& spec, const Schedule& schedule,
                                           const Target& target) const {
  return compile(spec, schedule, target, nullptr);
}

Expected<Image> CpuCompileBackend::compile(const KernelSpec& spec, const Schedule& schedule, const Target& target,
                                           ImageReport* report) const {
  KILN_ASSIGN_OR_RETURN(const CpuTarget* cpu, resolve(target));
  llvm::LLVMContext context;
  llvm::Module module("kernel", context);
  Emitter emitter(module, *cpu);
  KILN_ASSIGN_OR_RETURN(const LaunchShape shape, kind_of(spec).emit(emitter, spec, schedule));
  KILN_ASSIGN_OR_RETURN(Image image, make_image(module, *cpu, {.max_hot_spills = shape.max_hot_spills}, report));
  image.tasks = shape.tasks;
  image.workspace_bytes = shape.workspace_bytes;
  return image;
}

Expected<std::string> CpuCompileBackend::disassemble(const KernelSpec& spec, const Schedule& schedule,
                                                     const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const CpuTarget* cpu, resolve(target));
  llvm::LLVMContext context;
  llvm::Module module("kernel", context);
  Emitter emitter(module, *cpu);
  KILN_ASSIGN_OR_RETURN([[maybe_unused]] const LaunchShape shape, kind_of(spec).emit(emitter, spec, schedule));
  return assembly(module, *cpu);
}

}  // namespace kiln::cpu
