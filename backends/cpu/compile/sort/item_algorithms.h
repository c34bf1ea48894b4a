#pragma once

#include <functional>
#include <string>

#include "backends/cpu/compile/emit/emitter.h"

namespace kiln::cpu {

/// Functions of an image that arrange items as libstdc++'s algorithms of these names do, step by step, so that equal ones come
/// to lie where they do there. An item is a number: its key, and in the lower half the place that it comes from. Items are
/// compared by keys alone.
/// Source: GCC's libstdc++, bits/stl_algo.h and bits/stl_heap.h: heaps, introselect and introsort (Musser 1997) with the
/// median of three, insertion sort of short rests.
class ItemAlgorithms {
 public:
  static int64_t item_bytes(int64_t key_bytes) { return key_bytes <= 4 ? 8 : 16; }

  /// Writes the functions: to be made before the image's entry is begun.
  ItemAlgorithms(Emitter& emitter, int64_t item_bytes);

  llvm::Value* made_of(llvm::Value* key, llvm::Value* place);
  llvm::Value* item(llvm::Value* items, llvm::Value* i) { return e.load(m_type, at(items, i)); }
  void set(llvm::Value* items, llvm::Value* i, llvm::Value* item) { e.store(item, at(items, i)); }
  /// The place that item i comes from, in 32 bits.
  llvm::Value* place(llvm::Value* items, llvm::Value* i);
  llvm::Value* comes_first(llvm::Value* a, llvm::Value* b);

  // Calls of the algorithms on the first `count` of `items`.
  void make_heap(llvm::Value* items, llvm::Value* count);
  /// Of a heap: puts an item in the place of the first, which comes last of all.
  void replace_last_of_heap(llvm::Value* items, llvm::Value* count, llvm::Value* by);
  void sort_heap(llvm::Value* items, llvm::Value* count);
  void nth_element(llvm::Value* items, llvm::Value* nth, llvm::Value* count);
  void sort(llvm::Value* items, llvm::Value* count);

 private:
  llvm::Value* at(llvm::Value* items, llvm::Value* i) {
    return e.advance(items, e.ir.CreateMul(i, e.index(m_item_bytes)));
  }
  void swap(llvm::Value* items, llvm::Value* i, llvm::Value* j);
  llvm::Value* twice_log2(llvm::Value* count);

  /// A function of `items` and as many numbers as named.
  llvm::Function* function(const std::string& name, llvm::Type* result, size_t numbers, llvm::Type* last = nullptr);
  void write_sift_down();
  void write_make_heap();
  void write_select_heap();
  void write_sort_heap();
  void write_partition();
  void write_insertion_sort();
  void write_introselect();
  void write_introsort();
  llvm::Value* sifted_to_leaf(llvm::Value* items, llvm::Value* hole, llvm::Value* count);
  llvm::Value* median_of_three(llvm::Value* items, llvm::Value* a, llvm::Value* b, llvm::Value* c);

  Emitter& e;
  const int64_t m_item_bytes;
  llvm::Type* m_type;
  llvm::Function *m_sift_down = nullptr, *m_make_heap = nullptr, *m_select_heap = nullptr, *m_sort_heap = nullptr,
                 *m_partition = nullptr, *m_insertion_sort = nullptr, *m_introselect = nullptr, *m_introsort = nullptr;
};

}  // namespace kiln::cpu
