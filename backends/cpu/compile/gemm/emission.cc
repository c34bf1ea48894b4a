#include "backends/cpu/compile/gemm/emission.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <cassert>
#include <utility>

#include "backends/cpu/compile/gemm/pieces.h"

namespace kiln::cpu {

llvm::Type* GemmEmission::type_of(DType dtype) const {
  switch (dtype) {
    case DType::f64:
      return e.f64();
    case DType::i64:
      return e.i64();
    case DType::i32:
      return e.i32();
    default:
      return e.f32();
  }
}

int64_t GemmEmission::partial_row_bytes() const {
  if (const Access* access = problem.partial_sums) {
    return access->strides[access->strides.size() - 2] * sum_bytes();
  }
  constexpr int64_t k_crowded_stride = 1024;  // rows so far apart share cache sets
  const int64_t bytes = grid.slabs.largest() * grid.columns.largest() * sum_vector_bytes();
  return bytes % k_crowded_stride == 0 ? bytes + sum_vector_bytes() : bytes;
}

llvm::Value* GemmEmission::multiply_add(llvm::Value* a, llvm::Value* b, llvm::Value* sum) const {
  switch (problem.types.step) {
    case GemmStep::element:
      break;
    case GemmStep::bf16_pair:
      return e.fma_of_pairs(a, b, sum);
    case GemmStep::i16_pair: {
      const auto multiply = lanes() == 16  ? llvm::Intrinsic::x86_avx512_pmaddw_d_512
                            : lanes() == 8 ? llvm::Intrinsic::x86_avx2_pmadd_wd
                                           : llvm::Intrinsic::x86_sse2_pmadd_wd;
      llvm::Type* pairs = Emitter::vector(e.i16(), 2 * lanes());
      return e.ir.CreateAdd(
          sum, e.ir.CreateIntrinsic(multiply, {}, {e.ir.CreateBitCast(a, pairs), e.ir.CreateBitCast(b, pairs)}));
    }
    case GemmStep::i8_quad:  // sums of four products are exact, and added without saturation
      assert(lanes() == 16 && "the instruction takes 16 quads of bytes");
      return e.ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512_vpdpbusd_512, {}, {sum, a, b});
  }
  if (!is_floating(problem.types.accumulator)) return e.ir.CreateAdd(e.ir.CreateMul(a, b), sum);
  return e.fma(a, b, sum);
}

llvm::Value* GemmEmission::add(llvm::Value* a, llvm::Value* b) const {
  return is_floating(problem.types.accumulator) ? e.ir.CreateFAdd(a, b) : e.ir.CreateAdd(a, b);
}

llvm::Value* GemmEmission::mask(int64_t active, int64_t lanes) const {
  if (active == lanes) return nullptr;
  std::vector<llvm::Constant*> bits;
  for (int64_t lane = 0; lane < lanes; ++lane) bits.push_back(e.ir.getInt1(lane < active));
  return llvm::ConstantVector::get(bits);
}

llvm::Value* GemmEmission::load_lanes(llvm::Type* vector, llvm::Value* pointer, int64_t active,
                                      uint64_t alignment) const {
  if (active == sum_lanes()) return e.load(vector, pointer, alignment);
  return e.masked_load(vector, pointer, mask(active, sum_lanes()));
}

void GemmEmission::store_lanes(llvm::Value* value, llvm::Value* pointer, int64_t active, uint64_t alignment) const {
  if (active == sum_lanes()) return e.store(value, pointer, alignment);
  e.masked_store(value, pointer, mask(active, sum_lanes()));
}

llvm::Value* GemmEmission::load_elements(const GemmOperand& operand, llvm::Value* pointer, llvm::Value* mask) const {
  ScalarEmitter scalars(e);
  llvm::Type* type = Emitter::vector(scalars.memory_type(operand.loaded), lanes() * static_cast<int>(k_group()));
  llvm::Value* pattern = mask == nullptr ? e.load(type, pointer) : e.masked_load(type, pointer, mask);
  llvm::Value* value = as_multiplied(operand, pattern);
  return k_group() == 1 ? value : e.ir.CreateBitCast(value, packed_vector());
}

llvm::Value* GemmEmission::as_multiplied(const GemmOperand& operand, llvm::Value* pattern) const {
  if (k_group() > 1 && !problem.converts(operand)) return pattern;
  ScalarEmitter scalars(e);
  llvm::Value* value = scalars.from_memory(operand.loaded, pattern);
  DType dtype = operand.loaded;
  for (const DType next : operand.casts) value = scalars.cast(value, std::exchange(dtype, next), next);
  return to_multiply(scalars, value);
}

llvm::Value* GemmEmission::to_multiply(ScalarEmitter& scalars, llvm::Value* value) const {
  const DType element = problem.types.element, accumulator = problem.types.accumulator;
  const GemmStep step = problem.types.step;
  switch (step) {
    case GemmStep::bf16_pair:
      return scalars.rounded_to_memory(element, value);
    case GemmStep::i16_pair:
      return e.ir.CreateSExt(value, Emitter::like(value, packed_element()));
    case GemmStep::i8_quad:
      return value;
    case GemmStep::element:
      break;
  }
  // In registers f16 and bf16 are f32 already.
  return is_floating(element) ? value : scalars.cast(value, element, accumulator);
}

llvm::Value* GemmEmission::start_of(const Split& split, llvm::Value* piece) const {
  llvm::Value* start = e.ir.CreateMul(piece, e.index(split.small()));
  if (split.bigger() == 0) return start;
  return e.ir.CreateAdd(start, e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, piece, e.index(split.bigger())));
}

Values GemmEmission::batch_indices(const GemmPlace& place) const {
  Values indices(problem.gemm->batch.size());
  llvm::Value* linear = place.batch;
  for (size_t dim = indices.size(); dim-- > 0;) {
    llvm::Value* extent = batch_extent(place, dim);
    indices[dim] = dim == 0 ? linear : e.ir.CreateURem(linear, extent);
    if (has_groups(GemmGroups::Along::m)) {  // what expressions read is there, though nothing is summed
      llvm::Value* last = e.ir.CreateSub(extent, e.index(1));
      indices[dim] = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, linear, last);
    }
    if (dim > 0) linear = e.ir.CreateUDiv(linear, extent);
  }
  return indices;
}

// Numbers that the spec says, or the launch.

void GemmEmission::load_numbers(GemmPlace& place) {
  if (problem.sized == nullptr) return;
  m_loaded.push_back(problem.sized->launch);
  m_loaded.back().load(e, place.extents);
  place.launch = &m_loaded.back();
}

llvm::Value* GemmEmission::number(const GemmPlace& place, LaunchNumbers::Place opened, int64_t constant) const {
  return opened == 0 ? e.index(constant) : place.launch->value(e, opened, constant);
}

void GemmEmission::add_group(std::vector<llvm::Type*>& types) const {
  if (problem.gemm->groups) types.insert(types.end(), {e.i64(), e.i64()});
}

void GemmEmission::add_group(const GemmPlace& place, Values& arguments) const {
  if (problem.gemm->groups) arguments.insert(arguments.end(), {place.begin, place.end});
}

void GemmEmission::take_group(GemmPlace& place, llvm::Argument* first) const {
  if (!problem.gemm->groups) return;
  place.begin = first;
  place.end = first + 1;
}

llvm::Value* GemmEmission::first_m(const GemmPlace& place) const {
  return has_groups(GemmGroups::Along::m) ? place.begin : e.index(0);
}

llvm::Value* GemmEmission::first_k(const GemmPlace& place) const {
  return has_groups(GemmGroups::Along::k) ? place.begin : e.index(0);
}

llvm::Value* GemmEmission::m(const GemmPlace& place) const {
  return has_groups(GemmGroups::Along::m) ? place.end : whole_m(place);
}

llvm::Value* GemmEmission::whole_m(const GemmPlace& place) const {
  return number(place, problem.sized == nullptr ? 0 : problem.sized->m, problem.gemm->m);
}

llvm::Value* GemmEmission::n(const GemmPlace& place) const {
  return number(place, problem.sized == nullptr ? 0 : problem.sized->n, problem.gemm->n);
}

llvm::Value* GemmEmission::k(const GemmPlace& place) const {
  return has_groups(GemmGroups::Along::k) ? place.end : whole_k(place);
}

llvm::Value* GemmEmission::whole_k(const GemmPlace& place) const {
  return number(place, problem.sized == nullptr ? 0 : problem.sized->k, problem.gemm->k);
}

llvm::Value* GemmEmission::steps(const GemmPlace& place) const {
  if (problem.sized == nullptr) return e.index(problem.steps());
  llvm::Value* steps = e.ceil_div(e.ir.CreateSub(k(place), first_k(place)), e.index(k_group()));
  if (!has_groups(GemmGroups::Along::m)) return steps;
  // Rows of no group are those of one more, with sums of nothing.
  return e.ir.CreateSelect(e.ir.CreateICmpEQ(place.batch, batch_extent(place, 0)), e.index(0), steps);
}

llvm::Value* GemmEmission::tasks(const GemmPlace& place) const {
  return number(place, problem.sized->tasks, worthwhile_tasks(problem));
}

llvm::Value* GemmEmission::batch_extent(const GemmPlace& place, size_t dim) const {
  return number(place, problem.sized == nullptr ? 0 : problem.sized->batch[dim], problem.gemm->batch[dim]);
}

llvm::Value* GemmEmission::stride_bytes(const GemmPlace& place, const Access& access, size_t dim) const {
  const auto* opened = problem.sized == nullptr ? nullptr : problem.sized->of(*problem.gemm, access);
  llvm::Value* stride = number(place, opened == nullptr ? 0 : opened->strides[dim], access.strides[dim]);
  return e.ir.CreateMul(stride, e.index(static_cast<int64_t>(size_of(problem.spec->buffers[access.buffer].dtype))));
}

llvm::Value* GemmEmission::tile_bytes(const GemmPlace& place, const GemmOperand& operand) const {
  return stride_bytes(place, *operand.plain, operand.plain->strides.size() - (&operand == &problem.a ? 2 : 1));
}

llvm::Value* GemmEmission::k_bytes(const GemmPlace& place, const GemmOperand& operand) const {
  return stride_bytes(place, *operand.plain, operand.plain->strides.size() - (&operand == &problem.a ? 1 : 2));
}

llvm::Value* GemmEmission::partial_row_bytes(const GemmPlace& place) const {
  const Access* access = problem.partial_sums;
  return access == nullptr ? e.index(partial_row_bytes()) : stride_bytes(place, *access, access->strides.size() - 2);
}

llvm::Value* GemmEmission::panels_address(const GemmPlace& place, llvm::Value* k) const {
  const PiecedAccess& b = *problem.b.pieced;
  return e.advance(address(*b.access, place, e.index(0), e.index(0)),
                   offset_in_pieces(e, b.k, problem.b.element_bytes(), k));
}

llvm::Value* GemmEmission::address(const Access& access, const GemmPlace& place, llvm::Value* outer,
                                   llvm::Value* inner) const {
  const int64_t bytes = static_cast<int64_t>(size_of(problem.spec->buffers[access.buffer].dtype));
  const auto* opened = problem.sized == nullptr ? nullptr : problem.sized->of(*problem.gemm, access);
  Values indices = batch_indices(place);
  indices.push_back(outer);
  indices.push_back(inner);
  llvm::Value* pointer = e.load(e.pointer(), e.advance(place.buffers, int64_t{access.buffer} * 8), 8);
  if (access.offset != 0) {
    llvm::Value* offset = number(place, opened == nullptr ? 0 : opened->offset, access.offset);
    pointer = e.advance(pointer, e.ir.CreateMul(offset, e.index(bytes)));
  }
  for (size_t dim = 0; dim < indices.size(); ++dim) {
    if (access.strides[dim] == 0) continue;
    pointer = e.advance(pointer, e.ir.CreateMul(indices[dim], stride_bytes(place, access, dim)));
  }
  return pointer;
}

}  // namespace kiln::cpu
