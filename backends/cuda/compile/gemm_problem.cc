#include "backends/cuda/compile/gemm_problem.h"

#include <algorithm>

#include "backends/cuda/compile/loops_schedule.h"
#include "frontend/kernel/affine.h"

namespace kiln::cuda {
namespace {

constexpr int64_t k_step_bytes = 16;

void look_at_access(GemmOperand& operand, const GemmSpec& gemm, const ScalarNode& load, int64_t k) {
  const Access& access = operand.body->accesses[load.slot];
  const int64_t step = k_step_bytes / static_cast<int64_t>(size_of(gemm.dtype));
  const int64_t far_stride = access.strides[operand.outer_is_adjacent ? operand.k_dim : operand.outer_dim];
  const int64_t near_stride = access.strides[operand.outer_is_adjacent ? operand.outer_dim : operand.k_dim];
  const int64_t near = operand.outer_is_adjacent ? operand.outer : k,
                far = operand.outer_is_adjacent ? k : operand.outer;
  bool in_steps = access.offset % step == 0 && (near_stride == 1 || near == 1) && (far_stride % step == 0 || far == 1);
  for (size_t d = 0; d < gemm.batch.size(); ++d) {
    if (gemm.batch[d] > 1) in_steps = in_steps && access.strides[d] % step == 0;
  }
  operand.is_copied = load.operands[0] == k_no_expr && access.indirect.empty() && in_steps && far_stride > 0;
  if (!operand.is_copied) return;
  operand.access = &access;
  operand.batch_stride = flat_batch_stride(access, gemm.batch);
  operand.is_tensor = operand.batch_stride >= 0;
}

GemmOperand operand_of(const GemmSpec& gemm, const Body& body, ExprId value, size_t outer_dim, size_t k_dim,
                       int64_t outer) {
  GemmOperand operand{.body = &body, .value = value, .outer_dim = outer_dim, .k_dim = k_dim, .outer = outer};
  const std::vector<ExprId> order = needed_by(body, std::span(&value, 1));
  const auto adjacent_along = [&](size_t dim) {
    return std::any_of(order.begin(), order.end(), [&](ExprId id) {
      return body.exprs[id].op == ScalarOp::load && body.accesses[body.exprs[id].slot].strides[dim] == 1;
    });
  };
  operand.outer_is_adjacent = adjacent_along(outer_dim) && !adjacent_along(k_dim);
  const auto varies = [&](const ScalarNode& node, size_t dim) {
    return node.op == ScalarOp::index ? node.slot == dim
                                      : node.op == ScalarOp::load && body.accesses[node.slot].strides[dim] != 0;
  };
  for (size_t d = 0; d < gemm.batch.size(); ++d) {
    if (gemm.batch[d] == 1) continue;
    for (const ExprId id : order) operand.has_batch = operand.has_batch || varies(body.exprs[id], d);
  }
  if (body.exprs[value].op == ScalarOp::load) look_at_access(operand, gemm, body.exprs[value], gemm.k);
  return operand;
}

}  // namespace

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
  const size_t rank = gemm.batch.size();
  GemmProblem problem{.spec = &spec, .gemm = &gemm, .batches = product(gemm.batch)};
  problem.a = operand_of(gemm, gemm.a, gemm.a_value, rank, rank + 1, gemm.m);
  problem.b = operand_of(gemm, gemm.b, gemm.b_value, rank + 1, rank, gemm.n);
  problem.run = longest_run(spec, gemm.epilogue, rank + 1);
  return problem;
}

}  // namespace kiln::cuda
