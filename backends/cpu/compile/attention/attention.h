#pragma once

#include "backends/cpu/compile/emit/kernel_emission.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::cpu {

/// The ways to compile an AttentionSpec, and an AttentionBackwardSpec.
std::span<const Implementation> attention_implementations();
std::span<const Implementation> attention_backward_implementations();

// decode.cc, decode_backward.cc, forward.cc, backward.cc
Expected<LaunchShape> emit_decode_attention(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes);
Expected<LaunchShape> emit_sized_decode_attention(Emitter& emitter, const KernelSpec& spec,
                                                  std::span<const uint8_t> bytes);
Expected<LaunchShape> emit_decode_backward(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes);
template <typename Choices>
Expected<LaunchShape> emit_attention(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes);
template <typename Choices>
Expected<LaunchShape> emit_attention_backward(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes);

}  // namespace kiln::cpu
