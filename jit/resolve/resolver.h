#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/devices.h"
#include "cache/sources/sources.h"
#include "jit/resolve/job_heads.h"
#include "jit/resolve/key.h"
#include "jit/resolve/sourced_kernels.h"
#include "jit/run/program.h"

namespace kiln {

/// Graphs to mapped programs, without a daemon: key, find in a source, check, bind.
///
/// Ownership: programs it gives use code mapped here; it must outlive them.
/// Threading: any thread at once.
/// Errors: a miss is a value with its reason. A damaged entry is a miss.
class Resolver {
 public:
  /// Errors: the device's, where it takes a stream to feed it.
  /// `job`: of which this process is a rank (JobHeads); may be empty. `packs`, `shared`: as of Sources.
  static Expected<std::unique_ptr<Resolver>> create(const std::string& cache_directory, OpenDevice device,
                                                    std::string_view job = {}, const PackFolders& packs = {},
                                                    const std::string& shared = {});

  struct Lookup {
    std::shared_ptr<const Program> program;  // null on a miss
    Digest key;                              // of the best target, or the one that was found
    std::string key_parts;                   // its parts, as JSON
    kiln_miss miss = KILN_MISS_ABSENT;
    std::string detail;          // why, for people; empty on a hit
    Digest artifact;             // the program's, on a hit
    bool is_of_job = false;      // what a rank of the job has recorded, not what is newest
    uint32_t threads = 0;        // Target::threads of what was found
    std::optional<Digest> lost;  // what was recorded and the cache does not have any more
    /// A miss, yet built: where there was no such device. What is there need not be compiled, only checked.
    bool is_deferred = false;
  };

  /// `graph` is Canonical::digest of the graph with every symbol bound. Walks the device's targets, best first, of each
  /// what has raced on so many `threads` first (Target::threads).
  Lookup find(const Digest& graph, uint32_t threads = 0);

  /// Makes a hit that is to run what its key leads to from now on, whatever becomes the key's head: for this process, or for
  /// all ranks of its job. Gives it, or what another thread or rank has recorded meanwhile.
  Lookup agree(Lookup hit);

  /// The next look for the key takes what is newest; a job's ranks keep what they have.
  void let_go(const Digest& key);

  /// A program for many sizes in the cache: its bytes, valid as long as the resolver.
  struct ForSizes {
    Digest key;
    std::vector<SizeRange> ranges;
    std::span<const uint8_t> bytes;
  };
  /// That of a graph of symbols, of which `graph` is Canonical::digest, that serves these sizes on the device's best target.
  std::optional<ForSizes> find_for_sizes(const Digest& graph, std::span<const int64_t> sizes);
  /// Errors: not_found for a plan or kernel that is not there any more; as of Program::load.
  Expected<std::shared_ptr<const Program>> load(const ForSizes& found, std::span<const int64_t> sizes);

  /// The artifacts of a graph's program for one target: the program first, then the plans and kernels it names.
  /// Errors: not_found.
  Expected<std::vector<Artifact>> collect(const Digest& graph, const Target& target);

  /// The bytes of a capture, or nothing.
  std::optional<std::span<const uint8_t>> find_capture(const Key& key);

  /// Takes in what the daemon could not keep: found by this process from now on, as if it were in the cache.
  /// Errors: data_loss for bytes that are not what they are called.
  Status adopt(const std::vector<CarriedArtifact>& artifacts, const std::vector<CarriedHead>& heads);

  const OpenDevice& device() const { return m_device; }
  const MountedPacks& packs() const { return m_sources.packs(); }

  DeviceStream* stream() { return m_stream.get(); }

 private:
  Resolver(const std::string& cache_directory, OpenDevice device, std::unique_ptr<DeviceStream> stream,
           std::string_view job, const PackFolders& packs, const std::string& shared);

  /// Finds what `key` leads to and loads it; sets why not otherwise.
  Lookup look_up(const Key& key);
  /// What the process runs for the key, or its job does; nothing where it has run nothing yet.
  std::optional<Digest> recorded(const Digest& key) const;
  /// Records that, unless something else is recorded than what is `missing`: gives what is in force then.
  Digest record(const Digest& key, const Digest& artifact, const std::optional<Digest>& missing);
  Lookup look_up_recorded(Lookup asked, const Digest& artifact);
  Lookup load(Lookup lookup, const kiln_view& view);

  const OpenDevice m_device;
  const std::unique_ptr<DeviceStream> m_stream;  // null: the host
  const std::optional<JobHeads> m_job;
  std::unordered_map<Digest, Digest> m_in_use;  // of each key, without a job; process_mutex() guards it
  Sources m_sources;
  SourcedKernels m_kernels;
};

}  // namespace kiln
