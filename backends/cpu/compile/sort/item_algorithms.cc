#include "backends/cpu/compile/sort/item_algorithms.h"

namespace kiln::cpu {

using llvm::Value;

ItemAlgorithms::ItemAlgorithms(Emitter& emitter, int64_t item_bytes)
    : e(emitter), m_item_bytes(item_bytes), m_type(e.ir.getIntNTy(static_cast<unsigned>(item_bytes * 8))) {
  write_sift_down();
  write_make_heap();
  write_select_heap();
  write_sort_heap();
  write_partition();
  write_insertion_sort();
  write_introselect();
  write_introsort();
}

// Items.

Value* ItemAlgorithms::made_of(Value* key, Value* place) {
  Value* high = e.ir.CreateShl(e.ir.CreateZExt(key, m_type), static_cast<uint64_t>(m_item_bytes * 4));
  return e.ir.CreateOr(high, e.ir.CreateZExtOrTrunc(place, m_type));
}

Value* ItemAlgorithms::place(Value* items, Value* i) { return e.ir.CreateTrunc(item(items, i), e.i32()); }

void ItemAlgorithms::swap(Value* items, Value* i, Value* j) {
  Value *first = item(items, i), *second = item(items, j);
  set(items, i, second);
  set(items, j, first);
}

Value* ItemAlgorithms::comes_first(Value* a, Value* b) {
  const auto half = static_cast<uint64_t>(m_item_bytes * 4);
  return e.ir.CreateICmpULT(e.ir.CreateLShr(a, half), e.ir.CreateLShr(b, half));
}

/// How often a range may be parted before a heap takes over.
Value* ItemAlgorithms::twice_log2(Value* count) {
  Value* zeros = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, count, e.ir.getFalse());
  return e.ir.CreateMul(e.ir.CreateSub(e.index(63), zeros), e.index(2));
}

// Calls.

void ItemAlgorithms::make_heap(Value* items, Value* count) { e.ir.CreateCall(m_make_heap, {items, count}); }

void ItemAlgorithms::replace_last_of_heap(Value* items, Value* count, Value* by) {
  e.ir.CreateCall(m_sift_down, {items, e.index(0), count, by});
}

void ItemAlgorithms::sort_heap(Value* items, Value* count) { e.ir.CreateCall(m_sort_heap, {items, count}); }

void ItemAlgorithms::nth_element(Value* items, Value* nth, Value* count) {
  e.ir.CreateCall(m_introselect, {items, nth, count});
}

void ItemAlgorithms::sort(Value* items, Value* count) {
  e.ir.CreateCall(m_introsort, {items, e.index(0), count, twice_log2(count)});
  e.ir.CreateCall(m_insertion_sort, {items, count});
}

// Heaps.

llvm::Function* ItemAlgorithms::function(const std::string& name, llvm::Type* result, size_t numbers,
                                         llvm::Type* last) {
  std::vector<llvm::Type*> parameters(1 + numbers, e.i64());
  parameters[0] = e.pointer();
  if (last != nullptr) parameters.push_back(last);
  return e.begin_function(name, result, parameters);
}

/// Moves the hole down to a leaf, along the later child each time. Where it is then.
Value* ItemAlgorithms::sifted_to_leaf(Value* items, Value* hole, Value* count) {
  Value *one = e.index(1), *two = e.index(2);
  Value* with_two = e.ir.CreateUDiv(e.ir.CreateSub(count, one), two);
  const auto has_two = [&](const Values& at) { return e.ir.CreateICmpSLT(at[0], with_two); };
  hole = e.loop_while({hole}, has_two, [&](const Values& at) {
    Value* right = e.ir.CreateMul(e.ir.CreateAdd(at[0], one), two);
    Value *on_right = item(items, right), *on_left = item(items, e.ir.CreateSub(right, one));
    Value* is_left = comes_first(on_right, on_left);
    set(items, at[0], e.ir.CreateSelect(is_left, on_left, on_right));
    return Values{e.ir.CreateSub(right, e.ir.CreateZExt(is_left, e.i64()))};
  })[0];
  Value* left = e.ir.CreateAdd(e.ir.CreateMul(hole, two), one);
  const auto move_left = [&] {
    set(items, hole, item(items, left));
    return Values{left};
  };
  // The last parent of an even number has one child.
  return e.if_else(e.ir.CreateICmpEQ(left, e.ir.CreateSub(count, one)), move_left, [&] { return Values{hole}; })[0];
}

/// __adjust_heap(items, hole, count, value): from the leaf, the hole goes up again to where the value belongs.
void ItemAlgorithms::write_sift_down() {
  m_sift_down = function("sift_down", e.ir.getVoidTy(), 2, m_type);
  Value *items = m_sift_down->getArg(0), *top = m_sift_down->getArg(1), *value = m_sift_down->getArg(3);
  const auto parent_of = [&](Value* hole) { return e.ir.CreateLShr(e.ir.CreateSub(hole, e.index(1)), 1); };
  const auto belongs_above = [&](const Values& at) {
    const auto is_above = [&] { return Values{comes_first(item(items, parent_of(at[0])), value)}; };
    return e.if_else(e.ir.CreateICmpSGT(at[0], top), is_above, [&] { return Values{e.ir.getFalse()}; })[0];
  };
  Value* leaf = sifted_to_leaf(items, top, m_sift_down->getArg(2));
  Value* hole = e.loop_while({leaf}, belongs_above, [&](const Values& at) {
    Value* parent = parent_of(at[0]);
    set(items, at[0], item(items, parent));
    return Values{parent};
  })[0];
  set(items, hole, value);
  e.ir.CreateRetVoid();
}

/// __make_heap(items, items + count): the item that comes last is the first.
void ItemAlgorithms::write_make_heap() {
  m_make_heap = function("make_heap", e.ir.getVoidTy(), 1);
  Value *items = m_make_heap->getArg(0), *count = m_make_heap->getArg(1), *parents = e.ir.CreateLShr(count, 1);
  e.loop(e.index(0), parents, 1, [&](Value* i) {
    Value* parent = e.ir.CreateSub(e.ir.CreateSub(parents, e.index(1)), i);
    e.ir.CreateCall(m_sift_down, {items, parent, count, item(items, parent)});
  });
  e.ir.CreateRetVoid();
}

/// __heap_select(items, items + middle, items + count): the first `middle` are a heap of those that come first.
void ItemAlgorithms::write_select_heap() {
  m_select_heap = function("select_heap", e.ir.getVoidTy(), 2);
  Value *items = m_select_heap->getArg(0), *middle = m_select_heap->getArg(1), *count = m_select_heap->getArg(2);
  make_heap(items, middle);
  e.loop(middle, count, 1, [&](Value* i) {
    Value *value = item(items, i), *last = item(items, e.index(0));
    e.if_then(comes_first(value, last), [&] {
      set(items, i, last);
      replace_last_of_heap(items, middle, value);
    });
  });
  e.ir.CreateRetVoid();
}

/// __sort_heap(items, items + count).
void ItemAlgorithms::write_sort_heap() {
  m_sort_heap = function("sort_heap", e.ir.getVoidTy(), 1);
  Value *items = m_sort_heap->getArg(0), *last = e.ir.CreateSub(m_sort_heap->getArg(1), e.index(1));
  e.loop(e.index(0), last, 1, [&](Value* i) {
    Value* end = e.ir.CreateSub(last, i);
    Value* value = item(items, end);
    set(items, end, item(items, e.index(0)));
    replace_last_of_heap(items, end, value);
  });
  e.ir.CreateRetVoid();
}

// Parting.

/// Which of three places has the item in the middle.
Value* ItemAlgorithms::median_of_three(Value* items, Value* a, Value* b, Value* c) {
  Value *of_a = item(items, a), *of_b = item(items, b), *of_c = item(items, c);
  Value *ab = comes_first(of_a, of_b), *bc = comes_first(of_b, of_c), *ac = comes_first(of_a, of_c);
  Value* where_ab = e.ir.CreateSelect(bc, b, e.ir.CreateSelect(ac, c, a));
  Value* where_ba = e.ir.CreateSelect(ac, a, e.ir.CreateSelect(bc, c, b));
  return e.ir.CreateSelect(ab, where_ab, where_ba);
}

/// __unguarded_partition_pivot(items + first, items + last): where the second part begins.
void ItemAlgorithms::write_partition() {
  m_partition = function("partition", e.i64(), 2);
  Value *items = m_partition->getArg(0), *first = m_partition->getArg(1), *last = m_partition->getArg(2);
  Value* one = e.index(1);
  Value* middle = e.ir.CreateAdd(first, e.ir.CreateLShr(e.ir.CreateSub(last, first), 1));
  swap(items, first, median_of_three(items, e.ir.CreateAdd(first, one), middle, e.ir.CreateSub(last, one)));
  Value* pivot = item(items, first);
  const auto next = [&](Value* from) {
    return e.loop_while(
        {from}, [&](const Values& at) { return comes_first(item(items, at[0]), pivot); },
        [&](const Values& at) { return Values{e.ir.CreateAdd(at[0], one)}; })[0];
  };
  const auto previous = [&](Value* from) {
    return e.loop_while(
        {from}, [&](const Values& at) { return comes_first(pivot, item(items, at[0])); },
        [&](const Values& at) { return Values{e.ir.CreateSub(at[0], one)}; })[0];
  };
  const auto is_apart = [&](const Values& at) { return e.ir.CreateICmpSLT(at[0], at[1]); };
  Value* left = next(e.ir.CreateAdd(first, one));
  Value* cut = e.loop_while({left, previous(e.ir.CreateSub(last, one))}, is_apart, [&](const Values& at) {
    swap(items, at[0], at[1]);
    Value* from = next(e.ir.CreateAdd(at[0], one));
    return Values{from, previous(e.ir.CreateSub(at[1], one))};
  })[0];
  e.ir.CreateRet(cut);
}

/// __insertion_sort(items, items + count).
void ItemAlgorithms::write_insertion_sort() {
  m_insertion_sort = function("insertion_sort", e.ir.getVoidTy(), 1);
  Value *items = m_insertion_sort->getArg(0), *count = m_insertion_sort->getArg(1), *one = e.index(1);
  e.loop(one, count, 1, [&](Value* i) {
    Value* value = item(items, i);
    const auto goes_on = [&](const Values& at) {
      const auto is_before = [&] { return Values{comes_first(value, item(items, e.ir.CreateSub(at[0], one)))}; };
      return e.if_else(e.ir.CreateICmpSGT(at[0], e.index(0)), is_before, [&] { return Values{e.ir.getFalse()}; })[0];
    };
    Value* hole = e.loop_while({i}, goes_on, [&](const Values& at) {
      Value* before = e.ir.CreateSub(at[0], one);
      set(items, at[0], item(items, before));
      return Values{before};
    })[0];
    set(items, hole, value);
  });
  e.ir.CreateRetVoid();
}

/// __introselect(items, items + nth, items + count, 2 * lg(count)).
void ItemAlgorithms::write_introselect() {
  m_introselect = function("introselect", e.ir.getVoidTy(), 2);
  Value *items = m_introselect->getArg(0), *nth = m_introselect->getArg(1), *count = m_introselect->getArg(2);
  const auto is_long = [&](const Values& of) { return e.ir.CreateICmpSGT(e.ir.CreateSub(of[1], of[0]), e.index(3)); };
  const Values rest = e.loop_while({e.index(0), count, twice_log2(count)}, is_long, [&](const Values& of) {
    Value *first = of[0], *last = of[1], *depth = of[2];
    const auto by_heap = [&] {
      Value* middle = e.ir.CreateSub(e.ir.CreateAdd(nth, e.index(1)), first);
      e.ir.CreateCall(m_select_heap, {at(items, first), middle, e.ir.CreateSub(last, first)});
      swap(items, first, nth);
      return Values{first, first, depth};  // done
    };
    const auto part = [&] {
      Value* cut = e.ir.CreateCall(m_partition, {items, first, last});
      Value* is_behind = e.ir.CreateICmpSLE(cut, nth);
      return Values{e.ir.CreateSelect(is_behind, cut, first), e.ir.CreateSelect(is_behind, last, cut),
                    e.ir.CreateSub(depth, e.index(1))};
    };
    return e.if_else(e.ir.CreateICmpEQ(depth, e.index(0)), by_heap, part);
  });
  e.ir.CreateCall(m_insertion_sort, {at(items, rest[0]), e.ir.CreateSub(rest[1], rest[0])});
  e.ir.CreateRetVoid();
}

/// __introsort_loop(items + first, items + last, depth): what is left are ranges of 16 items at most, in order.
void ItemAlgorithms::write_introsort() {
  m_introsort = function("introsort", e.ir.getVoidTy(), 3);
  Value *items = m_introsort->getArg(0), *first = m_introsort->getArg(1);
  const auto is_long = [&](const Values& of) { return e.ir.CreateICmpSGT(e.ir.CreateSub(of[0], first), e.index(16)); };
  e.loop_while({m_introsort->getArg(2), m_introsort->getArg(3)}, is_long, [&](const Values& of) {
    Value *last = of[0], *depth = of[1];
    const auto by_heap = [&] {
      Value *range = at(items, first), *count = e.ir.CreateSub(last, first);
      make_heap(range, count);
      sort_heap(range, count);
      return Values{first, depth};  // done
    };
    const auto part = [&] {
      Value *cut = e.ir.CreateCall(m_partition, {items, first, last}), *less = e.ir.CreateSub(depth, e.index(1));
      e.ir.CreateCall(m_introsort, {items, cut, last, less});
      return Values{cut, less};
    };
    return e.if_else(e.ir.CreateICmpEQ(depth, e.index(0)), by_heap, part);
  });
  e.ir.CreateRetVoid();
}

}  // namespace kiln::cpu
