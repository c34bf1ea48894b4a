// Publishes plans into a store until it is killed: cache_publisher DIRECTORY FIRST_SEED COUNT close|exit|insist
// (PublisherProcess::Manner). Writes each seed to standard output once its publication is acknowledged, and "refused"
// when it insists on one.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "tests/cache/cache_testing.h"

namespace {

bool say(const std::string& line) { return write(STDOUT_FILENO, (line + "\n").data(), line.size() + 1) > 0; }

/// Until it is acknowledged. RocksDB may take a while to see that there is room again.
kiln::Status insist(kiln::CacheStore& store, const kiln::PublishBatch& batch) {
  constexpr int k_attempts = 1'000;
  kiln::Status status = store.publish(batch);
  if (status.code() != kiln::StatusCode::resource_exhausted) return status;
  say("refused");
  for (int i = 0; !status.ok() && i < k_attempts; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    status = store.publish(batch);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kiln::testing;
  if (argc != 5) return 2;
  const std::string_view manner = argv[4];
  const auto store = open_store(argv[1]);
  if (!store) return 3;
  const uint64_t first = std::strtoull(argv[2], nullptr, 10);
  const uint64_t count = std::strtoull(argv[3], nullptr, 10);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const auto batch = plan_batch(seed, plan_size(seed));
    if (!(manner == "insist" ? insist(*store, batch) : store->publish(batch)).ok()) return 4;
    if (!say(std::to_string(seed))) return 5;
    if (manner != "insist" && seed % 37 == 0 && !store->flush().ok()) return 6;
  }
  if (manner != "close") _exit(0);
  return 0;
}
