#pragma once

#include <optional>

#include "autotune/measure.h"
#include "autotune/record.h"
#include "base/processor_times.h"

namespace kiln {

/// Sees what state the machine is in while a race runs.
///
/// Threading: one thread at a time.
class HostWatch {
 public:
  /// The race begins.
  HostWatch();
  void note(const TimeSample& sample) { m_state.threads = sample.threads; }
  /// From the beginning until now. What the kernel does not say is 0.
  HostState state() const;

 private:
  HostState m_state;
  std::optional<ProcessorTimes> m_before = ProcessorTimes::read();
};

}  // namespace kiln
