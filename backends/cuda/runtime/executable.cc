#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/library_call.h"

namespace kiln::cuda {
namespace {

constexpr int k_dynamic_shared_attribute = 8;           // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr uint32_t k_shared_without_asking = 48 << 10;  // more has to be asked for
constexpr int k_no_interleave = 0, k_swizzle_128 = 3, k_no_swizzle = 0, k_promote_256 = 3, k_zero_fill = 0;

Expected<MapType> map_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return MapType::f16;
    case DType::bf16:
      return MapType::bf16;
    case DType::f32:
      return MapType::f32;
    case DType::f64:
      return MapType::f64;
    default:
      return invalid_argument("cuda: no tensor map of {}", to_string(dtype));
  }
}

/// One kernel of a record, loaded.
struct LoadedKernel {
  Module module = nullptr;
  Function function = nullptr;
};

class CudaExecutable final : public DeviceExecutable {
 public:
  /// `call`: the record's; null where it has none, or this host does not take it.
  CudaExecutable(std::shared_ptr<const DeviceContext> context, LaunchRecord record, std::unique_ptr<LibraryCall> call)
      : m_context(std::move(context)), m_record(std::move(record)), m_call(std::move(call)) {}
  ~CudaExecutable() override {
    const ContextScope scope(m_context->driver(), m_context->handle());
    for (const LoadedKernel& kernel : m_kernels) m_context->api().unload_module(kernel.module);
  }

  uint64_t workspace_bytes() const override { return cuda::workspace_bytes(m_record); }
  uint32_t buffer_count() const override { return m_record.buffers; }

  Status load(std::span<const uint8_t> code) {
    const ContextScope scope(m_context->driver(), m_context->handle());
    KILN_RETURN_IF_ERROR(scope.status());
    const Driver& driver = m_context->driver();
    for (const KernelRecord& record : m_record.kernels) {
      LoadedKernel& kernel = m_kernels.emplace_back();
      const auto cubin = code.subspan(record.cubin_offset, record.cubin_bytes);
      const Result loaded = m_context->api().load_module(&kernel.module, cubin.data());
      if (loaded != 0) m_kernels.pop_back();
      KILN_RETURN_IF_ERROR(driver.status_of(loaded, "cuModuleLoadData"));
      KILN_RETURN_IF_ERROR(
          driver.status_of(m_context->api().find_function(&kernel.function, kernel.module, record.entry.c_str()),
                           "cuModuleGetFunction"));
      if (record.shared_bytes <= k_shared_without_asking) continue;
      KILN_RETURN_IF_ERROR(
          driver.status_of(m_context->api().set_function_attribute(kernel.function, k_dynamic_shared_attribute,
                                                                   static_cast<int>(record.shared_bytes)),
                           "cuFuncSetAttribute"));
    }
    return {};
  }

  Status launch(Queue& queue, void* const* buffers, void* workspace, void* status,
                std::span<const int64_t> extents) const override {
    const ContextScope scope(m_context->driver(), m_context->handle());
    KILN_RETURN_IF_ERROR(scope.status());
    if (m_call && m_call->takes(buffers)) return m_call->launch(stream_of(queue), buffers, workspace);
    const std::vector<void*> pointers = argument_pointers(m_record, buffers, workspace, status);
    for (const KernelRecord& kernel : alternative_for(m_record, pointers.data())) {
      KILN_RETURN_IF_ERROR(launch(stream_of(queue), kernel, pointers, extents));
    }
    return {};
  }

 private:
  Status launch(Stream stream, const KernelRecord& kernel, std::span<void* const> pointers,
                std::span<const int64_t> extents) const {
    const size_t extents_offset = argument_bytes(m_record, kernel), bytes = extents_offset + extents.size_bytes();
    std::vector<EncodedMap> memory((bytes + sizeof(EncodedMap) - 1) / sizeof(EncodedMap));  // aligned as maps are
    auto* argument = reinterpret_cast<uint8_t*>(memory.data());
    std::memcpy(argument, static_cast<const void*>(pointers.data()), pointers.size_bytes());
    for (size_t i = 0; i < kernel.maps.size(); ++i) {
      EncodedMap map{};
      KILN_RETURN_IF_ERROR(encode(kernel.maps[i], pointers, map));
      std::memcpy(argument + maps_offset(m_record) + i * sizeof map, &map, sizeof map);
    }
    std::ranges::copy(std::as_bytes(extents), reinterpret_cast<std::byte*>(argument + extents_offset));
    void* arguments[] = {argument};
    const LoadedKernel& loaded = m_kernels[static_cast<size_t>(&kernel - m_record.kernels.data())];
    const Result result = m_context->api().launch(loaded.function, blocks_of(kernel), 1, 1, kernel.threads, 1, 1,
                                                  kernel.shared_bytes, stream, arguments, nullptr);
    return m_context->driver().status_of(result, "cuLaunchKernel");
  }

  unsigned blocks_of(const KernelRecord& record) const {
    if (!record.is_persistent) return static_cast<unsigned>(record.blocks);
    const uint64_t at_once = std::max(m_context->multiprocessors() / record.cluster, 1U) * record.cluster;
    return static_cast<unsigned>(std::min(record.blocks, at_once));
  }

  Status encode(const TensorMapRecord& record, std::span<void* const> pointers, EncodedMap& map) const {
    const DriverFunctions& api = m_context->api();
    if (api.encode_map == nullptr) {
      return error(StatusCode::failed_precondition, "cuda: driver {} has no tensor maps",
                   m_context->driver().version());
    }
    KILN_ASSIGN_OR_RETURN(const MapType type, map_type(record.dtype));
    constexpr std::array<uint32_t, 4> k_steps{1, 1, 1, 1};
    auto* const start = static_cast<uint8_t*>(pointers[record.buffer]) + record.offset_bytes;
    const Result result = api.encode_map(&map, type, k_steps.size(), start, record.extents.data(),
                                         record.stride_bytes.data(), record.box.data(), k_steps.data(), k_no_interleave,
                                         record.is_swizzled ? k_swizzle_128 : k_no_swizzle, k_promote_256, k_zero_fill);
    return m_context->driver().status_of(result, "cuTensorMapEncodeTiled");
  }

  std::shared_ptr<const DeviceContext> m_context;
  LaunchRecord m_record;
  std::vector<LoadedKernel> m_kernels;
  std::unique_ptr<LibraryCall> m_call;
};

}  // namespace

Expected<std::unique_ptr<Executable>> load_executable(std::shared_ptr<const DeviceContext> context,
                                                      std::span<const uint8_t> code, CallUse use) {
  KILN_ASSIGN_OR_RETURN(LaunchRecord record, unpack(code));
  if (std::cmp_greater(record.least_driver, context->driver().version())) {
    return error(StatusCode::failed_precondition, "cuda: the code needs driver {}, this host has {}",
                 record.least_driver, context->driver().version());
  }
  auto call = load_library_call(context, record, code);
  if (!call.ok() && use == CallUse::required) return call.status();
  auto executable = std::make_unique<CudaExecutable>(std::move(context), std::move(record),
                                                     call.ok() ? std::move(call).value() : nullptr);
  KILN_RETURN_IF_ERROR(executable->load(code));
  return std::unique_ptr<Executable>(std::move(executable));
}

}  // namespace kiln::cuda
