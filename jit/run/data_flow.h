#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kiln {

/// data_loss: a program that says or does `what` is not run.
Status damaged(std::string_view what);

/// Follows what the launches of a program read and write, one after another, before any runs.
///
/// Refused are: a read of what nothing wrote, or of what has been overwritten, wholly or in part; a write to an input or
/// a constant; two buffers of one launch of which one is written and that overlap. So no two buffers that live at once
/// overlap, wherever their places came from.
class DataFlow {
 public:
  enum class Place : uint8_t { input, output, scratch, constant };
  enum class Role : uint8_t { read = 0, written = 1, changed = 2 };  // as BufferRole
  struct Access {
    Place place = Place::scratch;
    Role role = Role::read;
    uint32_t index = 0;              // of the input or output
    uint64_t offset = 0, bytes = 0;  // in scratch
  };

  explicit DataFlow(size_t outputs) : m_is_written(outputs, false) {}

  /// The next launch. Errors: data_loss.
  Status add(std::span<const Access> launch);
  bool is_written(uint32_t output) const { return m_is_written[output]; }

 private:
  bool holds(const Access& access) const;
  void write(const Access& access);

  std::map<uint64_t, uint64_t> m_scratch;  // what was written and is whole: from offset to end
  std::vector<bool> m_is_written;          // of each output
};

}  // namespace kiln
