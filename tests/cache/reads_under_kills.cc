// Reads a cache, and checks every byte, while the process that writes it is killed again and again.
//
//   cache_reads_under_kills MINUTES [--record FILE]
//
// Ends at once where bytes are wrong, or something is not found that was acknowledged. Each reader begins anew after some
// reads, so that what it finds is read from the files, and prints in the end how many reads were right; --record appends that
// to a file.

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/build_id.h"
#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t k_seeds = 2'000;              // of one cache: then comes another one
constexpr uint64_t k_reads_of_a_reader = 512;    // until it begins anew
constexpr uint64_t k_kills_between_checks = 16;  // of all that was acknowledged

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "{}\n", what);
  std::exit(1);
}

/// What each seed's plan holds: made once, since it takes longer than a read.
class Expected {
 public:
  Expected() {
    for (uint64_t seed = 0; seed <= k_seeds; ++seed) {
      m_bytes.push_back(pattern(seed, plan_size(seed)));
      m_keys.push_back(key_of(seed));
    }
  }
  kiln_miss find(kiln_reader* reader, uint64_t seed) const {
    kiln_view view;
    const kiln_miss miss = kiln_reader_find_key(reader, m_keys[seed].bytes.data(), KILN_ARTIFACT_PLAN, &view);
    if (miss != KILN_HIT) return miss;
    const std::vector<uint8_t>& right = m_bytes[seed];
    const bool is_right =
        view.header.payload_size == right.size() && std::memcmp(view.payload, right.data(), right.size()) == 0;
    if (!is_right) fail(fmt::format("wrong bytes for seed {}", seed));
    return miss;
  }

 private:
  std::vector<std::vector<uint8_t>> m_bytes;
  std::vector<Digest> m_keys;
};

struct Counts {
  std::atomic<uint64_t> reads{0}, misses{0};
  uint64_t kills = 0, acknowledged = 0, caches = 0;
};

/// One cache; gone when nobody reads it any more.
struct Cache {
  TemporaryDirectory directory;
  std::atomic<uint64_t> newest{1};  // seeds up to here were published, or nearly
};

/// The one that is written at this moment. Threading: any thread.
class Current {
 public:
  std::shared_ptr<Cache> get() {
    const std::scoped_lock lock(m_mutex);
    return m_cache;
  }
  void set(std::shared_ptr<Cache> cache) {
    const std::scoped_lock lock(m_mutex);
    m_cache = std::move(cache);
  }

 private:
  std::mutex m_mutex;
  std::shared_ptr<Cache> m_cache;
};

void read_until_over(const Expected& expected, Current& current, Counts& counts, uint32_t number) {
  std::mt19937 random(number);
  while (const std::shared_ptr<Cache> cache = current.get()) {
    const Reader reader = open_reader(cache->directory.path());
    const uint64_t newest = cache->newest, first = random();
    const uint64_t reads = std::min(newest, k_reads_of_a_reader);  // none twice: a reader keeps what it found
    uint64_t right = 0;
    for (uint64_t i = 0; i < reads; ++i) right += expected.find(reader.get(), 1 + (first + i) % newest) == KILN_HIT;
    counts.reads += right;
    counts.misses += reads - right;
  }
}

/// The store, once what a killed process had of it is free again.
std::unique_ptr<CacheStore> reopen(const std::string& directory) {
  const auto end = Clock::now() + std::chrono::seconds(5);
  for (;;) {
    auto store = CacheStore::open({.directory = directory});
    if (store.ok()) return std::move(*store);
    if (Clock::now() >= end) fail(store.status().to_string());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// A store that opens repairs what there is to repair; then all is there.
void check_all(const Expected& expected, const std::string& directory, const std::vector<uint64_t>& acknowledged) {
  const auto store = reopen(directory);
  if (!store->report().empty()) fail("the store is damaged: " + store->report());
  const Reader reader = open_reader(directory);
  for (const uint64_t seed : acknowledged) {
    const kiln_miss miss = expected.find(reader.get(), seed);
    if (miss != KILN_HIT) fail(fmt::format("seed {} was acknowledged and is lost: {}", seed, kiln_miss_name(miss)));
  }
}

/// One cache, from its beginning until it is full or time is up.
void write_and_kill(const Expected& expected, Cache& cache, Counts& counts, Clock::time_point end) {
  std::mt19937 random(std::random_device{}());
  std::vector<uint64_t> acknowledged;
  const std::string directory = cache.directory.path();
  for (uint64_t next = 1; next <= k_seeds && Clock::now() < end;) {
    PublisherProcess publisher(directory, next, k_seeds + 1 - next);
    if (random() % 4 != 0) publisher.await_first();  // else it is killed while it opens, too
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + random() % 100));
    const std::vector<uint64_t> fresh = publisher.kill();
    acknowledged.insert(acknowledged.end(), fresh.begin(), fresh.end());
    if (!fresh.empty()) next = fresh.back() + 1;
    cache.newest = std::clamp<uint64_t>(next, 1, k_seeds);
    if (++counts.kills % k_kills_between_checks == 0) check_all(expected, directory, acknowledged);
  }
  check_all(expected, directory, acknowledged);
  counts.acknowledged += acknowledged.size();
  ++counts.caches;
}

std::string run(double minutes) {
  const Expected expected;
  Current current;
  Counts counts;
  current.set(std::make_shared<Cache>());
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
    readers.emplace_back([&, i] { read_until_over(expected, current, counts, i); });
  }
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::milliseconds(static_cast<int64_t>(minutes * 60'000));
  while (Clock::now() < end) {
    write_and_kill(expected, *current.get(), counts, end);
    current.set(Clock::now() < end ? std::make_shared<Cache>() : nullptr);
  }
  for (std::thread& reader : readers) reader.join();
  minutes = std::chrono::duration<double>(Clock::now() - begin).count() / 60;
  return fmt::format(
      R"({{"date": "{:%Y-%m-%d}", "generator": "{}", "minutes": {:.1f}, "reads": {}, "wrong": 0, "misses": {}, )"
      R"("kills": {}, "acknowledged": {}, "lost": 0, "caches": {}}})",
      fmt::gmtime(std::time(nullptr)), generator_build_id(), minutes, counts.reads.load(), counts.misses.load(),
      counts.kills, counts.acknowledged, counts.caches);
}

}  // namespace
}  // namespace kiln::testing

int main(int argc, char** argv) {
  const double minutes = argc > 1 ? std::atof(argv[1]) : 0;
  const bool records = argc == 4 && std::string_view(argv[2]) == "--record";
  if (minutes <= 0 || (argc != 2 && !records)) {
    fmt::print(stderr, "usage: cache_reads_under_kills MINUTES [--record FILE]\n");
    return 2;
  }
  const std::string seen = kiln::testing::run(minutes);
  fmt::print("{}\n", seen);
  if (records) std::ofstream(argv[3], std::ios::app) << seen << "\n";
  return 0;
}
