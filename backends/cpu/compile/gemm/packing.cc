#include "backends/cpu/compile/gemm/packing.h"

#include <algorithm>
#include <optional>

#include "backends/cpu/compile/gemm/body.h"

/// Packing: an operand's elements in the order the micro-kernel reads them.
///
/// Panels are written with k outside and the tiles inside, so that the source is read along its contiguous rows, a
/// whole group or slab wide: read tile by tile instead, a source whose rows are a multiple of 4 KiB apart would map
/// every line into the same cache sets and fetch each line several times.
namespace kiln::cpu {

using llvm::Value;

int64_t packed_row_bytes(const GemmEmission& emission) {
  const int64_t lanes = emission.sum_lanes();
  return ((emission.blocking.k_block + lanes - 1) / lanes + 1) * emission.packed_vector_bytes();
}

llvm::Function* GemmPacking::begin(const std::string& name, bool is_edge, Call& call) {
  Emitter& e = m_g.e;
  llvm::Type* p = e.pointer();
  std::vector<llvm::Type*> types{p, p, p, p, e.i64(), e.i64(), e.i64(), e.i64(), e.i64()};
  if (m_g.problem.sized != nullptr) types.insert(types.end(), {p, e.i64()});
  m_g.add_group(types);
  llvm::Function* function = e.begin_function((m_is_a ? "a_" : "b_") + name, e.ir.getVoidTy(), types);
  llvm::Argument* argument = function->arg_begin();
  call.place.buffers = argument;
  call.place.status = argument + 1;
  call.source = argument + 2;
  call.target = argument + 3;
  call.k_count = argument + 4;
  call.count = argument + 5;
  call.first = argument + 6;
  call.k = argument + 7;
  call.place.batch = argument + 8;
  if (m_g.problem.sized == nullptr) return function;
  call.place.extents = argument + 9;
  if (is_edge) call.exist = argument + 10;
  m_g.take_group(call.place, argument + 11);
  m_g.load_numbers(call.place);
  return function;
}

void GemmPacking::invoke(const std::string& name, const Call& call, const std::function<void(const Call&)>& emit) {
  llvm::Function*& function = m_functions[call.exist == nullptr ? name : name + "_edge"];
  if (function == nullptr) {
    const auto resume = m_g.e.ir.saveIP();
    Call inner;
    function = begin(name, call.exist != nullptr, inner);
    emit(inner);
    m_g.e.ir.CreateRetVoid();
    m_g.e.ir.restoreIP(resume);
  }
  Values arguments{call.place.buffers, call.place.status, call.source, call.target,     call.k_count,
                   call.count,         call.first,        call.k,      call.place.batch};
  if (m_g.problem.sized != nullptr) {
    arguments.insert(arguments.end(), {call.place.extents, call.exist == nullptr ? m_g.e.index(0) : call.exist});
  }
  m_g.add_group(call.place, arguments);
  m_g.e.ir.CreateCall(function, arguments);
}

int GemmPacking::tile_dim(const GemmBody& body) const { return m_is_a ? body.outer_dim() : body.inner_dim(); }
int GemmPacking::k_dim(const GemmBody& body) const { return m_is_a ? body.inner_dim() : body.outer_dim(); }

Value* GemmPacking::evaluate(GemmBody& body, Scope& scope) const {
  ScalarEmitter& scalars = body.emitter().scalars();
  return with_offset(m_g.to_multiply(scalars, body.emitter().evaluate_lanes(scope, operand().value)));
}

Value* GemmPacking::with_offset(Value* bytes) const {
  if (!m_is_a || !m_g.problem.types.offsets_a) return bytes;
  return m_g.e.ir.CreateXor(bytes, Emitter::integer(bytes->getType(), -128));
}

Value* GemmPacking::element_count(const Call& call) const {
  const int64_t group = m_g.k_group();
  if (group == 1) return call.k_count;
  Emitter& e = m_g.e;
  Value* elements = e.ir.CreateMul(call.k_count, e.index(group));
  if (missing_elements() == 0) return elements;
  return e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, elements, e.ir.CreateSub(m_g.k(call.place), call.k));
}

bool GemmPacking::has_whole_vectors() const {
  return m_g.problem.steps() <= m_g.blocking.k_block || m_g.blocking.k_block % m_g.sum_lanes() == 0;
}

bool GemmPacking::has_short_vector() const {
  if (takes_k_from_call()) return true;
  return m_g.problem.gemm->k % (m_g.sum_lanes() * m_g.k_group()) != 0 || !has_whole_vectors();
}

bool GemmPacking::takes_k_from_call() const {
  return (m_g.problem.sized != nullptr && m_g.problem.sized->k != 0) || m_g.has_groups(GemmGroups::Along::k);
}

int64_t GemmPacking::missing_elements() const {
  if (takes_k_from_call()) return m_g.k_group() == 1 ? 0 : m_g.k_group();
  return m_g.problem.steps() * m_g.k_group() - m_g.problem.gemm->k;
}

Values GemmPacking::elements_of_step(const GemmPlace& place, Value* k) const {
  Emitter& e = m_g.e;
  Values elements;
  for (int64_t i = 0; i < m_g.k_group(); ++i) {
    Value* at = e.ir.CreateAdd(k, e.index(i));
    if (may_be_missing(i)) {
      at = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at, e.ir.CreateSub(m_g.k(place), e.index(1)));
    }
    elements.push_back(at);
  }
  return elements;
}

Values GemmPacking::rows_of_step(const Call& call, Value* k) const {
  Emitter& e = m_g.e;
  Values rows;
  Value* step_bytes = m_g.k_bytes(call.place, operand());
  for (Value* at : elements_of_step(call.place, k)) {
    rows.push_back(e.advance(call.source, e.ir.CreateMul(e.ir.CreateSub(at, call.k), step_bytes)));
  }
  return rows;
}

Value* GemmPacking::join(const GemmPlace& place, const Values& elements, Value* k) const {
  if (elements.size() == 1) return elements[0];
  Emitter& e = m_g.e;
  llvm::Type* step = Emitter::like(elements[0], m_g.packed_step());
  const auto bits = static_cast<int64_t>(m_g.packed_element()->getIntegerBitWidth());
  Value* joined = nullptr;
  for (int64_t i = 0; i < m_g.k_group(); ++i) {
    Value* element = e.ir.CreateZExt(elements[static_cast<size_t>(i)], step);
    if (i > 0) element = e.ir.CreateShl(element, Emitter::integer(step, bits * i));
    if (may_be_missing(i)) {
      Value* is_there = e.ir.CreateICmpSLT(e.ir.CreateAdd(k, e.index(i)), m_g.k(place));
      element = e.ir.CreateSelect(is_there, element, Emitter::integer(step, 0));
    }
    joined = joined == nullptr ? element : e.ir.CreateOr(joined, element);
  }
  return joined;
}

// Panels.

void GemmPacking::panels(int64_t width, const Call& call) {
  invoke(fmt::format("panels_{}", width), call, [&](const Call& inner) { emit_panels(width, inner); });
}

void GemmPacking::emit_panels(int64_t width, const Call& call) {
  if (operand().pieced) return emit_pieced_panels(width, call);
  Emitter& e = m_g.e;
  const int64_t bytes = m_g.packed_bytes(), lanes = m_g.sum_lanes(), element_bytes = operand().element_bytes();
  const int64_t step_bytes = m_is_a ? width * bytes : (width + lanes - 1) / lanes * m_g.packed_vector_bytes();
  const bool plain = operand().plain != nullptr && operand().tile_stride == 1 && !m_g.problem.converts(operand()) &&
                     call.exist == nullptr;
  std::optional<GemmBody> body;
  if (!plain) body.emplace(m_g, *operand().body, call.place);
  Value* panel_bytes = panel_bytes_of(call, step_bytes);
  e.loop(e.index(0), call.k_count, 1, [&](Value* step) {
    Value* k = e.ir.CreateAdd(call.k, e.ir.CreateMul(step, e.index(m_g.k_group())));
    const Values elements = elements_of_step(call.place, k), rows = plain ? rows_of_step(call, k) : Values();
    Value* target = e.advance(call.target, e.ir.CreateMul(step, e.index(step_bytes)));
    e.loop(e.index(0), call.count, 1, {target}, [&](Value* tile, const Values& at) {
      if (plain) {
        copy_plain(call, width, rows, e.ir.CreateMul(tile, e.index(width * element_bytes)), k, at[0]);
      } else {
        Value* index = e.ir.CreateAdd(call.first, e.ir.CreateMul(tile, e.index(width)));
        for (int64_t done = 0; done < width; done += lanes) {
          const int64_t active = std::min(lanes, width - done);
          Value* mask = call.exist == nullptr ? m_g.mask(active, lanes)
                                              : e.prefix_mask(e.ir.CreateSub(call.exist, e.index(done)), m_g.lanes());
          Scope& some = body->lanes(tile_dim(*body), index, done, mask);
          Values values;
          for (Value* at_k : elements) values.push_back(evaluate(*body, body->at(some, k_dim(*body), at_k)));
          m_g.store_lanes(join(call.place, values, k), e.advance(at[0], done * bytes), m_is_a ? active : lanes);
        }
      }
      return Values{e.advance(at[0], panel_bytes)};
    });
  });
}

/// `width` contiguous elements of each row. Narrow pieces are vectors of their own size: no masks where none are needed.
void GemmPacking::copy_plain(const Call& call, int64_t width, const Values& rows, Value* offset, Value* k,
                             Value* target) {
  Emitter& e = m_g.e;
  const int64_t bytes = m_g.packed_bytes(), element_bytes = operand().element_bytes();
  llvm::Type* element = element_type();
  int64_t done = 0;
  for (int64_t piece = m_g.sum_lanes(); piece >= 1; piece /= 2) {
    for (; width - done >= piece; done += piece) {
      Values values;
      for (Value* row : rows) {
        Value* from = e.advance(e.advance(row, offset), done * element_bytes);
        values.push_back(with_offset(e.load(Emitter::vector(element, static_cast<int>(piece)), from)));
      }
      e.store(join(call.place, values, k), e.advance(target, done * bytes));
    }
  }
  for (; !m_is_a && done % m_g.sum_lanes() != 0; ++done) {
    e.store(llvm::Constant::getNullValue(m_g.packed_step()), e.advance(target, done * bytes));
  }
}

Value* GemmPacking::panel_bytes_of(const Call& call, int64_t step_bytes) const {
  Value* steps = m_is_a ? call.k_count : m_g.e.ir.CreateAdd(call.k_count, m_g.e.index(m_g.extra_steps()));
  return m_g.e.ir.CreateMul(steps, m_g.e.index(step_bytes));
}

// What the sums of a column begin with.

void GemmPacking::offset_sums(int64_t vectors, const Call& call) {
  invoke(fmt::format("offsets_{}", vectors), call, [&](const Call& inner) { emit_offset_sums(vectors, inner); });
}

/// Behind each panel: -128 times the sum of each column, as A's elements are 128 too large.
void GemmPacking::emit_offset_sums(int64_t vectors, const Call& call) {
  Emitter& e = m_g.e;
  const int64_t vector_bytes = m_g.packed_vector_bytes(), step_bytes = vectors * vector_bytes;
  const auto alignment = static_cast<uint64_t>(vector_bytes);
  Value* offset = Emitter::integer(m_g.packed_vector(), static_cast<int32_t>(0x80808080));
  e.loop(e.index(0), call.count, 1, {call.target}, [&](Value*, const Values& at) {
    Values sums(static_cast<size_t>(vectors), m_g.zero());
    sums = e.loop(e.index(0), call.k_count, 1, sums, [&](Value* step, Values now) {
      Value* from = e.advance(at[0], e.ir.CreateMul(step, e.index(step_bytes)));
      for (int64_t v = 0; v < vectors; ++v) {
        Value* column = e.load(m_g.packed_vector(), e.advance(from, v * vector_bytes), alignment);
        now[v] = m_g.multiply_add(offset, column, now[v]);
      }
      return now;
    });
    Value* end = e.advance(at[0], e.ir.CreateMul(call.k_count, e.index(step_bytes)));
    for (int64_t v = 0; v < vectors; ++v) e.store(e.ir.CreateNeg(sums[v]), e.advance(end, v * vector_bytes), alignment);
    return Values{e.advance(at[0], panel_bytes_of(call, step_bytes))};
  });
}

// Rows.

void GemmPacking::rows(const Call& call) {
  const auto one_by_one = [&](const Call& some) { invoke("rows", some, [&](const Call& inner) { emit_rows(inner); }); };
  if (!has_row_blocks()) return one_by_one(call);
  Emitter& e = m_g.e;
  Call blocks = call, rest = call;
  blocks.count = e.ir.CreateAnd(call.count, e.index(-m_g.sum_lanes()));
  invoke("row_blocks", blocks, [&](const Call& inner) { emit_row_blocks(inner); });
  rest.count = e.ir.CreateSub(call.count, blocks.count);
  rest.first = e.ir.CreateAdd(call.first, blocks.count);
  rest.target = e.advance(call.target, e.ir.CreateMul(blocks.count, e.index(packed_row_bytes(m_g))));
  one_by_one(rest);
}

bool GemmPacking::has_row_blocks() const {
  const GemmOperand& from = operand();
  return from.plain != nullptr && from.tile_stride == 1 && from.k_stride != 1 && !m_g.problem.converts(from) &&
         m_g.problem.types.steps_at_once % m_g.sum_lanes() == 0;
}

void GemmPacking::emit_row_blocks(const Call& call) {
  Emitter& e = m_g.e;
  const int64_t lanes = m_g.sum_lanes(), row_bytes = packed_row_bytes(m_g);
  e.loop(e.index(0), call.count, lanes, [&](Value* row) {
    Value* offset = e.ir.CreateMul(row, e.index(operand().element_bytes()));
    Value* target = e.advance(call.target, e.ir.CreateMul(row, e.index(row_bytes)));
    e.loop(e.index(0), call.k_count, lanes, [&](Value* first) {
      Values block;
      for (int64_t i = 0; i < lanes; ++i) {
        Value* step = e.ir.CreateAdd(first, e.index(i));
        Value* k = e.ir.CreateAdd(call.k, e.ir.CreateMul(step, e.index(m_g.k_group())));
        Values elements;
        for (Value* at : rows_of_step(call, k)) {
          elements.push_back(e.load(Emitter::vector(m_g.packed_element(), m_g.lanes()), e.advance(at, offset)));
        }
        block.push_back(join(call.place, elements, k));
      }
      e.transpose(block);
      Value* to = e.advance(target, e.ir.CreateMul(first, e.index(m_g.packed_bytes())));
      for (int64_t i = 0; i < lanes; ++i) e.store(block[static_cast<size_t>(i)], e.advance(to, i * row_bytes));
    });
  });
}

void GemmPacking::emit_rows(const Call& call) {
  if (operand().pieced) return emit_pieced_rows(call);
  Emitter& e = m_g.e;
  const int64_t lanes = m_g.sum_lanes(), bytes = m_g.packed_bytes() / m_g.k_group();
  GemmBody body(m_g, *operand().body, call.place);
  Value* count = element_count(call);
  e.loop(e.index(0), call.count, 1, [&](Value* row) {
    Value* target = e.advance(call.target, e.ir.CreateMul(row, e.index(packed_row_bytes(m_g))));
    const auto at = [&](Value* element, Value* mask) {
      Scope& some = body.lanes(k_dim(body), e.ir.CreateAdd(call.k, element), 0, mask);
      Value* value = evaluate(body, body.at(some, tile_dim(body), e.ir.CreateAdd(call.first, row)));
      if (mask != nullptr && pads_steps()) {
        value = e.ir.CreateSelect(mask, value, llvm::Constant::getNullValue(value->getType()));
      }
      // A row is a whole number of vectors long, so the masked lanes may be written too.
      e.store(value, e.advance(target, e.ir.CreateMul(element, e.index(bytes))));
    };
    Value* whole = e.ir.CreateAnd(count, e.index(-lanes));
    e.loop(e.index(0), whole, lanes, [&](Value* element) { at(element, nullptr); });
    if (!has_short_vector()) return;
    e.if_then(e.ir.CreateICmpSLT(whole, count),
              [&] { at(whole, e.prefix_mask(e.ir.CreateSub(count, whole), m_g.lanes())); });
  });
  if (has_short_vector() && pads_steps()) emit_missing_steps(call, count);
}

/// Zeros from the vector behind the last element of each row to the end of its steps.
void GemmPacking::emit_missing_steps(const Call& call, Value* count) {
  Emitter& e = m_g.e;
  const int64_t lanes = m_g.sum_lanes(), bytes = m_g.packed_bytes() / m_g.k_group();
  Value* zero = llvm::Constant::getNullValue(Emitter::vector(element_type(), m_g.lanes()));
  Value* written = e.ir.CreateAnd(e.ir.CreateAdd(count, e.index(lanes - 1)), e.index(-lanes));
  Value* end = e.ir.CreateMul(call.k_count, e.index(m_g.k_group()));
  e.loop(e.index(0), call.count, 1, [&](Value* row) {
    Value* target = e.advance(call.target, e.ir.CreateMul(row, e.index(packed_row_bytes(m_g))));
    e.loop(written, end, lanes,
           [&](Value* at) { e.store(zero, e.advance(target, e.ir.CreateMul(at, e.index(bytes)))); });
  });
}

// Transposed.

void GemmPacking::transposed(const TileShape& shape, Value* scratch, const Call& call) {
  Emitter& e = m_g.e;
  const int64_t lanes = m_g.sum_lanes(), bytes = m_g.packed_bytes();
  Value* source = call.source;
  Value* row_bytes = operand().plain == nullptr ? nullptr : m_g.tile_bytes(call.place, operand());
  if (transposes_from_scratch()) {
    Call evaluate_rows = call;
    evaluate_rows.target = scratch;
    evaluate_rows.count = call.exist == nullptr ? e.index(m_g.columns(shape)) : call.exist;
    evaluate_rows.exist = nullptr;
    rows(evaluate_rows);
    source = scratch;
    row_bytes = e.index(packed_row_bytes(m_g));
  }
  const int64_t step_bytes = shape.vectors * m_g.packed_vector_bytes();
  const auto blocks = [&](Value* step, Value* rest) {
    for (int64_t v = 0; v < shape.vectors; ++v) {
      Value* first = e.advance(source, e.ir.CreateMul(e.index(v * lanes), row_bytes));
      Value* from = e.advance(first, e.ir.CreateMul(step, e.index(bytes)));
      Value* to =
          e.advance(e.advance(call.target, v * m_g.packed_vector_bytes()), e.ir.CreateMul(step, e.index(step_bytes)));
      Values arguments{from, to, rest == nullptr ? e.index(0) : rest};
      if (m_g.problem.sized != nullptr) {
        Value* last = e.ir.CreateSub(call.exist == nullptr ? e.index(0) : call.exist, e.index(v * lanes + 1));
        arguments.insert(arguments.end(), {row_bytes, last});
      }
      e.ir.CreateCall(transpose_block(m_g.columns(shape, v), shape.vectors, row_bytes, rest == nullptr, shape.is_edge),
                      arguments);
    }
  };
  Value* count = element_count(call);
  const int64_t of_vector = lanes * m_g.k_group();
  Value* whole = e.ir.CreateUDiv(count, e.index(of_vector));
  Value* whole_steps = e.ir.CreateMul(whole, e.index(lanes));
  e.loop(e.index(0), whole_steps, lanes, [&](Value* step) { blocks(step, nullptr); });
  if (!has_short_vector()) return;
  Value* rest = e.ir.CreateURem(count, e.index(of_vector));
  e.if_then(e.ir.CreateICmpNE(rest, e.index(0)), [&] { blocks(whole_steps, rest); });
}

/// (source, target, elements along k when not whole, and where sizes are the launch's from one row to the next, the last row
/// that exists): sum_lanes() rows of k become sum_lanes() steps of one vector.
llvm::Function* GemmPacking::transpose_block(int64_t columns, int64_t vectors, Value* row_bytes, bool whole,
                                             bool is_edge) {
  llvm::Function*& function = m_transposes[{columns, vectors, whole, is_edge}];
  if (function != nullptr) return function;
  Emitter& e = m_g.e;
  const auto resume = e.ir.saveIP();
  std::vector<llvm::Type*> types{e.pointer(), e.pointer(), e.i64()};
  if (m_g.problem.sized != nullptr) types.insert(types.end(), {e.i64(), e.i64()});
  function = e.begin_function(fmt::format("transpose_{}_{}_{}{}", columns, vectors, whole, is_edge ? "_edge" : ""),
                              e.ir.getVoidTy(), types);
  if (m_g.problem.sized != nullptr) row_bytes = function->getArg(3);
  const auto row_of = [&](int64_t column) -> Value* {
    Value* at = e.index(column);
    return is_edge ? e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at, function->getArg(4)) : at;
  };
  const int elements = m_g.lanes() * static_cast<int>(m_g.k_group());
  Value* mask = whole ? nullptr : e.prefix_mask(function->getArg(2), elements);
  llvm::Type* type = Emitter::vector(element_type(), elements);
  Values rows;
  for (int64_t column = 0; column < m_g.sum_lanes(); ++column) {
    Value* pointer = e.advance(function->getArg(0), e.ir.CreateMul(row_of(column), row_bytes));
    Value* row = column >= columns ? llvm::Constant::getNullValue(type)
                 : whole           ? e.load(type, pointer)
                                   : e.masked_load(type, pointer, mask);
    rows.push_back(e.ir.CreateBitCast(row, m_g.packed_vector()));
  }
  e.transpose(rows);
  for (int64_t k = 0; k < m_g.sum_lanes(); ++k) {
    e.store(rows[k], e.advance(function->getArg(1), k * vectors * m_g.packed_vector_bytes()),
            static_cast<uint64_t>(m_g.packed_vector_bytes()));
  }
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return function;
}

}  // namespace kiln::cpu
