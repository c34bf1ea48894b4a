#pragma once

#include <memory>

#include "backends/cuda/runtime/device.h"

namespace kiln::cuda {

/// A place in a stream that the device writes its clock at. Threading: one thread at a time.
class TimedEvent {
 public:
  explicit TimedEvent(std::shared_ptr<const DeviceContext> context);
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  /// Errors: also of making the event.
  Status record(Stream stream);
  /// Both must be done. By steps of half a microsecond.
  Expected<double> seconds_since(const TimedEvent& begin) const;

 private:
  std::shared_ptr<const DeviceContext> m_context;
  Event m_event = nullptr;
  Status m_made;
};

}  // namespace kiln::cuda
