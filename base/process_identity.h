#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kiln {

/// Which process a number means: numbers are given again, and mean others in another container.
struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t started = 0;        // in the kernel's ticks since the machine started
  uint64_t pid_namespace = 0;  // its inode

  bool operator==(const ProcessIdentity&) const = default;

  /// Nothing when there is no such process here, or /proc says nothing.
  static std::optional<ProcessIdentity> of(pid_t pid);
  /// The form of to_text(). Nothing for another one.
  static std::optional<ProcessIdentity> from_text(std::string_view text);
  std::string to_text() const;
};

}  // namespace kiln
