#pragma once

#include <functional>
#include <vector>

#include "backends/cpu/compile/emit/launch_numbers.h"

namespace kiln::cpu {

/// Which numbers of a sort its launch carries.
struct SortNumbers {
  LaunchNumbers launch;
  std::vector<LaunchNumbers::Place> extents;
  LaunchNumbers::Place k = 0;
  BodyNumbers::OfAccess x, order;

  /// None.
  explicit SortNumbers(size_t rank) : extents(rank), x{0, extents}, order{0, extents} {}
  /// All that can be; `form` says them no longer.
  static SortNumbers opened(SortSpec& form);
};

/// What code is the same however rows are ordered: how many there are, where they lie, and keys.
class SortRows {
 public:
  SortRows(Emitter& emitter, const KernelSpec& spec, SortNumbers numbers);

  /// A row: the addresses of its first element and of its first place.
  struct Row {
    llvm::Value *x, *order;
  };
  /// Writes a kernel whose tasks order rows; those have `count()` elements. How many tasks.
  uint64_t emit(const Emitter::Entry& entry, const std::function<void(const Row& row)>& order);

  int64_t key_bytes() const { return m_key_bytes; }
  llvm::Type* key_type() { return e.ir.getIntNTy(static_cast<unsigned>(m_key_bytes * 8)); }
  llvm::Value* key_number(uint64_t value) { return llvm::ConstantInt::get(key_type(), value); }
  /// Elements of a row, and places that are told of it.
  llvm::Value* count() const { return m_count; }
  llvm::Value* told() const { return m_told; }
  /// Of element i of a row: a number without a sign, in whose order elements come, of all NaNs the largest, of both zeros one.
  llvm::Value* key(const Row& row, llvm::Value* i);
  /// Says that `place`, of 32 bits, is the one that p others of a row come before.
  void tell(const Row& row, llvm::Value* p, llvm::Value* place);

 private:
  llvm::Value* key_of(llvm::Value* bits);
  llvm::Value* extent(size_t dim) { return m_numbers.launch.value(e, m_numbers.extents[dim], m_sort.extents[dim]); }
  llvm::Value* element(llvm::Value* begin, const Access& access, llvm::Value* elements);
  llvm::Value* along(size_t dim, const Access& access, const BodyNumbers::OfAccess& numbers, llvm::Value* begin,
                     llvm::Value* i);
  llvm::Value* row_of(const Emitter::Entry& entry, const Access& access, const BodyNumbers::OfAccess& numbers,
                      llvm::Value* row);

  Emitter& e;
  const KernelSpec& m_spec;
  const SortSpec& m_sort;
  SortNumbers m_numbers;
  const DType m_dtype;
  const int64_t m_key_bytes;
  llvm::Value *m_count = nullptr, *m_told = nullptr;
};

}  // namespace kiln::cpu
