#include "backends/cpu/compile/backend.h"

#include <llvm/Config/llvm-config.h>
#include <llvm/IR/LLVMContext.h>

#include <algorithm>
#include <array>

#include "backends/cpu/compile/attention/attention.h"
#include "backends/cpu/compile/emit/disassembler.h"
#include "backends/cpu/compile/emit/emitter.h"
#include "backends/cpu/compile/gemm/implementations.h"
#include "backends/cpu/compile/loops/loops.h"
#include "backends/cpu/compile/sort/sort.h"
#include "backends/cpu/launch_data.h"
#include "backends/schedule_bytes.h"
#include "base/limits.h"

namespace kiln::cpu {
namespace {

constexpr size_t k_most_candidates = 12;

// In the order of KernelSpec::kernel's alternatives.
constexpr std::array k_families{loops_implementations, gemm_implementations, attention_implementations,
                                attention_backward_implementations, sort_implementations};
static_assert(k_families.size() == std::variant_size_v<decltype(KernelSpec::kernel)>);

std::span<const Implementation> implementations_of(const KernelSpec& spec) { return k_families[spec.kernel.index()](); }

Expected<const Implementation*> find_implementation(const KernelSpec& spec, std::span<const uint8_t> schedule) {
  KILN_ASSIGN_OR_RETURN(const ScheduleBytes bytes, open_schedule(schedule));
  for (const Implementation& implementation : implementations_of(spec)) {
    if (implementation.name == bytes.implementation) return &implementation;
  }
  return invalid_argument("cpu: no implementation \"{}\" of {}", bytes.implementation, kind_name(spec));
}

/// The best of each row, then the second of each, and so on: a row with many schedules hides no other.
std::vector<Schedule> in_turn(const std::vector<std::vector<Schedule>>& of_rows) {
  std::vector<Schedule> schedules;
  size_t longest = 0;
  for (const auto& row : of_rows) longest = std::max(longest, row.size());
  for (size_t rank = 0; rank < longest; ++rank) {
    for (const auto& row : of_rows) {
      if (rank < row.size()) schedules.push_back(row[rank]);
    }
  }
  return schedules;
}

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

Machine CpuCompileBackend::default_machine(const Target& target) const {
  const auto cpu = resolve(target);
  return cpu.ok() ? cpu::default_machine(**cpu) : Machine();
}

std::string CpuCompileBackend::toolchain() const { return "llvm " LLVM_VERSION_STRING; }

Status CpuCompileBackend::claims(const KernelSpec& spec, const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const CpuTarget* cpu, resolve(target));
  Status why;
  for (const Implementation& implementation : implementations_of(spec)) {
    why = implementation.claims(spec, *cpu);
    if (why.ok()) break;
  }
  return why;
}

std::vector<Schedule> CpuCompileBackend::candidates(const KernelSpec& spec, const Target& target,
                                                    const Machine& machine) const {
  std::vector<Schedule> first = schedules(spec, target, machine);
  if (first.size() > k_most_candidates) first.resize(k_most_candidates);
  return first;
}

std::vector<Schedule> CpuCompileBackend::schedules(const KernelSpec& spec, const Target& target,
                                                   const Machine& machine) const {
  const auto cpu = resolve(target);
  if (!cpu.ok()) return {};
  std::vector<std::vector<Schedule>> of_rows;
  for (const Implementation& implementation : implementations_of(spec)) {
    if (!implementation.claims(spec, **cpu).ok()) continue;
    of_rows.push_back(implementation.schedules(spec, **cpu, machine));
  }
  return in_turn(of_rows);
}

std::optional<SizedSpec> CpuCompileBackend::sized(const KernelSpec& spec, const Target& target,
                                                  std::span<const uint8_t> like) const {
  const auto cpu = resolve(target);
  if (!cpu.ok() || target.is_deterministic) return std::nullopt;
  for (const Implementation& implementation : implementations_of(spec)) {
    if (implementation.sized == nullptr || !implementation.claims(spec, **cpu).ok()) continue;
    if (auto sized = implementation.sized(spec, **cpu, like)) return sized;
  }
  return std::nullopt;
}

Expected<Image> CpuCompileBackend::compile(const KernelSpec& spec, const Schedule& schedule,
                                           const Target& target) const {
  return compile(spec, schedule, target, nullptr);
}

Expected<Image> CpuCompileBackend::compile(const KernelSpec& spec, const Schedule& schedule, const Target& target,
                                           ImageReport* report) const {
  KILN_ASSIGN_OR_RETURN(const CpuTarget* cpu, resolve(target));
  KILN_ASSIGN_OR_RETURN(const Implementation* implementation, find_implementation(spec, schedule.bytes));
  KILN_RETURN_IF_ERROR(implementation->claims(spec, *cpu));
  llvm::LLVMContext context;
  llvm::Module module("kernel", context);
  Emitter emitter(module, *cpu);
  KILN_ASSIGN_OR_RETURN(const LaunchShape shape, implementation->emit(emitter, spec, schedule.bytes));
  if (shape.workspace_bytes > limits::k_task_workspace_bytes) {
    return error(StatusCode::resource_exhausted, "cpu: {}: workspace is {} bytes, limit {}", schedule.description,
                 shape.workspace_bytes, limits::k_task_workspace_bytes);
  }
  KILN_ASSIGN_OR_RETURN(Image image, make_image(module, *cpu, report));
  image.tasks = shape.tasks;
  image.workspace_bytes = shape.workspace_bytes;
  return image;
}

Expected<Image> CpuCompileBackend::finish(Image image, const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const CpuTarget* cpu, resolve(target));
  const Status status = check_launch_data(image, image.code.size());
  if (status.ok() && image.features == cpu->features) return image;
  const std::string why = status.ok() ? "it needs " + describe(image.features) : status.message();
  return error(StatusCode::data_loss, "cpu: launch data that code for {} cannot have: {}", target.name, why);
}

Expected<std::string> CpuCompileBackend::disassemble(const Image& image, const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const CpuTarget* cpu, resolve(target));
  return cpu::disassemble(image, *cpu);
}

}  // namespace kiln::cpu
