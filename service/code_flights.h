#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "jit/build/code_supply.h"

namespace kiln {

/// Who makes which code at this moment: one flight for each key, whatever programs it is for. A key's flight begins when a
/// build claims it. It goes on when its code is made, until the build is over: then the code is published.
///
/// Threading: any thread.
class CodeFlights {
 public:
  /// What other builds have made, or make now, of `keys`; the rest becomes this build's.
  CodeAnswer claim(uint64_t build, std::span<const Digest> keys);

  /// Returns once nobody else makes any of `keys`, or `until` is past, or `is_over`, which is asked now and then.
  void wait(uint64_t build, std::span<const Digest> keys, Deadline until, const std::function<bool()>& is_over);

  /// The build has made these; what it had not claimed, or has yet to judge, is passed over.
  void give(uint64_t build, std::vector<SuppliedCode> made);

  /// Nobody waits for the build any more.
  void end(uint64_t build);

 private:
  struct Flight {
    uint64_t build = 0;
    bool is_made = false;
    SuppliedCode code;
  };
  bool is_elsewhere(uint64_t build, const Digest& key) const;

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::unordered_map<Digest, Flight> m_flights;
};

}  // namespace kiln
