#include "backends/cpu/compile/gemm/emission.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <cassert>

namespace kiln::cpu {

llvm::Type* GemmEmission::type_of(DType dtype) const {
  switch (dtype) {
    case DType::f64:
      return e.f64();
    case DType::i64:
      return e.i64();
    default:
      return e.f32();
  }
}

int64_t GemmEmission::partial_row_bytes() const {
  if (const Access* access = problem.partial_sums) {
    return access->strides[access->strides.size() - 2] * sum_bytes();
  }
  return grid.slabs.largest() * grid.columns.largest() * sum_vector_bytes();
}

llvm::Value* GemmEmission::multiply_add(llvm::Value* a, llvm::Value* b, llvm::Value* sum) const {
  if (k_group() == 2) {
    // Each product is exact and added with a rounding of its own; denormals count as zeros.
    assert(problem.types.multiply == DType::bf16 && lanes() == 16 && "the instruction takes 16 pairs of bf16");
    llvm::Type* pairs = Emitter::vector(e.ir.getBFloatTy(), 2 * lanes());
    return e.ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512, {},
                                {sum, e.ir.CreateBitCast(b, pairs), e.ir.CreateBitCast(a, pairs)});
  }
  if (problem.types.accumulator == DType::i64) return e.ir.CreateAdd(e.ir.CreateMul(a, b), sum);
  return e.fma(a, b, sum);
}

llvm::Value* GemmEmission::add(llvm::Value* a, llvm::Value* b) const {
  return problem.types.accumulator == DType::i64 ? e.ir.CreateAdd(a, b) : e.ir.CreateFAdd(a, b);
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

llvm::Value* GemmEmission::load_elements(llvm::Value* pointer, llvm::Value* mask) const {
  const DType element = problem.types.element;
  ScalarEmitter scalars(e);
  llvm::Type* type = Emitter::vector(scalars.memory_type(element), lanes() * static_cast<int>(k_group()));
  llvm::Value* pattern = mask == nullptr ? e.load(type, pointer) : e.masked_load(type, pointer, mask);
  if (k_group() > 1) return e.ir.CreateBitCast(pattern, packed_vector());
  return to_multiply(scalars, scalars.from_memory(element, pattern));
}

llvm::Value* GemmEmission::to_multiply(ScalarEmitter& scalars, llvm::Value* value) const {
  const DType element = problem.types.element;
  // In registers f16 and bf16 are f32 already.
  return is_floating(element) ? value : scalars.cast(value, element, problem.types.multiply);
}

llvm::Value* GemmEmission::start_of(const Split& split, llvm::Value* piece) const {
  llvm::Value* start = e.ir.CreateMul(piece, e.index(split.small()));
  if (split.bigger() == 0) return start;
  return e.ir.CreateAdd(start, e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, piece, e.index(split.bigger())));
}

Values GemmEmission::batch_indices(llvm::Value* linear) const {
  const auto& extents = problem.gemm->batch;
  Values indices(extents.size());
  for (size_t dim = extents.size(); dim-- > 0;) {
    indices[dim] = dim == 0 ? linear : e.ir.CreateURem(linear, e.index(extents[dim]));
    if (dim > 0) linear = e.ir.CreateUDiv(linear, e.index(extents[dim]));
  }
  return indices;
}

llvm::Value* GemmEmission::address(const Access& access, const GemmPlace& place, llvm::Value* outer,
                                   llvm::Value* inner) const {
  const int64_t bytes = static_cast<int64_t>(size_of(problem.spec->buffers[access.buffer].dtype));
  Values indices = batch_indices(place.batch);
  indices.push_back(outer);
  indices.push_back(inner);
  llvm::Value* base = e.load(e.pointer(), e.advance(place.buffers, int64_t{access.buffer} * 8), 8);
  llvm::Value* pointer = e.advance(base, access.offset * bytes);
  for (size_t dim = 0; dim < indices.size(); ++dim) {
    if (access.strides[dim] == 0) continue;
    pointer = e.advance(pointer, e.ir.CreateMul(indices[dim], e.index(access.strides[dim] * bytes)));
  }
  return pointer;
}

}  // namespace kiln::cpu
