#include "backends/cpu/compile/gemm/implementations.h"

#include <array>

#include "backends/cpu/compile/emit/scalar_emitter.h"
#include "backends/cpu/compile/gemm/dot.h"
#include "backends/cpu/compile/gemm/outer_product.h"

namespace kiln::cpu {
namespace {

constexpr std::array k_implementations{
    Implementation{DotSchedule::k_implementation, dot_claims, dot_schedules, emit_dot},
    Implementation{OuterProductSchedule::k_implementation, outer_product_claims, outer_product_schedules,
                   emit_outer_product},
};

/// Why a body's expressions cannot be emitted, or ok.
Status body_claims(const Body& body) {
  for (const ScalarNode& node : body.exprs) {
    if (arity(node.op) == 0 || node.op == ScalarOp::cast) continue;
    const DType dtype = body.exprs[node.operands[node.op == ScalarOp::select ? 1 : 0]].dtype;
    if (!ScalarEmitter::supports(node.op, dtype)) {
      return error(StatusCode::unimplemented, "gemm: {} of {} has no meaning", to_string(node.op), to_string(dtype));
    }
  }
  return {};
}

}  // namespace

std::span<const Implementation> gemm_implementations() { return k_implementations; }

Status gemm_bodies_claims(const KernelSpec& spec) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  for (const Body* body : {&gemm.a, &gemm.b, &gemm.epilogue}) KILN_RETURN_IF_ERROR(body_claims(*body));
  return {};
}

}  // namespace kiln::cpu
