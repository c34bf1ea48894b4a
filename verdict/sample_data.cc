#include "verdict/sample_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "frontend/ops/tensor.h"
#include "verdict/split_mix.h"

namespace kiln {

namespace {

// All ones is a NaN, and so is every second one: hardware's own NaNs have one payload bit.
constexpr uint8_t k_float_poisons[] = {0xff, 0x7f};
constexpr uint8_t k_integer_poisons[] = {0xa5, 0x5b};
// Long enough that no kernel's extents divide it, short enough to stay in a private cache.
constexpr size_t k_period = 65'521;

/// Copies of the first period into all that follows.
void repeat(std::span<uint8_t> bytes, size_t period_bytes) {
  for (size_t done = period_bytes; done < bytes.size(); done += period_bytes) {
    std::memcpy(bytes.data() + done, bytes.data(), std::min(bytes.size() - done, period_bytes));
  }
}

template <typename T>
void fill_with_integers(std::span<uint8_t> bytes, uint64_t seed, int64_t low, int64_t high) {
  SplitMix random(seed);
  const auto range = static_cast<uint64_t>(high - low) + 1;
  const size_t first = std::min(bytes.size() / sizeof(T), k_period);
  auto* out = reinterpret_cast<T*>(bytes.data());
  for (size_t i = 0; i < first; ++i) out[i] = static_cast<T>(low + static_cast<int64_t>(random.next() % range));
  repeat(bytes, k_period * sizeof(T));
}

/// Lowers the bound of every buffer that the value of `index` is computed from; of what is only compared, if `compared`.
void bound_sources(const Body& body, ExprId index, int64_t bound, bool compared, std::vector<int64_t>& bounds) {
  std::vector<ExprId> pending{index};
  while (!pending.empty()) {
    const ScalarNode& node = body.exprs[pending.back()];
    pending.pop_back();
    const bool is_boolean = node.dtype == DType::boolean;
    if (is_boolean && !compared) continue;
    if (node.op == ScalarOp::load && !is_boolean) {
      int64_t& known = bounds[body.accesses[node.slot].buffer];
      known = known == 0 ? bound : std::min(known, bound);
    }
    for (ExprId operand : node.operands) {
      if (operand != k_no_expr) pending.push_back(operand);
    }
  }
}

/// Whether anything but casts of integers stands between a load and the value.
bool is_computed(const Body& body, ExprId index) {
  const ScalarNode* node = &body.exprs[index];
  while (node->op == ScalarOp::cast) node = &body.exprs[node->operands[0]];
  return node->op != ScalarOp::load || is_floating(node->dtype);
}

void bound_body(const Body& body, bool compared, std::vector<int64_t>& bounds) {
  for (const Access& access : body.accesses) {
    for (const IndirectTerm& term : access.indirect) bound_sources(body, term.index, term.bound, compared, bounds);
  }
}

uint8_t poison_byte(DType dtype, Poison which) {
  return (is_floating(dtype) ? k_float_poisons : k_integer_poisons)[static_cast<size_t>(which)];
}

template <typename Word>
int64_t find_word(uint8_t byte, std::span<const uint8_t> bytes) {
  Word poison;
  std::memset(&poison, byte, sizeof poison);
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

/// Elements of inputs that one element of an output depends on, roughly.
double dependence_of(const KernelSpec& spec) {
  struct Visitor {
    double operator()(const LoopsSpec& loops) const {
      double length = static_cast<double>(loops.body.accesses.size());
      for (size_t d = loops.parallel_rank; d < loops.extents.size(); ++d)
        length *= static_cast<double>(loops.extents[d]);
      return length;
    }
    double operator()(const GemmSpec& gemm) const { return 2 * static_cast<double>(gemm.k + 1); }
    double operator()(const AttentionSpec&) const { return HUGE_VAL; }
    double operator()(const AttentionBackwardSpec&) const { return HUGE_VAL; }
    double operator()(const SortSpec&) const { return 0; }  // what is above all spoils no place
  };
  return std::visit(Visitor{}, spec.kernel);
}

bool casts_to_integer(const Body& body) {
  return std::ranges::any_of(body.exprs, [&](const ScalarNode& node) {
    return node.op == ScalarOp::cast && !is_floating(node.dtype) && node.dtype != DType::boolean &&
           is_floating(body.exprs[node.operands[0]].dtype);
  });
}

std::vector<const Body*> bodies_of(const KernelSpec& spec) {
  if (const auto* loops = std::get_if<LoopsSpec>(&spec.kernel)) return {&loops->body};
  if (const auto* gemm = std::get_if<GemmSpec>(&spec.kernel)) return {&gemm->a, &gemm->b, &gemm->epilogue};
  if (std::holds_alternative<SortSpec>(spec.kernel)) return {};
  if (const auto* attention = std::get_if<AttentionSpec>(&spec.kernel)) return {&attention->score};
  return {&std::get<AttentionBackwardSpec>(spec.kernel).forward.score};
}

/// Infinities and NaNs only where their meaning is fixed: no cast makes integers of them, and not in attention, where a
/// key that is masked or of no weight may or may not spoil a row. A gradient of attention is of one forward pass: uneven
/// numbers would be of none.
SamplePool::Kind harsh_kind(const KernelSpec& spec) {
  if (std::holds_alternative<AttentionBackwardSpec>(spec.kernel)) return SamplePool::Kind::even;
  if (std::ranges::any_of(bodies_of(spec), [](const Body* body) { return casts_to_integer(*body); })) {
    return SamplePool::Kind::even;
  }
  const double dependence = dependence_of(spec);  // at most one output in eight is to be spoilt
  if (dependence <= 0x1p4) return SamplePool::Kind::special_7;
  if (dependence <= 0x1p8) return SamplePool::Kind::special_11;
  if (dependence <= 0x1p12) return SamplePool::Kind::special_15;
  if (dependence <= 0x1p16) return SamplePool::Kind::special_19;
  return SamplePool::Kind::uneven;
}

std::vector<SamplePool::Kind> kinds_of(const KernelSpec& spec, Situation situation) {
  using Kind = SamplePool::Kind;
  std::vector<Kind> kinds(spec.buffers.size(), is_harsh(situation) ? harsh_kind(spec) : Kind::even);
  const auto* gemm = std::get_if<GemmSpec>(&spec.kernel);
  if (gemm == nullptr || situation != Situation::plain) return kinds;
  for (const Access& access : gemm->b.accesses) kinds[access.buffer] = Kind::small;
  for (const Access& access : gemm->a.accesses) kinds[access.buffer] = Kind::even;
  return kinds;
}

}  // namespace

std::pair<int64_t, int64_t> IndexWindow::range(int64_t bound) const {
  const auto low = static_cast<int64_t>(begin * static_cast<double>(bound));
  return {low, std::max(static_cast<int64_t>(end * static_cast<double>(bound)) - 1, low)};
}

std::pair<double, double> IndexWindow::positions(int64_t bound) const {
  const auto [low, high] = range(bound);
  const auto first = static_cast<double>(low);
  return {first,
          first + (static_cast<double>(high - low) + 0.875) * part};  // a product rounded up keeps its integral part
}

SampleData::SampleData(const KernelSpec& spec, uint64_t seed, Situation situation, IndexWindow window)
    : m_spec(&spec),
      m_seed(seed),
      m_situation(situation),
      m_window(window),
      m_kinds(kinds_of(spec, situation)),
      m_index_bound(spec.buffers.size(), 0),
      m_ends_of(spec.buffers.size(), 0) {
  for (const Body* body : bodies_of(spec)) bound_body(*body, window.is_of_compared, m_index_bound);
  const auto* gemm = std::get_if<GemmSpec>(&spec.kernel);
  if (gemm == nullptr || !gemm->groups) return;
  m_ends_of[gemm->groups->ends.buffer] = gemm->groups->along == GemmGroups::Along::m ? gemm->m : gemm->k;
}

uint64_t SampleData::misalignment(uint32_t buffer) const {
  return m_situation == Situation::harsh ? size_of(m_spec->buffers[buffer].dtype) : 0;
}

bool SampleData::has_window() const {
  return std::ranges::any_of(m_index_bound, [](int64_t bound) { return bound > 0; });
}

bool SampleData::computes_indices() const {
  return std::ranges::any_of(bodies_of(*m_spec), [](const Body* body) {
    return std::ranges::any_of(body->accesses, [&](const Access& access) {
      return std::ranges::any_of(access.indirect,
                                 [&](const IndirectTerm& term) { return is_computed(*body, term.index); });
    });
  });
}

bool SampleData::has_bad_index() const {
  for (uint32_t i = 0; i < m_spec->buffers.size(); ++i) {
    if (m_spec->buffers[i].role != BufferRole::output && m_spec->buffers[i].elements > 0 && bad_index(i)) return true;
  }
  return false;
}

/// What no element of the buffer may be, where its dtype can say it.
std::optional<int64_t> SampleData::bad_index(uint32_t buffer) const {
  const int64_t bound = m_index_bound[buffer];
  const DType dtype = m_spec->buffers[buffer].dtype;
  if (bound == 0 || dtype == DType::boolean) return std::nullopt;
  const bool is_signed = dtype != DType::u8;
  int64_t most = std::numeric_limits<int64_t>::max() >> (64 - 8 * size_of(dtype)) | (is_signed ? 0 : 0x80);
  if (is_floating(dtype)) most = dtype == DType::f16 ? 65'504 : int64_t{1} << 62;
  if (dtype == DType::i64) most -= 1'023;  // the reference's f64 hold it
  switch (m_situation) {
    case Situation::negative_index:
      return is_signed ? std::optional<int64_t>(-1) : std::nullopt;
    case Situation::index_at_end:
      return bound <= most ? std::optional(bound) : std::nullopt;
    case Situation::far_index:
      return bound <= most ? std::optional(most) : std::nullopt;
    default:
      return std::nullopt;
  }
}

void SampleData::spoil(uint32_t buffer, std::span<uint8_t> bytes) const {
  const auto value = bad_index(buffer);
  const BufferSpec& form = m_spec->buffers[buffer];
  if (!value || form.elements == 0) return;
  const bool many = m_situation == Situation::far_index;
  const int64_t first = m_situation == Situation::index_at_end ? form.elements - 1 : 0;
  for (int64_t i = first; i < form.elements; i += many ? 7 : form.elements) {
    if (is_floating(form.dtype)) {
      store_element(form.dtype, reinterpret_cast<std::byte*>(bytes.data()), i, static_cast<double>(*value));
    } else {
      std::memcpy(bytes.data() + static_cast<size_t>(i) * size_of(form.dtype), &*value, size_of(form.dtype));
    }
  }
}

bool SampleData::has_source(uint32_t buffer) const {
  return is_floating(m_spec->buffers[buffer].dtype) && m_index_bound[buffer] == 0;
}

Expected<SampleSource> SampleData::source(uint32_t buffer) const {
  SampleSource source;
  KILN_ASSIGN_OR_RETURN(source.pool, SamplePool::of(m_spec->buffers[buffer].dtype, m_kinds[buffer]));
  // 64 bytes apart: buffers of a kernel need no better alignment, and get none.
  source.start_bytes = seed_of(buffer) * 64 % SamplePool::k_bytes + misalignment(buffer);
  return source;
}

std::pair<int64_t, int64_t> SampleData::integers_of(uint32_t buffer) const {
  if (m_index_bound[buffer] > 0) return m_window.range(m_index_bound[buffer]);
  if (m_ends_of[buffer] > 0) return {0, m_ends_of[buffer] + m_ends_of[buffer] / 8};
  return {-100, 100};
}

Status SampleData::fill(uint32_t buffer, std::span<uint8_t> bytes) const {
  const DType dtype = m_spec->buffers[buffer].dtype;
  if (has_source(buffer)) {
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
  const bool ascends = m_ends_of[buffer] > 0 && !is_harsh(m_situation);
  const auto [low, high] = integers_of(buffer);
  switch (dtype) {
    case DType::boolean:
      fill_with_integers<uint8_t>(bytes, seed, 0, 1);
      break;
    case DType::u8:
      fill_with_integers<uint8_t>(bytes, seed, bound > 0 ? std::min<int64_t>(low, 255) : 0,
                                  bound > 0 ? std::min<int64_t>(high, 255) : 255);
      break;
    case DType::i8:
      fill_with_integers<int8_t>(bytes, seed, std::min<int64_t>(low, 127), std::min<int64_t>(high, 127));
      break;
    case DType::i32:
      fill_with_integers<int32_t>(bytes, seed, low, high);
      if (ascends) std::ranges::sort(std::span(reinterpret_cast<int32_t*>(bytes.data()), bytes.size() / 4));
      break;
    case DType::i64:
      fill_with_integers<int64_t>(bytes, seed, low, high);
      if (ascends) std::ranges::sort(std::span(reinterpret_cast<int64_t*>(bytes.data()), bytes.size() / 8));
      break;
    default:
      fill_with_positions(dtype, bytes, seed, m_window.positions(bound));
      break;
  }
  spoil(buffer, bytes);
  return {};
}

void fill_with_positions(DType dtype, std::span<uint8_t> bytes, uint64_t seed, std::pair<double, double> interval) {
  SplitMix random(seed);
  const double width = interval.second - interval.first;
  const size_t first = std::min(bytes.size() / size_of(dtype), k_period);
  for (size_t i = 0; i < first; ++i) {
    const double share = static_cast<double>(random.next() >> 11) * 0x1p-53;
    store_element(dtype, reinterpret_cast<std::byte*>(bytes.data()), static_cast<int64_t>(i),
                  interval.first + width * share);
  }
  repeat(bytes, k_period * size_of(dtype));
}

void poison(DType dtype, std::span<uint8_t> bytes, Poison which) {
  std::memset(bytes.data(), poison_byte(dtype, which), bytes.size());
}

int64_t find_poison(DType dtype, std::span<const uint8_t> bytes, Poison which) {
  const uint8_t byte = poison_byte(dtype, which);
  switch (size_of(dtype)) {
    case 1:
      return find_word<uint8_t>(byte, bytes);
    case 2:
      return find_word<uint16_t>(byte, bytes);
    case 4:
      return find_word<uint32_t>(byte, bytes);
    default:
      return find_word<uint64_t>(byte, bytes);
  }
}

}  // namespace kiln
