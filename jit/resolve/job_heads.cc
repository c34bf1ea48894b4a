#include "jit/resolve/job_heads.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "base/fd.h"
#include "base/limits.h"

namespace kiln {

namespace {

struct Record {
  Digest key;
  Digest artifact;
};
static_assert(sizeof(Record) == 64);

std::string folder_in(const std::string& cache_directory) { return cache_directory + "/jobs"; }

/// Whole records only: a rank that died as it wrote has left a part of one.
std::vector<Record> read_all(int file) {
  std::vector<Record> records;
  for (;;) {
    const size_t known = records.size();
    records.resize(known + 64);
    const ssize_t got =
        pread(file, records.data() + known, 64 * sizeof(Record), static_cast<off_t>(known * sizeof(Record)));
    records.resize(known + (got > 0 ? static_cast<size_t>(got) / sizeof(Record) : 0));
    if (records.size() == known) return records;
  }
}

std::optional<Digest> last_of(const std::vector<Record>& records, const Digest& key) {
  const auto found =
      std::find_if(records.rbegin(), records.rend(), [&](const Record& each) { return each.key == key; });
  return found == records.rend() ? std::nullopt : std::optional(found->artifact);
}

}  // namespace

JobHeads::JobHeads(const std::string& cache_directory, std::string_view id)
    : m_folder(folder_in(cache_directory)), m_path(m_folder + "/" + digest_of(id).to_hex()) {}

std::optional<Digest> JobHeads::find(const Digest& key) const {
  const UniqueFd file(open(m_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return file ? last_of(read_all(file.get()), key) : std::nullopt;
}

Digest JobHeads::record(const Digest& key, const Digest& artifact, const std::optional<Digest>& missing) const {
  mkdir(m_folder.c_str(), 0700);
  // A descriptor of this call's own: its lock holds against other threads, too, and goes with it.
  const UniqueFd file(open(m_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file || flock(file.get(), LOCK_EX) != 0) return artifact;
  const std::vector<Record> records = read_all(file.get());
  const auto recorded = last_of(records, key);
  if (recorded && recorded != missing) return *recorded;
  const size_t end = records.size() * sizeof(Record);
  if (end >= limits::k_job_heads_bytes) return artifact;
  // Over what is left of a record that somebody died over.
  const Record record{key, artifact};
  [[maybe_unused]] const ssize_t wrote = pwrite(file.get(), &record, sizeof record, static_cast<off_t>(end));
  return artifact;
}

void JobHeads::forget_old(const std::string& cache_directory) {
  const auto oldest = std::filesystem::file_time_type::clock::now() - std::chrono::days(limits::k_job_heads_days);
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder_in(cache_directory), failure)) {
    std::error_code gone;
    if (entry.last_write_time(gone) < oldest && !gone) std::filesystem::remove(entry.path(), gone);
  }
}

}  // namespace kiln
