#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/launch_record.h"
#include "backends/cuda/libraries.h"

namespace kiln::cuda {

/// What the compiler made of one source.
struct Compiled {
  std::vector<uint8_t> cubin;
  Resources resources;
  /// The compiler itself warns of lost performance: tensor core instructions made to wait for one another and the like.
  std::string complaint;
};

/// NVRTC, opened at run time. Neither a device nor a driver nor headers are needed.
///
/// Threading: compile() from any thread at once. Ownership: the library stays open for good.
class Nvrtc {
 public:
  /// Opened once a process. Errors: not_found, failed_precondition.
  static const Expected<Nvrtc>& of_process();
  /// Errors: not_found without a library, failed_precondition where it lacks something or is older than 12.0.
  static Expected<Nvrtc> open(const SearchPath& search);

  int version() const { return m_version; }  // 10 * major + minor
  const Library& library() const { return m_library; }
  /// "nvrtc 13.0 65be0db342ad51a0": whatever can change the bytes.
  std::string identity() const;
  /// The driver its cubins need, as cuDriverGetVersion counts.
  uint32_t least_driver() const;

  /// `architecture` is "sm_90a". A compilation that takes longer is asked to stop, then left behind with its thread: the
  /// process should soon end.
  /// Errors: deadline_exceeded; internal with the compiler's log; unimplemented for an architecture it does not know.
  Expected<Compiled> compile(const std::string& source, std::string_view architecture, uint64_t deadline_ms) const;

 private:
  struct Functions;

  Library m_library;
  std::shared_ptr<const Functions> m_functions;
  int m_version = 0;
};

/// Reads "Used 168 registers", spills and stack out of a log of --ptxas-options=-v.
/// Errors: internal where the log speaks of no kernel.
Expected<Resources> resources_of_log(std::string_view log);
/// The lines of ptxas's warnings C75xx.
std::string complaints_of_log(std::string_view log);

}  // namespace kiln::cuda
