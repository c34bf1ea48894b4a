#include "frontend/fuse/repeats.h"

#include <algorithm>

#include "frontend/kernel/affine.h"
#include "frontend/kernel/body_dims.h"
#include "frontend/kernel/expensive.h"

namespace kiln {

namespace {

// A kernel of its own, and its result written once, costs no more than as many computations of a value, nor than this many
// points of a kernel.
constexpr int64_t k_most_repeats = 16;
constexpr int64_t k_least_points = int64_t{1} << 16;
constexpr int64_t k_heavy = 16;  // cheap operations that a heavy one takes as long as

/// Which expressions load something to compute it, beyond a cast of it.
std::vector<bool> computed_of_loads(const Body& body) {
  std::vector<bool> has_load(body.exprs.size()), computed(body.exprs.size());
  for (ExprId id = 0; id < body.exprs.size(); ++id) {
    const ScalarNode& node = body.exprs[id];
    has_load[id] = node.op == ScalarOp::load || std::ranges::any_of(node.operands, [&](ExprId operand) {
                     return operand != k_no_expr && has_load[operand];
                   });
    computed[id] = has_load[id] && node.op != ScalarOp::load && node.op != ScalarOp::cast;
  }
  return computed;
}

/// How often a kernel computes a value that changes along what it reduces, and along some of its parallel dims, but not along
/// all: once for each index of the others. One that changes along no parallel dim is a scalar beside lanes, and is not counted,
/// nor are some that cost little beside what else is done at each point.
int64_t repeats_in(const KernelSpec& spec) {
  const auto* loops = std::get_if<LoopsSpec>(&spec.kernel);
  if (loops == nullptr || product(loops->extents) < k_least_points) return 1;
  const uint64_t parallel = (uint64_t{1} << loops->parallel_rank) - 1;
  const BodyDims dims(loops->body, parallel);
  const std::vector<bool> computed = computed_of_loads(loops->body);
  const auto repeats_of = [&](uint64_t along) {
    int64_t repeats = 1;
    if ((along & parallel) == 0) return repeats;
    for (uint32_t dim = 0; dim < loops->parallel_rank; ++dim)
      repeats *= (along >> dim & 1) != 0 ? 1 : loops->extents[dim];
    return repeats;
  };
  int64_t most = 1, again = 0, once = static_cast<int64_t>(loops->reductions.size());
  for (ExprId id = 0; id < computed.size(); ++id) {
    if (!computed[id] || (dims.of(id) & ~parallel) == 0) continue;
    const int64_t repeats = repeats_of(dims.of(id));
    most = std::max(most, repeats);
    (repeats > k_most_repeats ? again : once) += is_expensive(loops->body.exprs[id].op) ? k_heavy : 1;
  }
  return 2 * again < once ? 1 : most;
}

int64_t repeats_in(std::span<const LoweredKernel> kernels) {
  int64_t most = 1;
  for (const LoweredKernel& kernel : kernels) most = std::max(most, repeats_in(kernel.spec));
  return most;
}

}  // namespace

bool repeats_more(std::span<const LoweredKernel> kernels, std::span<const LoweredKernel> before) {
  return repeats_in(kernels) > std::max(repeats_in(before), k_most_repeats);
}

}  // namespace kiln
