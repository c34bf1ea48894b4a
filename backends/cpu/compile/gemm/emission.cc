#include "backends/cpu/compile/gemm/emission.h"

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
  assert(k_group() == 1 && problem.types.multiply == problem.types.accumulator && "a kernel of its own does others");
  if (problem.types.accumulator == DType::i64) return e.ir.CreateAdd(e.ir.CreateMul(a, b), sum);
  return e.fma(a, b, sum);
}

llvm::Value* GemmEmission::add(llvm::Value* a, llvm::Value* b) const {
  return problem.types.accumulator == DType::i64 ? e.ir.CreateAdd(a, b) : e.ir.CreateFAdd(a, b);
}

llvm::Value* GemmEmission::mask(int64_t active) const {
  std::vector<llvm::Constant*> bits;
  for (int64_t lane = 0; lane < sum_lanes(); ++lane) bits.push_back(e.ir.getInt1(lane < active));
  return llvm::ConstantVector::get(bits);
}

llvm::Value* GemmEmission::load_lanes(llvm::Type* vector, llvm::Value* pointer, int64_t active,
                                      uint64_t alignment) const {
  if (active == sum_lanes()) return e.load(vector, pointer, alignment);
  return e.masked_load(vector, pointer, mask(active));
}

void GemmEmission::store_lanes(llvm::Value* value, llvm::Value* pointer, int64_t active, uint64_t alignment) const {
  if (active == sum_lanes()) return e.store(value, pointer, alignment);
  e.masked_store(value, pointer, mask(active));
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
