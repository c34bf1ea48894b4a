#include "backends/cpu/compile/sort/sort_rows.h"

#include <algorithm>
#include <utility>

namespace kiln::cpu {

using llvm::Value;

namespace {

/// The bits of infinity.
uint64_t infinity_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x7C00;
    case DType::bf16:
      return 0x7F80;
    case DType::f32:
      return 0x7F80'0000;
    case DType::f64:
      return 0x7FF0'0000'0000'0000;
    default:
      return 0;
  }
}

}  // namespace

SortNumbers SortNumbers::opened(SortSpec& form) {
  SortNumbers numbers(form.extents.size());
  const auto open = [&](int64_t& number) { return numbers.launch.open(number); };
  std::ranges::transform(form.extents, numbers.extents.begin(), open);
  if (form.topk) numbers.k = open(form.topk->k);
  for (auto [access, places] : {std::pair(&form.x, &numbers.x), std::pair(&form.order, &numbers.order)}) {
    places->offset = open(access->offset);
    std::ranges::transform(access->strides, places->strides.begin(), open);
  }
  return numbers;
}

SortRows::SortRows(Emitter& emitter, const KernelSpec& spec, SortNumbers numbers)
    : e(emitter),
      m_spec(spec),
      m_sort(std::get<SortSpec>(spec.kernel)),
      m_numbers(std::move(numbers)),
      m_dtype(spec.buffers[m_sort.x.buffer].dtype),
      m_key_bytes(static_cast<int64_t>(size_of(m_dtype))) {}

uint64_t SortRows::emit(const Emitter::Entry& entry, const std::function<void(const Row&)>& order) {
  m_numbers.launch.load(e, entry.extents);
  const size_t last_dim = m_sort.extents.size() - 1;
  Value* rows = e.index(1);
  for (size_t d = 0; d < last_dim; ++d) rows = e.ir.CreateMul(rows, extent(d));
  m_count = extent(last_dim);
  m_told = m_sort.topk ? m_numbers.launch.value(e, m_numbers.k, m_sort.topk->k) : m_count;
  return emit_pieces(e, entry, rows, [&](Value* row) {
    order({row_of(entry, m_sort.x, m_numbers.x, row), row_of(entry, m_sort.order, m_numbers.order, row)});
  });
}

Value* SortRows::key(const Row& row, Value* i) {
  return key_of(e.load(key_type(), along(m_sort.extents.size() - 1, m_sort.x, m_numbers.x, row.x, i)));
}

void SortRows::tell(const Row& row, Value* p, Value* place) {
  e.store(e.ir.CreateZExt(place, e.i64()),
          along(m_sort.extents.size() - 1, m_sort.order, m_numbers.order, row.order, p));
}

Value* SortRows::key_of(Value* bits) {
  const auto width = static_cast<unsigned>(m_key_bytes * 8);
  const bool is_signed = m_dtype != DType::boolean && m_dtype != DType::u8;
  const uint64_t sign = is_signed ? uint64_t{1} << (width - 1) : 0;
  Value* key = e.ir.CreateXor(bits, key_number(sign));
  if (is_floating(m_dtype)) {
    Value* size = e.ir.CreateAnd(bits, key_number(sign - 1));
    Value* is_zero = e.ir.CreateICmpEQ(size, key_number(0));
    bits = e.ir.CreateSelect(is_zero, size, bits);
    Value* is_negative = e.ir.CreateICmpSLT(bits, key_number(0));
    key = e.ir.CreateSelect(is_negative, e.ir.CreateNot(bits), e.ir.CreateOr(bits, key_number(sign)));
    Value* is_nan = e.ir.CreateICmpUGT(size, key_number(infinity_of(m_dtype)));
    key = e.ir.CreateSelect(is_nan, llvm::Constant::getAllOnesValue(key_type()), key);
  }
  return m_sort.descending ? e.ir.CreateNot(key) : key;
}

/// The address of what lies so many elements behind `begin`.
Value* SortRows::element(Value* begin, const Access& access, Value* elements) {
  const auto bytes = static_cast<int64_t>(size_of(m_spec.buffers[access.buffer].dtype));
  return e.advance(begin, e.ir.CreateMul(elements, e.index(bytes)));
}

/// The address of what an access has at place i along a dim, from that at its begin.
Value* SortRows::along(size_t dim, const Access& access, const BodyNumbers::OfAccess& numbers, Value* begin, Value* i) {
  Value* stride = m_numbers.launch.value(e, numbers.strides[dim], access.strides[dim]);
  return element(begin, access, e.ir.CreateMul(i, stride));
}

/// The address of a row's first element; rows are numbered in row-major order.
Value* SortRows::row_of(const Emitter::Entry& entry, const Access& access, const BodyNumbers::OfAccess& numbers,
                        Value* row) {
  Value* offset = m_numbers.launch.value(e, numbers.offset, access.offset);
  Value* address = element(e.buffer(entry, access.buffer), access, offset);
  for (size_t d = m_sort.extents.size() - 1; d-- > 0;) {
    address = along(d, access, numbers, address, e.ir.CreateURem(row, extent(d)));
    row = e.ir.CreateUDiv(row, extent(d));
  }
  return address;
}

}  // namespace kiln::cpu
