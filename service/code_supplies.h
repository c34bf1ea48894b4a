#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/config/config.h"
#include "base/fd.h"
#include "cache/sources/entry_source.h"
#include "service/code_flights.h"

namespace kiln {

class CodeSupplies;

/// What one build gets. With its end the build is over, and whoever waits for it goes on: so it lives until what was built
/// is published. Threading: one thread at a time.
class BuildSupply {
 public:
  BuildSupply(CodeSupplies& supplies, uint64_t build) : m_supplies(supplies), m_build(build) {}
  ~BuildSupply();
  BuildSupply(const BuildSupply&) = delete;
  BuildSupply& operator=(const BuildSupply&) = delete;

  /// As of CodeSupply. A wait takes until `until` at most; then what others still make is the asker's, too. `is_over`: asked
  /// now and then whether the answer is wanted.
  CodeAnswer ask(std::span<const Digest> keys, bool waits, Deadline until, const std::function<bool()>& is_over);
  void give(std::vector<SuppliedCode> made);

  /// How many keys' code was found.
  uint64_t supplied() const { return m_supplied; }

 private:
  CodeSupplies& m_supplies;
  const uint64_t m_build;
  uint64_t m_supplied = 0;
};

/// Where builds get code from that they need not make: what other builds make at the same time, and sources in their
/// order. Threading: any thread.
class CodeSupplies {
 public:
  /// The cache directory (it is looked at again, since other builds publish meanwhile), packs, the shared directory.
  explicit CodeSupplies(const Config& config);

  std::shared_ptr<BuildSupply> for_build() { return std::make_shared<BuildSupply>(*this, ++m_builds); }

 private:
  friend class BuildSupply;
  std::vector<SuppliedCode> find(std::vector<Digest> keys);

  std::vector<std::unique_ptr<EntrySource>> m_sources;
  CodeFlights m_flights;
  std::atomic<uint64_t> m_builds = 0;
};

}  // namespace kiln
