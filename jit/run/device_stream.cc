#include "jit/run/device_stream.h"

#include <algorithm>

#include "jit/run/launch_status.h"

namespace kiln {

namespace {
// Below this a block is not worth growing in steps.
constexpr size_t k_least_scratch_bytes = size_t{1} << 20;
constexpr LaunchStatus k_good = LaunchStatus::ok;
}  // namespace

Expected<std::unique_ptr<DeviceStream>> DeviceStream::create(Device& device) {
  return over(device, device.create_queue());
}

Expected<std::unique_ptr<DeviceStream>> DeviceStream::adopt(Device& device, void* native) {
  return over(device, device.adopt_queue(native));
}

Expected<std::unique_ptr<DeviceStream>> DeviceStream::over(Device& device, Expected<std::unique_ptr<Queue>> queue) {
  if (!queue.ok()) return queue.status();
  return std::unique_ptr<DeviceStream>(new DeviceStream(device, std::move(*queue)));
}

DeviceStream::~DeviceStream() {
  // Before its memory goes; a queue that is lost uses none any more.
  static_cast<void>(m_queue->synchronise());
}

Status DeviceStream::put(const Needs& needs, const std::function<Status(const Turn&)>& put) {
  const std::scoped_lock lock(m_mutex);
  KILN_RETURN_IF_ERROR(reserve(needs.scratch_bytes));
  if (needs.status) KILN_RETURN_IF_ERROR(make_status());
  return put({*m_queue, m_scratch.get(), needs.status ? m_status.get() : nullptr});
}

Expected<bool> DeviceStream::is_recorded() {
  const std::scoped_lock lock(m_mutex);
  return m_queue->is_recorded();
}

Status DeviceStream::make_status() {
  if (m_status.get() != nullptr) return {};
  KILN_ASSIGN_OR_RETURN(DeviceMemory status, DeviceMemory::allocate(m_device, sizeof k_good));
  KILN_RETURN_IF_ERROR(m_queue->upload(status.get(), &k_good, sizeof k_good));
  m_status = std::move(status);
  return {};
}

Status DeviceStream::reserve(size_t bytes) {
  if (bytes <= m_scratch_bytes) return {};
  KILN_RETURN_IF_ERROR(m_queue->synchronise());
  m_scratch = {};  // first: both may not fit
  m_scratch_bytes = 0;
  const size_t wanted = std::max(bytes, k_least_scratch_bytes);
  KILN_ASSIGN_OR_RETURN(m_scratch, DeviceMemory::allocate(m_device, wanted));
  m_scratch_bytes = wanted;
  return {};
}

Status DeviceStream::upload(void* to, const void* from_host, size_t bytes) {
  const std::scoped_lock lock(m_mutex);
  KILN_RETURN_IF_ERROR(m_queue->upload(to, from_host, bytes));
  return m_queue->synchronise();
}

Status DeviceStream::download(void* to_host, const void* from, size_t bytes) {
  const std::scoped_lock lock(m_mutex);
  KILN_RETURN_IF_ERROR(m_queue->download(to_host, from, bytes));
  return m_queue->synchronise();
}

Status DeviceStream::finish() {
  const std::scoped_lock lock(m_mutex);
  KILN_ASSIGN_OR_RETURN(const bool is_recorded, m_queue->is_recorded());
  if (is_recorded)
    return error(StatusCode::failed_precondition, "nothing can be waited for on a queue that is recorded");
  if (m_status.get() == nullptr) return m_queue->synchronise();
  LaunchStatus status = k_good;
  KILN_RETURN_IF_ERROR(m_queue->download(&status, m_status.get(), sizeof status));
  KILN_RETURN_IF_ERROR(m_queue->synchronise());
  if (status != k_good) KILN_RETURN_IF_ERROR(m_queue->upload(m_status.get(), &k_good, sizeof k_good));
  return to_status(status);
}

}  // namespace kiln
