#include "verdict/sample_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "base/memfd.h"
#include "frontend/ops/precision.h"
#include "frontend/ops/tensor.h"
#include "verdict/split_mix.h"

namespace kiln {

namespace {

/// The sum of four uniform numbers, scaled to variance 1 (Irwin and Hall): one random word makes one.
double nearly_normal(SplitMix& random) {
  constexpr double k_mean = 2 * 65'535.0, k_scale = 1.7320508075688772 / 65'536;  // √(12 / 4)
  const uint64_t word = random.next();
  const uint64_t sum = (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
  return (static_cast<double>(sum) - k_mean) * k_scale;
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

/// Whether most outputs depend on so many elements that one in thousands is met. Processors take a hundred times as long
/// for a denormal as for another number: where one was in every few vectors, a product would take that much longer.
bool has_rare_denormals(SamplePool::Kind kind) {
  return kind == SamplePool::Kind::uneven || special_bits(kind) >= special_bits(SamplePool::Kind::special_15);
}

/// Replaces one element in sixteen: by zero half the time, else by one that is tiny or large.
void unsettle(DType dtype, SamplePool::Kind kind, std::byte* bytes, int64_t count, SplitMix& random) {
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    const uint64_t word = random.next();
    const int64_t place = i + static_cast<int64_t>(word & 15);
    const int power = static_cast<int>(word >> 8 & 15);
    const bool stays_normal = has_rare_denormals(kind) && (word >> 12 & 15) != 0;
    double factor = 0;
    if ((word >> 4 & 3) == 1) factor = std::ldexp(least_normal(dtype), stays_normal ? 8 : power - 4);  // some lose bits
    if ((word >> 4 & 3) == 2) factor = std::ldexp(1.0, dtype == DType::f16 ? power / 2 : std::min(power, 12));
    store_element(dtype, bytes, place, factor * load_element(dtype, bytes, place));
  }
}

/// One infinity or NaN in every `distance` elements.
void add_specials(DType dtype, std::byte* bytes, int64_t count, int64_t distance, SplitMix& random) {
  constexpr double k_infinity = std::numeric_limits<double>::infinity();
  constexpr double k_specials[] = {k_infinity, -k_infinity, std::numeric_limits<double>::quiet_NaN()};
  for (int64_t i = 0; i < count; i += distance) {
    const int64_t place =
        i + static_cast<int64_t>(random.next() % static_cast<uint64_t>(std::min(distance, count - i)));
    store_element(dtype, bytes, place, k_specials[random.next() % 3]);
  }
}

}  // namespace

/// The other kinds are made of the even one.
Expected<SamplePool> SamplePool::make(DType dtype, Kind kind, std::span<const uint8_t> even) {
  const auto count = static_cast<int64_t>(k_bytes / size_of(dtype));
  std::vector<std::byte> bytes(k_bytes);
  std::byte* data = bytes.data();
  SplitMix random(1 + static_cast<uint64_t>(kind));
  if (kind == Kind::even) {
    for (int64_t i = 0; i < count; ++i) store_element(dtype, data, i, nearly_normal(random));
  } else {
    std::ranges::copy(std::as_bytes(even), data);
  }
  if (kind == Kind::small) {
    for (int64_t i = 0; i < count; ++i) store_element(dtype, data, i, load_element(dtype, data, i) / 16);
  } else if (kind != Kind::even) {
    unsettle(dtype, kind, data, count, random);
  }
  if (const int bits = special_bits(kind); bits > 0) add_specials(dtype, data, count, int64_t{1} << bits, random);

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
  const auto get = [&](Kind wanted, std::span<const uint8_t> even) -> Expected<const SamplePool*> {
    auto found = pools.find({dtype, wanted});
    if (found == pools.end()) {
      KILN_ASSIGN_OR_RETURN(SamplePool pool, make(dtype, wanted, even));
      found = pools.emplace(std::pair(dtype, wanted), std::move(pool)).first;
    }
    return &found->second;
  };
  KILN_ASSIGN_OR_RETURN(const SamplePool* even, get(Kind::even, {}));
  return get(kind, even->bytes());
}

Expected<SampleMapping> SampleMapping::create(const SampleSource& source, uint64_t size_bytes) {
  SampleMapping mapping;
  mapping.m_size_bytes = size_bytes;
  if (kiln_map_repeatedly(&mapping.m_mapping, source.pool->fd(), SamplePool::k_bytes, source.start_bytes, size_bytes,
                          false) != 0) {
    return error(StatusCode::resource_exhausted, "mapping samples: {}", std::strerror(errno));
  }
  return mapping;
}

}  // namespace kiln
