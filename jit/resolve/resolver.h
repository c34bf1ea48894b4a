#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/runtime_registry.h"
#include "cache/reader/reader.h"
#include "jit/resolve/key.h"
#include "jit/run/program.h"

namespace kiln {

/// Graphs to mapped programs, without a daemon: canonicalise, key, find, check, bind.
///
/// Ownership: programs it gives use code mapped here; it must outlive them.
/// Threading: any thread at once.
/// Errors: a miss is a value with its reason. A damaged entry is a miss.
class Resolver : public ArtifactSource {
 public:
  Resolver(const std::string& cache_directory, OpenDevice device);
  ~Resolver() override;

  struct Lookup {
    std::shared_ptr<const Program> program;  // null on a miss
    Digest key;                              // of the best target, or the one that was found
    std::string key_parts;                   // its parts, as JSON
    kiln_miss miss = KILN_MISS_ABSENT;
    std::string detail;  // why, for people; empty on a hit
  };

  /// `canonical`: canonicalise(bound graph). Walks the device's targets, best first.
  Lookup find(const Graph& canonical);

  /// The bytes of a capture, or nothing.
  std::optional<std::span<const uint8_t>> find_capture(const Key& key);

  const std::vector<Target>& targets() const { return m_device.targets; }

  Expected<std::span<const uint8_t>> plan(const Digest& digest) override;
  Expected<std::shared_ptr<const Executable>> executable(const Digest& digest) override;

 private:
  const OpenDevice m_device;
  kiln_reader* m_reader;
  std::mutex m_mutex;
  std::unordered_map<Digest, std::shared_ptr<const Executable>> m_executables;
};

}  // namespace kiln
