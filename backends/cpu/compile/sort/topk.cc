#include "backends/cpu/compile/sort/topk.h"

#include <utility>

#include "backends/cpu/compile/sort/item_algorithms.h"

namespace kiln::cpu {

using llvm::Value;

namespace {

class Topk {
 public:
  /// To be made before the image's entry is begun.
  Topk(Emitter& emitter, SortRows rows)
      : e(emitter), m_rows(std::move(rows)), m_items(e, ItemAlgorithms::item_bytes(m_rows.key_bytes())) {}

  uint64_t emit(bool sorted) {
    const Emitter::Entry entry = e.begin_entry();
    m_all = entry.workspace;
    const uint64_t tasks = m_rows.emit(entry, [&](const SortRows::Row& row) {
      Value* is_few = e.ir.CreateICmpULE(e.ir.CreateMul(m_rows.told(), e.index(64)), m_rows.count());
      const auto select = [&] {
        partial_sort(row);
        return Values{};
      };
      const auto part = [&] {
        nth_element(row, sorted);
        return Values{};
      };
      e.if_else(is_few, select, part);
      e.loop(e.index(0), m_rows.told(), 1, [&](Value* p) { m_rows.tell(row, p, m_items.place(m_all, p)); });
    });
    e.ir.CreateRetVoid();
    return tasks;
  }

 private:
  Value* item_of(const SortRows::Row& row, Value* i) { return m_items.made_of(m_rows.key(row, i), i); }

  void load(const SortRows::Row& row, Value* count) {
    e.loop(e.index(0), count, 1, [&](Value* i) { m_items.set(m_all, i, item_of(row, i)); });
  }

  /// std::partial_sort, of a row that is read once: what leaves the heap is not looked at again.
  void partial_sort(const SortRows::Row& row) {
    Value* k = m_rows.told();
    load(row, k);
    m_items.make_heap(m_all, k);
    e.loop(k, m_rows.count(), 1, [&](Value* i) {
      Value* item = item_of(row, i);
      e.if_then(m_items.comes_first(item, m_items.item(m_all, e.index(0))),
                [&] { m_items.replace_last_of_heap(m_all, k, item); });
    });
    m_items.sort_heap(m_all, k);
  }

  void nth_element(const SortRows::Row& row, bool sorted) {
    Value* before = e.ir.CreateSub(m_rows.told(), e.index(1));
    load(row, m_rows.count());
    m_items.nth_element(m_all, before, m_rows.count());
    if (sorted) m_items.sort(m_all, before);
  }

  Emitter& e;
  SortRows m_rows;
  ItemAlgorithms m_items;
  Value* m_all = nullptr;
};

}  // namespace

int64_t topk_workspace_bytes(int64_t room, int64_t key_bytes) { return room * ItemAlgorithms::item_bytes(key_bytes); }

LaunchShape emit_topk(Emitter& emitter, SortRows rows, bool sorted, int64_t room) {
  const auto bytes = static_cast<uint64_t>(topk_workspace_bytes(room, rows.key_bytes()));
  return {Topk(emitter, std::move(rows)).emit(sorted), bytes};
}

}  // namespace kiln::cpu
