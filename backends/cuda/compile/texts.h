#pragma once

#include <cstdint>
#include <string_view>

/// The parts of a kernel's source that are files of this folder, as they are.
namespace kiln::cuda {

extern const std::string_view prelude_text;
inline constexpr uint32_t k_shared_alignment_bytes = 1024;  // the prelude's shared_memory() rounds its start up
extern const std::string_view scalar_text;
extern const std::string_view gemm_common_text;
extern const std::string_view gemm_simple_text;
extern const std::string_view gemm_mma_text;
extern const std::string_view gemm_wgmma_text;
extern const std::string_view attention_common_text;
extern const std::string_view attention_combine_text;
extern const std::string_view attention_simple_text;
extern const std::string_view attention_simple_tiles_text;
extern const std::string_view attention_tiles_text;
extern const std::string_view attention_mma_text;
extern const std::string_view attention_warpgroups_text;
extern const std::string_view attention_wgmma_text;
extern const std::string_view attention_backward_text;
extern const std::string_view attention_backward_simple_text;
extern const std::string_view attention_backward_mma_text;
extern const std::string_view attention_backward_wgmma_text;
extern const std::string_view cudnn_sm_90a_text;

}  // namespace kiln::cuda
