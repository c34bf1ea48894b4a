#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kiln {

/// What the processors that this process may run on have done since the machine started, in ticks of the kernel's clock
/// (10 ms), summed over them. Source: proc_stat(5).
struct ProcessorTimes {
  uint64_t user = 0;    // in programs of usual priority
  uint64_t nice = 0;    // in programs of lower priority than usual
  uint64_t other = 0;   // in the kernel, or with nothing to do
  uint64_t stolen = 0;  // when the host let something else run
  uint32_t processors = 0;

  uint64_t all() const { return user + nice + other + stolen; }

  /// Nothing where the kernel does not say. `path` is for tests.
  static std::optional<ProcessorTimes> read(const std::string& path = "/proc/stat");
};

/// How busy the processors are with what is not background work.
///
/// Threading: one thread at a time.
class ProcessorWatch {
 public:
  /// How many processors ran programs of usual priority since the last call, on average. Nothing when no tick has passed
  /// since, or the kernel does not say; the first call begins the watch.
  std::optional<double> busy_processors();

 private:
  std::optional<ProcessorTimes> m_last;
};

}  // namespace kiln
