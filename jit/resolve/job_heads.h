#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/digest.h"

namespace kiln {

/// Which artifacts the ranks of one job run: what its first rank found under a key is what all find, whatever becomes the
/// key's head meanwhile. A file per job in the cache directory, of records that are only ever appended, under a lock; the
/// last record of a key is in force.
///
/// Threading: any thread at once, any number of processes.
class JobHeads {
 public:
  /// `id`: the job's name, of any form. In a cache that cannot be written to nothing is recorded: then each rank runs what
  /// is newest.
  JobHeads(const std::string& cache_directory, std::string_view id);

  /// What is recorded for the key.
  std::optional<Digest> find(const Digest& key) const;

  /// Records that the job runs `artifact` for the key, unless another rank has recorded something meanwhile: gives what is
  /// in force then. `missing` is what was recorded and is not in the cache any more.
  Digest record(const Digest& key, const Digest& artifact, const std::optional<Digest>& missing) const;

  /// Removes what jobs recorded that have not recorded anything for limits::k_job_heads_days.
  static void forget_old(const std::string& cache_directory);

 private:
  const std::string m_folder;
  const std::string m_path;
};

}  // namespace kiln
