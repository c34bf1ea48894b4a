#include "backends/cuda/runtime/device.h"

#include "backends/cuda/runtime/recording.h"
#include "backends/cuda/runtime/timed_event.h"

namespace kiln::cuda {
namespace {

constexpr unsigned k_non_blocking_stream = 1;  // CU_STREAM_NON_BLOCKING: not ordered with the default stream
constexpr int k_no_capture = 0;                // CU_STREAM_CAPTURE_STATUS_NONE

DevicePointer device_pointer(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

class CudaQueue final : public Queue {
 public:
  CudaQueue(std::shared_ptr<const DeviceContext> context, Stream stream, bool is_own)
      : m_context(std::move(context)), m_stream(stream), m_is_own(is_own) {}
  ~CudaQueue() override {
    if (!m_is_own) return;
    const ContextScope scope(m_context->driver(), m_context->handle());
    m_context->api().destroy_stream(m_stream);
  }

  Status upload(void* to, const void* from_host, size_t bytes) override {
    return in_context("cuMemcpyHtoDAsync", [&](const DriverFunctions& api) {
      return api.upload(device_pointer(to), from_host, bytes, m_stream);
    });
  }
  Status download(void* to_host, const void* from, size_t bytes) override {
    return in_context("cuMemcpyDtoHAsync", [&](const DriverFunctions& api) {
      return api.download(to_host, device_pointer(from), bytes, m_stream);
    });
  }
  Status copy(void* to, const void* from, size_t bytes) override {
    return in_context("cuMemcpyDtoDAsync", [&](const DriverFunctions& api) {
      return api.copy(device_pointer(to), device_pointer(from), bytes, m_stream);
    });
  }
  Status synchronise() override {
    return in_context("cuStreamSynchronize",
                      [&](const DriverFunctions& api) { return api.synchronise_stream(m_stream); });
  }

  Expected<double> seconds_of(const std::function<Status()>& put) override {
    TimedEvent begin(m_context), end(m_context);
    KILN_RETURN_IF_ERROR(begin.record(m_stream));
    KILN_RETURN_IF_ERROR(put());
    KILN_RETURN_IF_ERROR(end.record(m_stream));
    KILN_RETURN_IF_ERROR(synchronise());
    return end.seconds_since(begin);
  }
  Expected<bool> is_recorded() override {
    int status = 0;
    KILN_RETURN_IF_ERROR(in_context("cuStreamIsCapturing",
                                    [&](const DriverFunctions& api) { return api.capture_status(m_stream, &status); }));
    return status != k_no_capture;
  }

  Stream stream() const { return m_stream; }

 private:
  template <typename Call>
  Status in_context(std::string_view name, Call call) const {
    const ContextScope scope(m_context->driver(), m_context->handle());
    KILN_RETURN_IF_ERROR(scope.status());
    return m_context->driver().status_of(call(m_context->api()), name);
  }

  std::shared_ptr<const DeviceContext> m_context;
  Stream m_stream;
  bool m_is_own;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(std::shared_ptr<const DeviceContext> context) : m_context(std::move(context)) {}

  Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code) override {
    return load(launch_data, code, CallUse::optional);
  }
  Expected<std::unique_ptr<Executable>> load_whole(const Image& launch_data, std::span<const uint8_t> code) override {
    return load(launch_data, code, CallUse::required);
  }

  Expected<void*> allocate(size_t bytes) override {
    const ContextScope scope(m_context->driver(), m_context->handle());
    KILN_RETURN_IF_ERROR(scope.status());
    DevicePointer memory = 0;
    // The driver refuses to allocate nothing.
    const Result result = m_context->api().allocate(&memory, bytes == 0 ? 1 : bytes);
    if (result != 0) {
      return m_context->driver().status_of(result, "cuMemAlloc").with_context(fmt::format("{} bytes", bytes));
    }
    return reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr): the driver says addresses as integers
  }

  void release(void* memory) override {
    if (memory == nullptr) return;
    const ContextScope scope(m_context->driver(), m_context->handle());
    m_context->api().release(device_pointer(memory));
  }

  Expected<std::unique_ptr<Queue>> create_queue() override {
    const ContextScope scope(m_context->driver(), m_context->handle());
    KILN_RETURN_IF_ERROR(scope.status());
    Stream stream = nullptr;
    const Result result = m_context->api().create_stream(&stream, k_non_blocking_stream);
    KILN_RETURN_IF_ERROR(m_context->driver().status_of(result, "cuStreamCreate"));
    return std::unique_ptr<Queue>(std::make_unique<CudaQueue>(m_context, stream, true));
  }

  Expected<std::unique_ptr<Queue>> adopt_queue(void* native) override {
    return std::unique_ptr<Queue>(std::make_unique<CudaQueue>(m_context, native, false));
  }

  Expected<std::unique_ptr<Recording>> record(const std::function<Status(Queue&)>& put) override {
    KILN_ASSIGN_OR_RETURN(const auto queue, create_queue());
    return record_graph(m_context, *queue, put);
  }
  bool asserts() const override { return true; }

 private:
  Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code, CallUse use) {
    KILN_ASSIGN_OR_RETURN(auto executable, load_executable(m_context, code, use));
    if (executable->workspace_bytes() != launch_data.workspace_bytes) {
      return error(StatusCode::data_loss, "cuda code: works in {} bytes, its artifact says {}",
                   executable->workspace_bytes(), launch_data.workspace_bytes);
    }
    return executable;
  }

  std::shared_ptr<const DeviceContext> m_context;
};

}  // namespace

Expected<std::shared_ptr<const DeviceContext>> DeviceContext::retain(std::shared_ptr<const Driver> driver,
                                                                     DeviceNumber number) {
  std::shared_ptr<DeviceContext> context(new DeviceContext(std::move(driver), number));
  int multiprocessors = 0;
  KILN_RETURN_IF_ERROR(context->driver().status_of(
      context->api().device_attribute(&multiprocessors, Attribute::multiprocessors, number), "cuDeviceGetAttribute"));
  context->m_multiprocessors = static_cast<uint32_t>(multiprocessors);
  const Result result = context->api().retain_context(&context->m_context, number);
  if (result != 0) context->m_context = nullptr;
  KILN_RETURN_IF_ERROR(context->driver().status_of(result, "cuDevicePrimaryCtxRetain"));
  return std::shared_ptr<const DeviceContext>(std::move(context));
}

DeviceContext::~DeviceContext() {
  if (m_context != nullptr) api().release_context(m_number);
}

Expected<std::unique_ptr<Device>> make_device(std::shared_ptr<const DeviceContext> context) {
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(context)));
}

Stream stream_of(Queue& queue) { return static_cast<CudaQueue&>(queue).stream(); }

}  // namespace kiln::cuda
