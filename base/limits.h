#pragma once

#include <cstddef>
#include <cstdint>

/// Every bound of the system, in one place, with its reason. Hitting one is a typed error (resource_exhausted
/// or invalid_argument), never a crash. Sizes in bytes, times in milliseconds.
namespace kiln::limits {

// Graphs. GPT-2 with 48 layers in training has about 5,000 nodes; 20x that is still parsed in milliseconds.
inline constexpr size_t k_graph_nodes = 100'000;
inline constexpr size_t k_graph_values = 400'000;
inline constexpr size_t k_node_operands = 4'096;  // a cat or stack over many tensors
inline constexpr size_t k_tensor_rank = 16;
inline constexpr int64_t k_tensor_elements = int64_t{1} << 40;
inline constexpr size_t k_symbols = 1'024;
inline constexpr size_t k_name_bytes = 256;
inline constexpr size_t k_text_bytes = size_t{64} << 20;

// Kernels.
inline constexpr size_t k_kernel_buffers = 128;
inline constexpr size_t k_code_bytes = size_t{16} << 20;
inline constexpr size_t k_task_workspace_bytes = size_t{256} << 20;

// The wire.
inline constexpr size_t k_frame_bytes = size_t{256} << 20;  // a graph with its constants
inline constexpr size_t k_frame_descriptors = 4;

}  // namespace kiln::limits
