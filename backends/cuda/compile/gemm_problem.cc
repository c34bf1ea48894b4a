#include "backends/cuda/compile/gemm_problem.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/compile/loops_schedule.h"
#include "frontend/kernel/affine.h"

namespace kiln::cuda {
namespace {

constexpr int64_t k_step_bytes = 16;

void look_at_access(GemmOperand& operand, const GemmSpec& gemm, const Access& access) {
  if (!operand.outer.are_one() || !operand.k.are_one()) return;
  const int64_t step = k_step_bytes / static_cast<int64_t>(size_of(gemm.dtype));
  const GemmDims &near = operand.outer_is_adjacent ? operand.outer : operand.k,
                 &far = operand.outer_is_adjacent ? operand.k : operand.outer;
  const int64_t near_stride = access.strides[near.first], far_stride = access.strides[far.first];
  bool in_steps = access.offset % step == 0 && (near_stride == 1 || near.extent() == 1) &&
                  (far_stride % step == 0 || far.extent() == 1);
  for (size_t d = 0; d < gemm.batch.size(); ++d) {
    if (gemm.batch[d] > 1) in_steps = in_steps && access.strides[d] % step == 0;
  }
  operand.is_copied = in_steps && far_stride > 0;
  if (!operand.is_copied) return;
  operand.access = &access;
  operand.batch_stride = flat_batch_stride(access, gemm.batch);
  operand.is_tensor = operand.batch_stride >= 0;
}

GemmOperand operand_of(const GemmSpec& gemm, const Body& body, ExprId value, std::vector<int64_t> extents,
                       const GemmDims& outer, const GemmDims& k) {
  GemmOperand operand{.body = &body, .value = value, .extents = std::move(extents), .outer = outer, .k = k};
  const std::vector<ExprId> order = needed_by(body, std::span(&value, 1));
  operand.outer_is_adjacent = neighbours_along(body, value, operand.outer) > neighbours_along(body, value, operand.k);
  const auto varies = [&](const ScalarNode& node, size_t dim) {
    return node.op == ScalarOp::index ? node.slot == dim
                                      : node.op == ScalarOp::load && body.accesses[node.slot].strides[dim] != 0;
  };
  for (size_t d = 0; d < gemm.batch.size(); ++d) {
    if (gemm.batch[d] == 1) continue;
    for (const ExprId id : order) operand.has_batch = operand.has_batch || varies(body.exprs[id], d);
  }
  if (const Access* access = plain_load(body, value)) look_at_access(operand, gemm, *access);
  return operand;
}

}  // namespace

std::array<const GemmDims*, 2> GemmOperand::rows_and_columns() const {
  return outer.first < k.first ? std::array{&outer, &k} : std::array{&k, &outer};
}

const Access* plain_load(const Body& body, ExprId value) {
  const ScalarNode& node = body.exprs[value];
  if (node.op != ScalarOp::load || node.operands[0] != k_no_expr) return nullptr;
  const Access& access = body.accesses[node.slot];
  return access.indirect.empty() ? &access : nullptr;
}

int64_t flat_batch_stride(const Access& access, const std::vector<int64_t>& batch) {
  int64_t stride = -1, inner = 1;
  for (size_t d = batch.size(); d-- > 0;) {
    if (batch[d] == 1) continue;
    if (stride == -1) {
      stride = access.strides[d];
    } else if (access.strides[d] != stride * inner) {
      return -1;
    }
    inner *= batch[d];
  }
  return stride == -1 ? 0 : stride;
}

GemmProblem problem_of(const KernelSpec& spec) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  GemmProblem problem{.spec = &spec, .gemm = &gemm, .batches = product(gemm.batch)};
  const GemmOperandDims a = a_dims(gemm), b = b_dims(gemm);
  problem.a = operand_of(gemm, gemm.a, gemm.a_value, a_extents(gemm), a.rows, a.columns);
  problem.b = operand_of(gemm, gemm.b, gemm.b_value, b_extents(gemm), b.columns, b.rows);
  problem.run = longest_run(spec, gemm.epilogue, gemm.batch.size() + 1);
  return problem;
}

}  // namespace kiln::cuda
