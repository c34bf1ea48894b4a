#include "autotune/sample_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "autotune/split_mix.h"
#include "base/memfd.h"
#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

/// The sum of four uniform numbers, scaled to variance 1 (Irwin and Hall): one random word makes one.
double nearly_normal(SplitMix& random) {
  constexpr double k_mean = 2 * 65'535.0, k_scale = 1.7320508075688772 / 65'536;  // √(12 / 4)
  const uint64_t word = random.next();
  const uint64_t sum = (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
  return (static_cast<double>(sum) - k_mean) * k_scale;
}

}  // namespace

Expected<SamplePool> SamplePool::make(DType dtype) {
  const auto count = static_cast<int64_t>(k_bytes / size_of(dtype));
  std::vector<std::byte> bytes(k_bytes);
  SplitMix random(1);
  for (int64_t i = 0; i < count; ++i) store_element(dtype, bytes.data(), i, nearly_normal(random));

  SamplePool pool;
  KILN_ASSIGN_OR_RETURN(pool.m_fd,
                        sealed_memfd("kiln-samples", {reinterpret_cast<const uint8_t*>(bytes.data()), k_bytes}));
  void* address = mmap(nullptr, k_bytes, PROT_READ, MAP_SHARED, pool.m_fd.get(), 0);
  if (address == MAP_FAILED) {
    return error(StatusCode::resource_exhausted, "mapping a sample pool: {}", std::strerror(errno));
  }
  pool.m_bytes = {static_cast<const uint8_t*>(address), k_bytes};
  return pool;
}

Expected<const SamplePool*> SamplePool::of(DType dtype) {
  static std::mutex mutex;
  static std::map<DType, SamplePool> pools;
  std::lock_guard lock(mutex);
  auto found = pools.find(dtype);
  if (found == pools.end()) {
    KILN_ASSIGN_OR_RETURN(SamplePool pool, make(dtype));
    found = pools.emplace(dtype, std::move(pool)).first;
  }
  return &found->second;
}

Expected<SampleMapping> SampleMapping::create(const SampleSource& source, uint64_t size_bytes) {
  SampleMapping mapping;
  mapping.m_size_bytes = size_bytes;
  if (kiln_map_repeatedly(&mapping.m_mapping, source.pool->fd(), SamplePool::k_bytes, source.start_bytes, size_bytes) !=
      0) {
    return error(StatusCode::resource_exhausted, "mapping samples: {}", std::strerror(errno));
  }
  return mapping;
}

}  // namespace kiln
