#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/reader/reader.h"
#include "cache/store/store.h"

/// What the tests of the cache share.
namespace kiln::testing {

/// A fresh private directory, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string path(const std::string& below = "cache") const { return m_path + "/" + below; }

 private:
  std::string m_path;
};

/// Bytes that tell which seed they came from: any other content is noticed.
std::vector<uint8_t> pattern(uint64_t seed, size_t size);
Digest key_of(uint64_t seed);

/// A size between 0 and 40 KiB, determined by `seed`.
size_t plan_size(uint64_t seed);

/// A plan of `size` bytes and the head that leads to it, both determined by `seed`.
PublishBatch plan_batch(uint64_t seed, size_t size, uint32_t generation = 0);
/// x86-64 code that returns `answer`, padded to `size` bytes, with its head.
PublishBatch code_batch(uint32_t answer, size_t size);

std::unique_ptr<CacheStore> open_store(const std::string& directory);

struct ReaderClose {
  void operator()(kiln_reader* reader) const { kiln_reader_close(reader); }
};
using Reader = std::unique_ptr<kiln_reader, ReaderClose>;
Reader open_reader(const std::string& directory);

/// KILN_HIT only when the plan of `seed` is found by its key with exactly its bytes; asserts that a hit has
/// no others.
kiln_miss find_plan(kiln_reader* reader, uint64_t seed, size_t size);

/// Runs `body` in a forked process; true when it returned true.
bool in_other_process(const std::function<bool()>& body);

/// The program publisher_process.cc, running.
class PublisherProcess {
 public:
  /// What it does in the end, and when a publication is refused.
  enum class Manner : uint8_t {
    close,   // closes the store; leaves at a refusal
    exit,    // leaves without closing it; the same
    insist,  // as exit, and tries again until the publication is acknowledged
  };
  PublisherProcess(const std::string& directory, uint64_t first_seed, uint64_t count, Manner manner = Manner::close);
  ~PublisherProcess();
  /// Returns once it has acknowledged something.
  void await_first();
  /// Returns once one that insists was refused.
  void await_refusal();
  /// Kills it with SIGKILL and returns the seeds it acknowledged.
  std::vector<uint64_t> kill();
  /// Waits until it has ended by itself; the seeds it acknowledged.
  std::vector<uint64_t> wait();

 private:
  bool read_some();
  std::vector<uint64_t> drain();
  pid_t m_child = -1;
  int m_output = -1;
  std::string m_text;
};

std::vector<std::string> files_below(const std::string& directory);

}  // namespace kiln::testing
