#include "backends/cpu/compile/sort/sort.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "backends/cpu/compile/emit/launch_numbers.h"
#include "backends/schedule_bytes.h"
#include "base/ceil_div.h"
#include "base/limits.h"

namespace kiln::cpu {
namespace {

using llvm::Value;

constexpr int64_t k_digits = 256, k_place_bytes = 4, k_line_bytes = 64;

/// Elements whose bits are sorted by.
struct Elements {
  int64_t bytes;  // of an element, and of its key: as many passes
  bool is_signed, is_floating;
  uint64_t infinity;  // the bits of a floating one
};

Elements elements_of(DType dtype) {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  switch (dtype) {
    case DType::boolean:
    case DType::u8:
      return {bytes, false, false, 0};
    case DType::i8:
    case DType::i32:
    case DType::i64:
      return {bytes, true, false, 0};
    case DType::f16:
      return {bytes, true, true, 0x7C00};
    case DType::bf16:
      return {bytes, true, true, 0x7F80};
    case DType::f32:
      return {bytes, true, true, 0x7F80'0000};
    case DType::f64:
      return {bytes, true, true, 0x7FF0'0000'0000'0000};
  }
  return {};
}

/// The choices for sorting: there are none.
struct SortSchedule {
  static constexpr std::string_view k_implementation = "radix_sort";
  static constexpr uint32_t k_version = 1;

  uint32_t digit_bits = 8;

  static auto fields(auto& s) { return std::tie(s.digit_bits); }
};

/// As SortSchedule, for code that takes from its launch extents, and where rows and their elements lie.
struct SizedSortSchedule : SortSchedule {
  static constexpr std::string_view k_implementation = "sized_radix_sort";

  uint32_t room = 4096;  // the most elements of a row

  static auto fields(auto& s) { return std::tie(s.digit_bits, s.room); }
};

/// Which numbers of a sort its launch carries.
struct SortNumbers {
  LaunchNumbers launch;
  std::vector<LaunchNumbers::Place> extents;
  BodyNumbers::OfAccess x, order;

  /// None.
  explicit SortNumbers(size_t rank) : extents(rank), x{0, extents}, order{0, extents} {}

  /// All that can be; `form` says them no longer.
  static SortNumbers opened(SortSpec& form) {
    SortNumbers numbers(form.extents.size());
    const auto open = [&](int64_t& number) { return numbers.launch.open(number); };
    std::ranges::transform(form.extents, numbers.extents.begin(), open);
    for (auto [access, places] : {std::pair(&form.x, &numbers.x), std::pair(&form.order, &numbers.order)}) {
      places->offset = open(access->offset);
      std::ranges::transform(access->strides, places->strides.begin(), open);
    }
    return numbers;
  }
};

/// Parts of a task's workspace, in bytes from its begin. Each pass reads one half and writes the other.
struct Workspace {
  std::array<int64_t, 2> keys, places;
  int64_t counts, bytes;

  Workspace(int64_t count, int64_t key_bytes) {
    int64_t at = 0;
    const auto take = [&](int64_t size) {
      const int64_t begin = at;
      at += round_up(size, k_line_bytes);
      return begin;
    };
    for (int64_t& half : keys) half = take(count * key_bytes);
    for (int64_t& half : places) half = take(count * k_place_bytes);
    counts = take(key_bytes * k_digits * k_place_bytes);
    bytes = at;
  }
};

class SortEmission {
 public:
  /// `room`: the most elements of a row.
  SortEmission(Emitter& emitter, const KernelSpec& spec, SortNumbers numbers, int64_t room)
      : e(emitter),
        m_spec(spec),
        m_sort(std::get<SortSpec>(spec.kernel)),
        m_numbers(std::move(numbers)),
        m_elements(elements_of(spec.buffers[m_sort.x.buffer].dtype)),
        m_at(room, m_elements.bytes) {}

  LaunchShape emit() {
    const Emitter::Entry entry = e.begin_entry();
    m_workspace = entry.workspace;
    m_numbers.launch.load(e, entry.extents);
    Value* rows = e.index(1);
    for (size_t d = 0; d < last_dim(); ++d) rows = e.ir.CreateMul(rows, extent(d));
    m_count = extent(last_dim());
    const uint64_t tasks = emit_pieces(e, entry, rows, [&](Value* row) {
      count_digits(row_of(entry, m_sort.x, m_numbers.x, row));
      for (int64_t pass = 0; pass < m_elements.bytes; ++pass) {
        counts_to_places(pass);
        move(pass, row_of(entry, m_sort.order, m_numbers.order, row));
      }
    });
    e.ir.CreateRetVoid();
    return {tasks, static_cast<uint64_t>(m_at.bytes)};
  }

 private:
  llvm::Type* key_type() { return e.ir.getIntNTy(static_cast<unsigned>(m_elements.bytes * 8)); }
  Value* key_number(uint64_t value) { return llvm::ConstantInt::get(key_type(), value); }
  size_t last_dim() const { return m_sort.extents.size() - 1; }
  Value* extent(size_t dim) { return m_numbers.launch.value(e, m_numbers.extents[dim], m_sort.extents[dim]); }
  Value* part(int64_t offset) { return e.advance(m_workspace, offset); }
  Value* element(Value* base, Value* i, int64_t bytes) { return e.advance(base, e.ir.CreateMul(i, e.index(bytes))); }

  int64_t element_bytes(const Access& access) const {
    return static_cast<int64_t>(size_of(m_spec.buffers[access.buffer].dtype));
  }
  /// The address of what an access has at place i along a dim, from that at its begin.
  Value* along(size_t dim, const Access& access, const BodyNumbers::OfAccess& numbers, Value* begin, Value* i) {
    Value* stride = m_numbers.launch.value(e, numbers.strides[dim], access.strides[dim]);
    return element(begin, e.ir.CreateMul(i, stride), element_bytes(access));
  }

  /// The address of a row's first element; rows are numbered in row-major order.
  Value* row_of(const Emitter::Entry& entry, const Access& access, const BodyNumbers::OfAccess& numbers, Value* row) {
    Value* offset = m_numbers.launch.value(e, numbers.offset, access.offset);
    Value* address = element(e.buffer(entry, access.buffer), offset, element_bytes(access));
    for (size_t d = last_dim(); d-- > 0;) {
      address = along(d, access, numbers, address, e.ir.CreateURem(row, extent(d)));
      row = e.ir.CreateUDiv(row, extent(d));
    }
    return address;
  }

  /// A number without a sign, in whose order elements are: of all NaNs the largest, of both zeros one.
  Value* key_of(Value* bits) {
    const auto width = static_cast<unsigned>(m_elements.bytes * 8);
    const uint64_t sign = m_elements.is_signed ? uint64_t{1} << (width - 1) : 0;
    Value* key = e.ir.CreateXor(bits, key_number(sign));
    if (m_elements.is_floating) {
      Value* size = e.ir.CreateAnd(bits, key_number(sign - 1));
      Value* is_zero = e.ir.CreateICmpEQ(size, key_number(0));
      bits = e.ir.CreateSelect(is_zero, size, bits);
      Value* is_negative = e.ir.CreateICmpSLT(bits, key_number(0));
      key = e.ir.CreateSelect(is_negative, e.ir.CreateNot(bits), e.ir.CreateOr(bits, key_number(sign)));
      Value* is_nan = e.ir.CreateICmpUGT(size, key_number(m_elements.infinity));
      key = e.ir.CreateSelect(is_nan, llvm::Constant::getAllOnesValue(key_type()), key);
    }
    return m_sort.descending ? e.ir.CreateNot(key) : key;
  }

  /// Where elements with the key's digit of a pass are counted.
  Value* counter(Value* key, int64_t pass) {
    Value* digit = e.ir.CreateAnd(e.ir.CreateLShr(key, key_number(static_cast<uint64_t>(pass * 8))),
                                  key_number(static_cast<uint64_t>(k_digits - 1)));
    return element(part(m_at.counts + pass * k_digits * k_place_bytes), e.ir.CreateZExt(digit, e.i64()), k_place_bytes);
  }

  /// Makes the keys, and counts the digits of all passes.
  void count_digits(Value* row) {
    llvm::Type* zeros = Emitter::vector(e.i32(), e.lanes());
    e.loop(e.index(0), e.index(m_elements.bytes * k_digits), e.lanes(),
           [&](Value* i) { e.store(Emitter::integer(zeros, 0), element(part(m_at.counts), i, k_place_bytes)); });
    e.loop(e.index(0), m_count, 1, [&](Value* i) {
      Value* key = key_of(e.load(key_type(), along(last_dim(), m_sort.x, m_numbers.x, row, i)));
      e.store(key, element(part(m_at.keys[0]), i, m_elements.bytes));
      for (int64_t pass = 0; pass < m_elements.bytes; ++pass) {
        Value* at = counter(key, pass);
        e.store(e.ir.CreateAdd(e.load(e.i32(), at), e.ir.getInt32(1)), at);
      }
    });
  }

  /// Of each digit, where its first element goes.
  void counts_to_places(int64_t pass) {
    Value* counts = part(m_at.counts + pass * k_digits * k_place_bytes);
    e.loop(e.index(0), e.index(k_digits), 1, {e.ir.getInt32(0)}, [&](Value* i, const Values& before) {
      Value* at = element(counts, i, k_place_bytes);
      Value* next = e.ir.CreateAdd(before[0], e.load(e.i32(), at));
      e.store(before[0], at);
      return Values{next};
    });
  }

  /// Moves keys and places to where the pass's digits say; the last pass moves places alone, to the result.
  void move(int64_t pass, Value* order) {
    const auto from = static_cast<size_t>(pass % 2), to = 1 - from;
    const bool is_last = pass + 1 == m_elements.bytes;
    e.loop(e.index(0), m_count, 1, [&](Value* i) {
      Value* key = e.load(key_type(), element(part(m_at.keys[from]), i, m_elements.bytes));
      Value* place = pass == 0 ? e.ir.CreateTrunc(i, e.i32())
                               : e.load(e.i32(), element(part(m_at.places[from]), i, k_place_bytes));
      Value* at = counter(key, pass);
      Value* next = e.load(e.i32(), at);
      e.store(e.ir.CreateAdd(next, e.ir.getInt32(1)), at);
      Value* target = e.ir.CreateZExt(next, e.i64());
      if (is_last) {
        Value* result = along(last_dim(), m_sort.order, m_numbers.order, order, target);
        return e.store(e.ir.CreateZExt(place, e.i64()), result);
      }
      e.store(key, element(part(m_at.keys[to]), target, m_elements.bytes));
      e.store(place, element(part(m_at.places[to]), target, k_place_bytes));
    });
  }

  Emitter& e;
  const KernelSpec& m_spec;
  const SortSpec& m_sort;
  SortNumbers m_numbers;
  const Elements m_elements;
  const Workspace m_at;
  Value *m_workspace = nullptr, *m_count = nullptr;
};

Status fits(const KernelSpec& spec, int64_t room) {
  const int64_t bytes = elements_of(spec.buffers[std::get<SortSpec>(spec.kernel).x.buffer].dtype).bytes;
  const auto most = static_cast<int64_t>(limits::k_task_workspace_bytes);
  if (room <= most / (2 * (bytes + k_place_bytes)) && Workspace(room, bytes).bytes <= most) return {};
  return error(StatusCode::unimplemented, "sort: rows of {} need too large a workspace", room);
}

int64_t row_length(const KernelSpec& spec) { return std::get<SortSpec>(spec.kernel).extents.back(); }

Status sort_claims(const KernelSpec& spec, const CpuTarget&) { return fits(spec, row_length(spec)); }

std::vector<Schedule> sort_schedules(const KernelSpec&, const CpuTarget&, const Machine&) {
  return {{encode_choices(SortSchedule()), "by bytes"}};
}

Status check_digits(const SortSchedule& schedule) {
  if (schedule.digit_bits == SortSchedule().digit_bits) return {};
  return invalid_argument("sort: digits of {} bits", schedule.digit_bits);
}

Expected<LaunchShape> emit_sort(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<SortSchedule>(bytes));
  KILN_RETURN_IF_ERROR(check_digits(schedule));
  const size_t rank = std::get<SortSpec>(spec.kernel).extents.size();
  return SortEmission(emitter, spec, SortNumbers(rank), row_length(spec)).emit();
}

Status check_room(const KernelSpec& spec, const SizedSortSchedule& schedule) {
  if (schedule.room < row_length(spec)) return invalid_argument("sort: no room for rows of {}", row_length(spec));
  return fits(spec, schedule.room);
}

Expected<LaunchShape> emit_sized_sort(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<SizedSortSchedule>(bytes));
  KILN_RETURN_IF_ERROR(check_digits(schedule));
  KILN_RETURN_IF_ERROR(check_room(spec, schedule));
  SortSpec form = std::get<SortSpec>(spec.kernel);
  return SortEmission(emitter, spec, SortNumbers::opened(form), schedule.room).emit();
}

/// Rows have room for as many elements for most sizes, so that these share code; else for the next power of two.
std::optional<SizedSpec> sized_sort(const KernelSpec& spec, const CpuTarget&, std::span<const uint8_t> like) {
  SizedSortSchedule schedule;
  if (like.empty()) {
    schedule.room = std::max(schedule.room, std::bit_ceil(static_cast<uint32_t>(row_length(spec))));
  } else {
    const auto given = parse_choices<SizedSortSchedule>(like);
    if (!given.ok()) return std::nullopt;
    schedule = *given;
  }
  if (!check_room(spec, schedule).ok()) return std::nullopt;
  SortSpec form = std::get<SortSpec>(spec.kernel);
  const SortNumbers numbers = SortNumbers::opened(form);
  if (numbers.launch.carried().empty() || numbers.launch.carried().size() > limits::k_launch_extents)
    return std::nullopt;
  return sized_spec(spec, std::move(form), numbers.launch, {encode_choices(schedule), "sized, by bytes"});
}

constexpr std::array k_rows{
    Implementation{SortSchedule::k_implementation, sort_claims, sort_schedules, emit_sort},
    Implementation{SizedSortSchedule::k_implementation, sort_claims, no_schedules, emit_sized_sort, sized_sort}};

}  // namespace

std::span<const Implementation> sort_implementations() { return k_rows; }

}  // namespace kiln::cpu
