#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "jit/run/device_memory.h"

namespace kiln {

/// A queue with the scratch of the programs put on it. Work on a queue runs in order, so programs share one block: the
/// next one's kernels write to it only when the last one's are done.
///
/// Ownership: must not outlive the device. Threading: any thread; callers take turns.
/// Errors: the queue's; those of kernels come out at finish().
class DeviceStream {
 public:
  /// A stream on a queue of its own.
  static Expected<std::unique_ptr<DeviceStream>> create(Device& device);
  /// A stream on a queue that the caller owns and keeps alive (Device::adopt_queue).
  static Expected<std::unique_ptr<DeviceStream>> adopt(Device& device, void* native);
  /// Waits for what is in flight.
  ~DeviceStream();

  Device& device() const { return m_device; }

  /// What a turn works with: scratch is 256-byte aligned and its contents are undefined; status is a LaunchStatus on
  /// the device, ok until a kernel says otherwise, or null where none was asked for.
  struct Turn {
    Queue& queue;
    uint8_t* scratch;
    void* status;
  };
  struct Needs {
    size_t scratch_bytes = 0;
    bool status = true;
  };
  /// Runs `put`, which puts work on the queue, with what it needs. Waits for nothing but the turn of others, and, when the
  /// scratch must grow, for the work that uses it.
  Status put(const Needs& needs, const std::function<Status(const Turn&)>& put);

  /// Queue::is_recorded.
  Expected<bool> is_recorded();

  /// Both wait until the bytes are there.
  Status upload(void* to, const void* from_host, size_t bytes);
  Status download(void* to_host, const void* from, size_t bytes);

  /// Waits for all work. Errors: failed_precondition while the queue is recorded; out_of_range when a kernel met an index
  /// outside its tensor since the last finish.
  Status finish();

 private:
  DeviceStream(Device& device, std::unique_ptr<Queue> queue) : m_device(device), m_queue(std::move(queue)) {}
  static Expected<std::unique_ptr<DeviceStream>> over(Device& device, Expected<std::unique_ptr<Queue>> queue);
  Status reserve(size_t scratch_bytes);
  Status make_status();

  Device& m_device;
  const std::unique_ptr<Queue> m_queue;
  std::mutex m_mutex;
  DeviceMemory m_status, m_scratch;  // none until something needs it
  size_t m_scratch_bytes = 0;
};

}  // namespace kiln
