#include "backends/level_zero/compile/write_kernel.h"

#include <spirv-tools/libspirv.hpp>

#include <array>
#include <cstring>

namespace kiln::level_zero {
namespace {

struct KernelKind {
  Status (*claims)(const KernelSpec&, const DeviceFamily&);
  std::vector<Schedule> (*candidates)(const KernelSpec&, const DeviceFamily&, const Machine&);
  Expected<EmittedKernel> (*emit)(Emitter&, const KernelSpec&, std::span<const uint8_t>, const DeviceFamily&);
};

Status claims_nothing(const KernelSpec& spec, const DeviceFamily&) {
  return error(StatusCode::unimplemented, "level zero: no kernel for {}", kind_name(spec));
}

std::vector<Schedule> no_candidates(const KernelSpec&, const DeviceFamily&, const Machine&) { return {}; }

Expected<EmittedKernel> emit_nothing(Emitter&, const KernelSpec& spec, std::span<const uint8_t>,
                                     const DeviceFamily& family) {
  return claims_nothing(spec, family);
}

// Level Zero allows half precision, which the validator knows of no OpenCL environment that does.
constexpr spv_target_env k_environment = SPV_ENV_UNIVERSAL_1_2;

// In the order of KernelSpec::kernel's alternatives.
constexpr std::array<KernelKind, 5> k_kinds{{
    {loops_claims, loops_candidates, emit_loops},
    {gemm_claims, gemm_candidates, emit_gemm},
    {attention_claims, attention_candidates, emit_attention},
    {attention_claims, attention_candidates, emit_attention},
    {claims_nothing, no_candidates, emit_nothing},
}};
static_assert(k_kinds.size() == std::variant_size_v<decltype(KernelSpec::kernel)>);

const KernelKind& kind_of(const KernelSpec& spec) { return k_kinds[spec.kernel.index()]; }

std::vector<uint32_t> to_words(std::span<const uint8_t> bytes) {
  std::vector<uint32_t> words(bytes.size() / 4);
  std::memcpy(words.data(), bytes.data(), words.size() * 4);
  return words;
}

}  // namespace

Status claims(const KernelSpec& spec, const DeviceFamily& family) { return kind_of(spec).claims(spec, family); }

std::vector<Schedule> candidates(const KernelSpec& spec, const DeviceFamily& family, const Machine& machine) {
  return kind_of(spec).candidates(spec, family, machine);
}

Status validate_spirv(std::span<const uint8_t> bytes) {
  if (bytes.empty() || bytes.size() % 4 != 0) return invalid_argument("spir-v: {} bytes are no module", bytes.size());
  spvtools::SpirvTools tools(k_environment);
  std::string words;
  tools.SetMessageConsumer([&](spv_message_level_t, const char*, const spv_position_t& position, const char* message) {
    if (words.empty()) words = fmt::format("instruction {}: {}", position.index, message);
  });
  if (tools.Validate(to_words(bytes))) return {};
  return invalid_argument("spir-v: {}", words.empty() ? "not a module" : words);
}

Expected<std::string> disassemble(std::span<const uint8_t> bytes) {
  std::string text;
  spvtools::SpirvTools tools(k_environment);
  if (bytes.size() % 4 != 0 || !tools.Disassemble(to_words(bytes), &text)) {
    return invalid_argument("spir-v: {} bytes are no module", bytes.size());
  }
  return text;
}

Expected<PortableKernel> write_kernel(const KernelSpec& spec, const Schedule& schedule, const DeviceFamily& family) {
  Emitter emitter;
  KILN_ASSIGN_OR_RETURN(const EmittedKernel emitted, kind_of(spec).emit(emitter, spec, schedule.bytes, family));
  PortableKernel kernel{{}, emitted.launch, family.features | emitted.features};
  const std::vector<uint32_t> words = emitter.finish();
  const auto* first = reinterpret_cast<const uint8_t*>(words.data());
  kernel.spirv.assign(first, first + words.size() * 4);
  if (const Status valid = validate_spirv(kernel.spirv); !valid.ok()) {
    return error(StatusCode::internal, "level zero: {} gave a module that is not valid: {}", kernel_name(spec),
                 valid.message());
  }
  return kernel;
}

}  // namespace kiln::level_zero
