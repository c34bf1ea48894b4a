#include "backends/cpu/compile/gemm/body.h"

namespace kiln::cpu {
namespace {

/// The pointers of the buffers a body uses; null for the others.
Values load_buffers(GemmEmission& emission, const Body& body, const GemmPlace& place) {
  Values buffers(emission.problem.spec->buffers.size(), nullptr);
  for (const Access& access : body.accesses) {
    if (buffers[access.buffer] != nullptr) continue;
    buffers[access.buffer] =
        emission.e.load(emission.e.pointer(), emission.e.advance(place.buffers, int64_t{access.buffer} * 8));
  }
  return buffers;
}

}  // namespace

GemmBody::GemmBody(GemmEmission& emission, const Body& body, const GemmPlace& place)
    : m_g(emission),
      m_rank(static_cast<int>(emission.problem.gemm->batch.size()) + 2),
      m_emitter(emission.e, *emission.problem.spec, body, load_buffers(emission, body, place), place.status) {
  if (const SizedGemm* sized = emission.problem.sized) {
    m_numbers = sized->of(*emission.problem.gemm, body);
    m_numbers.launch = place.launch;
    m_emitter.set_numbers(m_numbers);
  }
  m_emitter.set_result_dims((uint64_t{1} << m_rank) - 1);
  m_scopes.push_back(m_emitter.root());
  const Values batch = emission.batch_indices(place);
  for (size_t dim = 0; dim < batch.size(); ++dim) {
    m_scopes.push_back(m_emitter.bind(*m_scopes.back(), static_cast<int>(dim), batch[dim]));
  }
}

Scope& GemmBody::lanes(int dim, llvm::Value* index, int64_t offset, llvm::Value* mask) {
  m_emitter.set_lane_dim(dim);
  m_made.push_back(m_emitter.spread(scope(), dim, index, offset, m_g.lanes(), mask));
  return *m_made.back();
}

Scope& GemmBody::at(Scope& lanes, int dim, llvm::Value* index) {
  m_made.push_back(m_emitter.bind(scope(), dim, index));
  Scope& inner = *m_made.back();
  m_made.push_back(m_emitter.join(inner, lanes));
  return *m_made.back();
}

}  // namespace kiln::cpu
