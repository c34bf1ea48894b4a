#include "autotune/sample_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
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

double least_normal(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-14;
    case DType::f64:
      return 0x1p-1022;
    default:
      return 0x1p-126;
  }
}

/// One element in 2^this is infinite or NaN; 0: none is.
int special_bits(SamplePool::Kind kind) {
  switch (kind) {
    case SamplePool::Kind::special_7:
      return 7;
    case SamplePool::Kind::special_11:
      return 11;
    case SamplePool::Kind::special_15:
      return 15;
    case SamplePool::Kind::special_19:
      return 19;
    default:
      return 0;
  }
}

double uneven(DType dtype, SamplePool::Kind kind, SplitMix& random) {
  constexpr double k_infinity = std::numeric_limits<double>::infinity();
  const double value = nearly_normal(random);
  const uint64_t word = random.next();
  const int bits = special_bits(kind);
  if (bits != 0 && word >> (64 - bits) == 0) {
    const double specials[] = {k_infinity, -k_infinity, std::numeric_limits<double>::quiet_NaN()};
    return specials[word % 3];
  }
  const int power = static_cast<int>(word >> 8 & 15);
  switch (word % 64) {
    case 0:
    case 1:
      return 0;
    case 2:
      return value * std::ldexp(least_normal(dtype), power - 4);  // some have lost bits
    case 3:
      return value * std::ldexp(1.0, dtype == DType::f16 ? power / 2 : std::min(power, 12));
    default:
      return value;
  }
}

}  // namespace

Expected<SamplePool> SamplePool::make(DType dtype, Kind kind) {
  const auto count = static_cast<int64_t>(k_bytes / size_of(dtype));
  std::vector<std::byte> bytes(k_bytes);
  SplitMix random(1);
  for (int64_t i = 0; i < count; ++i) {
    const bool is_even = kind == Kind::even || kind == Kind::small;
    const double value = is_even ? nearly_normal(random) : uneven(dtype, kind, random);
    store_element(dtype, bytes.data(), i, kind == Kind::small ? value / 16 : value);
  }

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

Expected<const SamplePool*> SamplePool::of(DType dtype, Kind kind) {
  static std::mutex mutex;
  static std::map<std::pair<DType, Kind>, SamplePool> pools;
  std::lock_guard lock(mutex);
  auto found = pools.find({dtype, kind});
  if (found == pools.end()) {
    KILN_ASSIGN_OR_RETURN(SamplePool pool, make(dtype, kind));
    found = pools.emplace(std::pair(dtype, kind), std::move(pool)).first;
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
