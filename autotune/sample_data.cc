#include "autotune/sample_data.h"

#include <algorithm>
#include <cstring>

#include "autotune/split_mix.h"

namespace kiln {

namespace {

constexpr uint8_t k_float_poison = 0xff;  // all ones is a NaN; hardware's own NaNs have one payload bit
constexpr uint8_t k_integer_poison = 0xa5;
// Long enough that no kernel's extents divide it, short enough to stay in a private cache.
constexpr size_t k_integer_period = 65'521;

/// One period of random numbers, then copies of it.
template <typename T>
void fill_with_integers(std::span<uint8_t> bytes, uint64_t seed, int64_t low, int64_t high) {
  SplitMix random(seed);
  const auto range = static_cast<uint64_t>(high - low) + 1;
  const size_t count = bytes.size() / sizeof(T), first = std::min(count, k_integer_period);
  auto* out = reinterpret_cast<T*>(bytes.data());
  for (size_t i = 0; i < first; ++i) out[i] = static_cast<T>(low + static_cast<int64_t>(random.next() % range));
  for (size_t done = first; done < count;) {
    const size_t part = std::min(count - done, k_integer_period);
    std::memcpy(out + done, out, part * sizeof(T));
    done += part;
  }
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
  // Blocks of constant length without an early exit: the compiler makes vector code of them.
  constexpr size_t k_block = 2'048;
  size_t begin = 0;
  for (; words.size() - begin >= k_block; begin += k_block) {
    Word found = 0;
    for (size_t i = 0; i < k_block; ++i) found |= static_cast<Word>(words[begin + i] == poison);
    if (found) break;
  }
  const auto place = std::ranges::find(words.subspan(begin), poison);
  if (place != words.end()) return place - words.begin();
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

Expected<SampleSource> SampleData::source(uint32_t buffer) const {
  SampleSource source;
  KILN_ASSIGN_OR_RETURN(source.pool, SamplePool::of(m_spec.buffers[buffer].dtype));
  // 64 bytes apart: buffers of a kernel need no better alignment, and get none.
  source.start_bytes = seed_of(buffer) * 64 % SamplePool::k_bytes;
  return source;
}

Status SampleData::fill(uint32_t buffer, std::span<uint8_t> bytes) const {
  const DType dtype = m_spec.buffers[buffer].dtype;
  if (is_floating(dtype)) {
    KILN_ASSIGN_OR_RETURN(const SampleSource from, source(buffer));
    for (uint64_t done = 0, at = from.start_bytes; done < bytes.size(); at = 0) {
      const uint64_t part = std::min(bytes.size() - done, SamplePool::k_bytes - at);
      std::memcpy(bytes.data() + done, from.pool->bytes().data() + at, part);
      done += part;
    }
    return {};
  }
  const uint64_t seed = seed_of(buffer);
  const int64_t bound = m_index_bound[buffer];
  const int64_t low = bound > 0 ? 0 : -100, high = bound > 0 ? bound - 1 : 100;
  switch (dtype) {
    case DType::boolean:
      fill_with_integers<uint8_t>(bytes, seed, 0, 1);
      break;
    case DType::u8:
      fill_with_integers<uint8_t>(bytes, seed, 0, bound > 0 ? std::min<int64_t>(high, 255) : 255);
      break;
    case DType::i8:
      fill_with_integers<int8_t>(bytes, seed, low, std::min<int64_t>(high, 127));
      break;
    case DType::i32:
      fill_with_integers<int32_t>(bytes, seed, low, high);
      break;
    default:
      fill_with_integers<int64_t>(bytes, seed, low, high);
      break;
  }
  return {};
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
