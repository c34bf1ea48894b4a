#include "autotune/sample_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

constexpr uint8_t k_float_poison = 0xff;  // all ones is a NaN; hardware's own NaNs have one payload bit
constexpr uint8_t k_integer_poison = 0xa5;
// Long enough that no kernel's extents divide it, short enough to stay in a private cache.
constexpr size_t k_noise_period = 65'521;

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : m_state(seed) {}
  uint64_t next() {
    uint64_t z = (m_state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// Box and Muller's transform.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * 3.14159265358979323846 * uniform());
  }

 private:
  uint64_t m_state;
};

/// Normal noise, made once.
const std::vector<float>& noise() {
  static const std::vector<float> values = [] {
    SplitMix random(1);
    std::vector<float> list(k_noise_period);
    for (float& value : list) value = static_cast<float>(random.normal());
    return list;
  }();
  return values;
}

/// Repeats one period of `make(position)` over the bytes, beginning at `start`: after the first period a copy.
template <typename T, typename Make>
void fill_periodically(std::span<uint8_t> bytes, uint64_t start, Make make) {
  const size_t count = bytes.size() / sizeof(T), first = std::min(count, k_noise_period);
  auto* out = reinterpret_cast<T*>(bytes.data());
  for (size_t i = 0; i < first; ++i) out[i] = static_cast<T>(make((start + i) % k_noise_period));
  for (size_t done = first; done < count;) {
    const size_t part = std::min(count - done, k_noise_period);
    std::memcpy(out + done, out, part * sizeof(T));
    done += part;
  }
}

template <typename T, typename Convert>
void fill_with_noise(std::span<uint8_t> bytes, uint64_t start, Convert convert) {
  const std::vector<float>& values = noise();
  fill_periodically<T>(bytes, start, [&](size_t position) { return convert(values[position]); });
}

template <typename T>
void fill_with_integers(std::span<uint8_t> bytes, uint64_t seed, int64_t low, int64_t high) {
  SplitMix random(seed);
  const auto range = static_cast<uint64_t>(high - low) + 1;
  fill_periodically<T>(bytes, 0, [&](size_t) { return low + static_cast<int64_t>(random.next() % range); });
}

/// Lowers the bound of every integer buffer that the value of `index` is loaded from.
void bound_sources(const Body& body, ExprId index, int64_t bound, std::vector<int64_t>& bounds) {
  std::vector<ExprId> pending{index};
  while (!pending.empty()) {
    const ScalarNode& node = body.exprs[pending.back()];
    pending.pop_back();
    if (node.op == ScalarOp::load && !is_floating(node.dtype)) {
      int64_t& known = bounds[body.accesses[node.slot].buffer];
      known = known == 0 ? bound : std::min(known, bound);
    }
    for (ExprId operand : node.operands) {
      if (operand != k_no_expr) pending.push_back(operand);
    }
  }
}

void bound_body(const Body& body, std::vector<int64_t>& bounds) {
  for (const Access& access : body.accesses) {
    for (const IndirectTerm& term : access.indirect) bound_sources(body, term.index, term.bound, bounds);
  }
}

uint8_t poison_byte(DType dtype) { return is_floating(dtype) ? k_float_poison : k_integer_poison; }

template <typename Word>
int64_t find_word(DType dtype, std::span<const uint8_t> bytes) {
  Word poison;
  std::memset(&poison, poison_byte(dtype), sizeof poison);
  const std::span words(reinterpret_cast<const Word*>(bytes.data()), bytes.size() / sizeof(Word));
  // Without an early exit the inner loop is vector code.
  constexpr size_t k_block = 2'048;
  for (size_t begin = 0; begin < words.size(); begin += k_block) {
    const auto block = words.subspan(begin, std::min(k_block, words.size() - begin));
    Word found = 0;
    for (Word word : block) found |= static_cast<Word>(word == poison);
    if (found) return static_cast<int64_t>(begin) + (std::ranges::find(block, poison) - block.begin());
  }
  return -1;
}

}  // namespace

SampleData::SampleData(const KernelSpec& spec, uint64_t seed)
    : m_spec(spec), m_seed(seed), m_index_bound(spec.buffers.size(), 0) {
  if (const auto* loops = std::get_if<LoopsSpec>(&spec.kernel)) bound_body(loops->body, m_index_bound);
  if (const auto* gemm = std::get_if<GemmSpec>(&spec.kernel)) {
    bound_body(gemm->a, m_index_bound);
    bound_body(gemm->b, m_index_bound);
    bound_body(gemm->epilogue, m_index_bound);
  }
  if (const auto* attention = std::get_if<AttentionSpec>(&spec.kernel)) bound_body(attention->score, m_index_bound);
  if (const auto* backward = std::get_if<AttentionBackwardSpec>(&spec.kernel)) {
    bound_body(backward->forward.score, m_index_bound);
  }
}

void SampleData::fill(uint32_t buffer, std::span<uint8_t> bytes) const {
  const uint64_t start = m_seed * 7919 + buffer * 104'729;
  const int64_t bound = m_index_bound[buffer];
  const int64_t low = bound > 0 ? 0 : -100, high = bound > 0 ? bound - 1 : 100;
  switch (m_spec.buffers[buffer].dtype) {
    case DType::boolean:
      fill_with_integers<uint8_t>(bytes, start, 0, 1);
      break;
    case DType::u8:
      fill_with_integers<uint8_t>(bytes, start, 0, bound > 0 ? std::min<int64_t>(high, 255) : 255);
      break;
    case DType::i8:
      fill_with_integers<int8_t>(bytes, start, low, std::min<int64_t>(high, 127));
      break;
    case DType::i32:
      fill_with_integers<int32_t>(bytes, start, low, high);
      break;
    case DType::i64:
      fill_with_integers<int64_t>(bytes, start, low, high);
      break;
    case DType::f16:
      fill_with_noise<uint16_t>(bytes, start, f64_to_f16);
      break;
    case DType::bf16:
      fill_with_noise<uint16_t>(bytes, start, f64_to_bf16);
      break;
    case DType::f32:
      fill_with_noise<float>(bytes, start, [](float value) { return value; });
      break;
    case DType::f64:
      fill_with_noise<double>(bytes, start, [](float value) { return static_cast<double>(value); });
      break;
  }
}

void perturb_by_rounding(DType dtype, std::span<std::byte> bytes, uint64_t seed) {
  if (!is_floating(dtype)) return;
  // The next number of a dtype is the next number of its bits, read as an integer.
  SplitMix random(seed);
  const size_t size = size_of(dtype);
  for (size_t i = 0; i + size <= bytes.size(); i += size) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, size);
    bits += (random.next() & 1) ? 1 : uint64_t{0} - 1;
    std::memcpy(bytes.data() + i, &bits, size);
  }
}

void poison(DType dtype, std::span<uint8_t> bytes) { std::memset(bytes.data(), poison_byte(dtype), bytes.size()); }

int64_t find_poison(DType dtype, std::span<const uint8_t> bytes) {
  switch (size_of(dtype)) {
    case 1:
      return find_word<uint8_t>(dtype, bytes);
    case 2:
      return find_word<uint16_t>(dtype, bytes);
    case 4:
      return find_word<uint32_t>(dtype, bytes);
    default:
      return find_word<uint64_t>(dtype, bytes);
  }
}

}  // namespace kiln
