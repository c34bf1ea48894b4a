#include "backends/cpu/compile/sort/sort.h"

#include <array>

#include "backends/cpu/compile/emit/emitter.h"
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
  SortEmission(Emitter& emitter, const KernelSpec& spec, const SortSpec& sort)
      : e(emitter),
        m_spec(spec),
        m_sort(sort),
        m_elements(elements_of(spec.buffers[sort.x.buffer].dtype)),
        m_count(sort.extents.back()),
        m_at(m_count, m_elements.bytes) {}

  LaunchShape emit() {
    const Emitter::Entry entry = e.begin_entry();
    m_workspace = entry.workspace;
    e.loop(entry.first_task, entry.last_task, 1, [&](Value* row) {
      count_digits(row_of(entry, m_sort.x, row));
      for (int64_t pass = 0; pass < m_elements.bytes; ++pass) {
        counts_to_places(pass);
        move(pass, row_of(entry, m_sort.order, row));
      }
    });
    e.ir.CreateRetVoid();
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < m_sort.extents.size(); ++d) rows *= m_sort.extents[d];
    return {static_cast<uint64_t>(rows), static_cast<uint64_t>(m_at.bytes)};
  }

 private:
  llvm::Type* key_type() { return e.ir.getIntNTy(static_cast<unsigned>(m_elements.bytes * 8)); }
  Value* key_number(uint64_t value) { return llvm::ConstantInt::get(key_type(), value); }
  int64_t element_bytes(const Access& access) const {
    return static_cast<int64_t>(size_of(m_spec.buffers[access.buffer].dtype));
  }
  Value* part(int64_t offset) { return e.advance(m_workspace, offset); }
  Value* element(Value* base, Value* i, int64_t bytes) { return e.advance(base, e.ir.CreateMul(i, e.index(bytes))); }

  /// The address of a row's first element; rows are numbered in row-major order.
  Value* row_of(const Emitter::Entry& entry, const Access& access, Value* row) {
    Value* address = e.advance(e.buffer(entry, access.buffer), access.offset * element_bytes(access));
    for (size_t d = m_sort.extents.size() - 1; d-- > 0;) {
      Value* at = e.ir.CreateURem(row, e.index(m_sort.extents[d]));
      address = element(address, at, access.strides[d] * element_bytes(access));
      row = e.ir.CreateUDiv(row, e.index(m_sort.extents[d]));
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
    e.loop(e.index(0), e.index(m_count), 1, [&](Value* i) {
      Value* from = element(row, i, m_sort.x.strides.back() * m_elements.bytes);
      Value* key = key_of(e.load(key_type(), from));
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
    e.loop(e.index(0), e.index(m_count), 1, [&](Value* i) {
      Value* key = e.load(key_type(), element(part(m_at.keys[from]), i, m_elements.bytes));
      Value* place = pass == 0 ? e.ir.CreateTrunc(i, e.i32())
                               : e.load(e.i32(), element(part(m_at.places[from]), i, k_place_bytes));
      Value* at = counter(key, pass);
      Value* next = e.load(e.i32(), at);
      e.store(e.ir.CreateAdd(next, e.ir.getInt32(1)), at);
      Value* target = e.ir.CreateZExt(next, e.i64());
      if (is_last) {
        Value* result = element(order, target, m_sort.order.strides.back() * element_bytes(m_sort.order));
        return e.store(e.ir.CreateZExt(place, e.i64()), result);
      }
      e.store(key, element(part(m_at.keys[to]), target, m_elements.bytes));
      e.store(place, element(part(m_at.places[to]), target, k_place_bytes));
    });
  }

  Emitter& e;
  const KernelSpec& m_spec;
  const SortSpec& m_sort;
  const Elements m_elements;
  const int64_t m_count;
  const Workspace m_at;
  Value* m_workspace = nullptr;
};

Status sort_claims(const KernelSpec& spec, const CpuTarget&) {
  const auto& sort = std::get<SortSpec>(spec.kernel);
  const int64_t bytes = elements_of(spec.buffers[sort.x.buffer].dtype).bytes, count = sort.extents.back();
  const auto most = static_cast<int64_t>(limits::k_task_workspace_bytes);
  if (count <= most / (2 * (bytes + k_place_bytes)) && Workspace(count, bytes).bytes <= most) return {};
  return error(StatusCode::unimplemented, "sort: rows of {} need too large a workspace", count);
}

std::vector<Schedule> sort_schedules(const KernelSpec&, const CpuTarget&, const Machine&) {
  return {{encode_choices(SortSchedule()), "by bytes"}};
}

Expected<LaunchShape> emit_sort(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<SortSchedule>(bytes));
  if (schedule.digit_bits != SortSchedule().digit_bits) {
    return invalid_argument("sort: digits of {} bits", schedule.digit_bits);
  }
  return SortEmission(emitter, spec, std::get<SortSpec>(spec.kernel)).emit();
}

constexpr std::array k_rows{Implementation{SortSchedule::k_implementation, sort_claims, sort_schedules, emit_sort}};

}  // namespace

std::span<const Implementation> sort_implementations() { return k_rows; }

}  // namespace kiln::cpu
