#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/devices.h"
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
  /// Errors: the device's, where it takes a stream to feed it.
  static Expected<std::unique_ptr<Resolver>> create(const std::string& cache_directory, OpenDevice device);
  ~Resolver() override;

  struct Lookup {
    std::shared_ptr<const Program> program;  // null on a miss
    Digest key;                              // of the best target, or the one that was found
    std::string key_parts;                   // its parts, as JSON
    kiln_miss miss = KILN_MISS_ABSENT;
    std::string detail;  // why, for people; empty on a hit
    /// A miss, yet built: where there was no such device. What is there need not be compiled, only checked.
    bool is_deferred = false;
  };

  /// `canonical`: canonicalise(bound graph). Walks the device's targets, best first.
  Lookup find(const Graph& canonical);

  /// The bytes of a capture, or nothing.
  std::optional<std::span<const uint8_t>> find_capture(const Key& key);

  const OpenDevice& device() const { return m_device; }

  Expected<std::span<const uint8_t>> plan(const Digest& digest) override;
  Expected<std::shared_ptr<const Executable>> executable(const Digest& digest) override;
  DeviceStream* stream() override { return m_stream.get(); }

 private:
  Resolver(const std::string& cache_directory, OpenDevice device, std::unique_ptr<DeviceStream> stream);

  /// Finds what `key` leads to and loads it; sets why not otherwise.
  Lookup look_up(const Key& key);

  const OpenDevice m_device;
  const std::unique_ptr<DeviceStream> m_stream;  // null: the host
  kiln_reader* m_reader;
  std::mutex m_mutex;
  std::unordered_map<Digest, std::shared_ptr<const Executable>> m_executables;
};

}  // namespace kiln
