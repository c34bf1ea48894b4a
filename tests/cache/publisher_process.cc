// Publishes plans into a store until it is killed: cache_publisher DIRECTORY FIRST_SEED COUNT [exit]. Writes
// each seed to standard output once its publication is acknowledged. With "exit" it leaves without closing
// the store.
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "tests/cache/cache_testing.h"

int main(int argc, char** argv) {
  using namespace kiln::testing;
  if (argc < 4) return 2;
  const auto store = open_store(argv[1]);
  if (!store) return 3;
  const uint64_t first = std::strtoull(argv[2], nullptr, 10);
  const uint64_t count = std::strtoull(argv[3], nullptr, 10);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!store->publish(plan_batch(seed, plan_size(seed))).ok()) return 4;
    const std::string line = std::to_string(seed) + "\n";
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) return 5;
    if (seed % 37 == 0 && !store->flush().ok()) return 6;
  }
  if (argc > 4 && std::string_view(argv[4]) == "exit") _exit(0);
  return 0;
}
