// A small C interface over compile and launch on a device of this host, so that a Python benchmark can run our kernels and
// torch's in one process, on one stream.
//
// Threading: one caller. Ownership: a kernel lives until kiln_device_destroy. Errors: null or a number other than 0, and
// kiln_device_error() says why.
#include <memory>
#include <string>

#include "backends/cuda/compile/backend.h"
#include "backends/cuda/cudnn/object.h"
#include "backends/cuda/runtime/runtime.h"
#include "bench/cuda/linear_spec.h"
#include "jit/run/device_memory.h"
#include "tests/conformance/attention_case.h"

namespace {

using namespace kiln;

thread_local std::string s_error, s_error_code;
std::unique_ptr<Device> s_device;
Target s_target;
void* s_status = nullptr;

struct DeviceKernel {
  std::string description;
  std::unique_ptr<Executable> executable;
  DeviceMemory workspace;
};

template <typename Value>
Value failed(const Status& status, Value value) {
  s_error = status.to_string();
  s_error_code = to_string(status.code());
  return value;
}

Expected<std::unique_ptr<DeviceKernel>> make_kernel(const KernelSpec& spec, int candidate) {
  if (s_device == nullptr) return error(StatusCode::failed_precondition, "no device is open");
  const cuda::CudaCompileBackend backend;
  KILN_RETURN_IF_ERROR(validate(spec));
  KILN_RETURN_IF_ERROR(backend.claims(spec, s_target));
  const auto candidates = default_candidates(backend, spec, s_target);
  if (candidate < 0 || static_cast<size_t>(candidate) >= candidates.size()) {
    return error(StatusCode::out_of_range, "candidate {} of {}", candidate, candidates.size());
  }
  const Schedule& schedule = candidates[static_cast<size_t>(candidate)];
  KILN_ASSIGN_OR_RETURN(const Image image, backend.compile(spec, schedule, s_target));
  auto kernel = std::make_unique<DeviceKernel>();
  kernel->description = schedule.description;
  KILN_ASSIGN_OR_RETURN(kernel->executable, s_device->load_whole(image, image.code));
  KILN_ASSIGN_OR_RETURN(kernel->workspace, DeviceMemory::allocate(*s_device, image.workspace_bytes));
  return kernel;
}

DeviceKernel* released(Expected<std::unique_ptr<DeviceKernel>> kernel) {
  if (!kernel.ok()) return failed(kernel.status(), nullptr);
  return std::move(kernel).value().release();
}

}  // namespace

#define KILN_EXPORT extern "C" __attribute__((visibility("default")))

KILN_EXPORT const char* kiln_device_error() { return s_error.c_str(); }
/// The name of its status code.
KILN_EXPORT const char* kiln_device_error_code() { return s_error_code.c_str(); }

/// Opens device `index` for its best target.
KILN_EXPORT int kiln_device_open(int index) {
  const cuda::CudaRuntimeBackend runtime;
  const Discovery& discovery = runtime.discover();
  if (!discovery.status.ok()) return failed(discovery.status, 1);
  auto device = runtime.open(static_cast<size_t>(index));
  if (!device.ok()) return failed(device.status(), 1);
  s_device = std::move(device).value();
  s_target = discovery.devices[static_cast<size_t>(index)].targets.front();
  auto status = s_device->allocate(sizeof(uint32_t));
  if (!status.ok()) return failed(status.status(), 1);
  s_status = *status;
  return 0;
}

/// The device as cuDNN describes it (backends/cuda/compile/cudnn_*.json); why not, where it cannot.
KILN_EXPORT const char* kiln_device_of_cudnn() {
  static const std::string text = [] {
    const auto& cudnn = cuda::Cudnn::of_process();
    if (!cudnn.ok()) return cudnn.status().to_string();
    cuda::CudnnObject device(*cudnn, cuda::CudnnKind::device);
    device.set(cuda::CudnnAttribute::device_index, cuda::CudnnValue::int32, int32_t{0});
    if (const Status finalised = device.finalise("the device"); !finalised.ok()) return finalised.to_string();
    const auto described = device.text(cuda::CudnnAttribute::device_text);
    return described.ok() ? *described : described.status().to_string();
  }();
  return text.c_str();
}

/// dtype: 5 f16, 6 bf16, 7 f32. Pointers of the launch: x, w, [bias,] [residual,] y.
KILN_EXPORT void* kiln_device_linear(int dtype, int64_t m, int64_t n, int64_t k, int x_transposed, int w_transposed,
                                     int bias, int gelu, int residual, int candidate) {
  const bench::LinearEpilogue what{bias != 0, gelu != 0, residual != 0};
  return released(make_kernel(
      bench::linear_spec(static_cast<DType>(dtype), m, n, k, x_transposed != 0, w_transposed != 0, what), candidate));
}

/// Tensors [batch, heads, length, depth]; causal: the last query sees all keys; window 0: none. Pointers of the launch:
/// q, k, v, out, lse (f32), and of the gradients also grad_out, grad_q, grad_k, grad_v.
KILN_EXPORT void* kiln_device_attention(int dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                                        int64_t k_len, int64_t depth, int causal, int64_t window, int backward,
                                        int candidate) {
  conformance::AttentionBuilder builder({.batch = batch,
                                         .heads = heads,
                                         .kv_heads = kv_heads,
                                         .q_len = q_len,
                                         .k_len = k_len,
                                         .head_dim = depth,
                                         .causal = causal != 0,
                                         .causal_offset = k_len - q_len,
                                         .dtype = static_cast<DType>(dtype),
                                         .window = window});
  return released(make_kernel(backward != 0 ? builder.backward() : builder.forward(), candidate));
}

KILN_EXPORT const char* kiln_device_description(void* kernel) {
  return static_cast<DeviceKernel*>(kernel)->description.c_str();
}

/// On `stream`, a stream of the driver's or the runtime's, not waited for.
KILN_EXPORT int kiln_device_launch(void* kernel, void* const* pointers, void* stream) {
  const auto queue = s_device->adopt_queue(stream);
  if (!queue.ok()) return failed(queue.status(), 1);
  const auto& own = *static_cast<const DeviceKernel*>(kernel);
  const Status launched = own.executable->device()->launch(**queue, pointers, own.workspace.get(), s_status, {});
  return launched.ok() ? 0 : failed(launched, 1);
}

KILN_EXPORT void kiln_device_destroy(void* kernel) { delete static_cast<DeviceKernel*>(kernel); }
