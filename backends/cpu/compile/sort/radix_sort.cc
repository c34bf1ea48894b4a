#include "backends/cpu/compile/sort/radix_sort.h"

#include <array>
#include <utility>

#include "base/ceil_div.h"

namespace kiln::cpu {
namespace {

using llvm::Value;

constexpr int64_t k_digits = 256, k_place_bytes = 4, k_line_bytes = 64;

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

class RadixSort {
 public:
  RadixSort(Emitter& emitter, SortRows rows, int64_t room)
      : e(emitter), m_rows(std::move(rows)), m_bytes(m_rows.key_bytes()), m_at(room, m_bytes) {}

  LaunchShape emit() {
    const Emitter::Entry entry = e.begin_entry();
    m_workspace = entry.workspace;
    const uint64_t tasks = m_rows.emit(entry, [&](const SortRows::Row& row) {
      count_digits(row);
      for (int64_t pass = 0; pass < m_bytes; ++pass) {
        counts_to_places(pass);
        move(pass, row);
      }
    });
    e.ir.CreateRetVoid();
    return {tasks, static_cast<uint64_t>(m_at.bytes)};
  }

 private:
  Value* part(int64_t offset) { return e.advance(m_workspace, offset); }
  Value* element(Value* base, Value* i, int64_t bytes) { return e.advance(base, e.ir.CreateMul(i, e.index(bytes))); }

  /// Where elements with the key's digit of a pass are counted.
  Value* counter(Value* key, int64_t pass) {
    Value* digit = e.ir.CreateAnd(e.ir.CreateLShr(key, m_rows.key_number(static_cast<uint64_t>(pass * 8))),
                                  m_rows.key_number(static_cast<uint64_t>(k_digits - 1)));
    return element(part(m_at.counts + pass * k_digits * k_place_bytes), e.ir.CreateZExt(digit, e.i64()), k_place_bytes);
  }

  /// Makes the keys, and counts the digits of all passes.
  void count_digits(const SortRows::Row& row) {
    llvm::Type* zeros = Emitter::vector(e.i32(), e.lanes());
    e.loop(e.index(0), e.index(m_bytes * k_digits), e.lanes(),
           [&](Value* i) { e.store(Emitter::integer(zeros, 0), element(part(m_at.counts), i, k_place_bytes)); });
    e.loop(e.index(0), m_rows.count(), 1, [&](Value* i) {
      Value* key = m_rows.key(row, i);
      e.store(key, element(part(m_at.keys[0]), i, m_bytes));
      for (int64_t pass = 0; pass < m_bytes; ++pass) {
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
  void move(int64_t pass, const SortRows::Row& row) {
    const auto from = static_cast<size_t>(pass % 2), to = 1 - from;
    const bool is_last = pass + 1 == m_bytes;
    e.loop(e.index(0), m_rows.count(), 1, [&](Value* i) {
      Value* key = e.load(m_rows.key_type(), element(part(m_at.keys[from]), i, m_bytes));
      Value* place = pass == 0 ? e.ir.CreateTrunc(i, e.i32())
                               : e.load(e.i32(), element(part(m_at.places[from]), i, k_place_bytes));
      Value* at = counter(key, pass);
      Value* next = e.load(e.i32(), at);
      e.store(e.ir.CreateAdd(next, e.ir.getInt32(1)), at);
      Value* target = e.ir.CreateZExt(next, e.i64());
      if (is_last) return m_rows.tell(row, target, place);
      e.store(key, element(part(m_at.keys[to]), target, m_bytes));
      e.store(place, element(part(m_at.places[to]), target, k_place_bytes));
    });
  }

  Emitter& e;
  SortRows m_rows;
  const int64_t m_bytes;  // of a key: as many passes
  const Workspace m_at;
  Value* m_workspace = nullptr;
};

}  // namespace

int64_t radix_workspace_bytes(int64_t room, int64_t key_bytes) { return Workspace(room, key_bytes).bytes; }

LaunchShape emit_radix_sort(Emitter& emitter, SortRows rows, int64_t room) {
  return RadixSort(emitter, std::move(rows), room).emit();
}

}  // namespace kiln::cpu
