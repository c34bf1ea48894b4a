#include "backends/cpu/compile/gemm/implementations.h"

#include <array>

#include "backends/cpu/compile/emit/scalar_emitter.h"

namespace kiln::cpu {
namespace {

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

std::span<const Implementation> gemm_implementations() {
  static const std::array rows{bf16_dot_implementation(),
                               i16_dot_implementation(),
                               dot_implementation(),
                               amx_bf16_implementation(),
                               amx_int8_implementation(),
                               bf16_outer_product_implementation(),
                               i8_outer_product_implementation(),
                               i16_outer_product_implementation(),
                               outer_product_implementation(),
                               sized_outer_product_implementation(),
                               sized_bf16_outer_product_implementation(),
                               grouped_bf16_outer_product_implementation(),
                               grouped_outer_product_implementation()};
  return rows;
}

std::vector<Schedule> with_other_form(const std::vector<Schedule>& preferred, const std::vector<Schedule>& other) {
  constexpr size_t k_preferred_in_turn = 3;
  if (preferred.empty()) return {};
  std::vector<Schedule> schedules;
  for (size_t i = 0, j = 0; i < preferred.size() || j < other.size();) {
    for (size_t n = 0; n < k_preferred_in_turn && i < preferred.size(); ++n) schedules.push_back(preferred[i++]);
    if (j < other.size()) schedules.push_back(other[j++]);
  }
  return schedules;
}

Status gemm_bodies_claims(const KernelSpec& spec) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  for (const Body* body : {&gemm.a, &gemm.b, &gemm.epilogue}) KILN_RETURN_IF_ERROR(body_claims(*body));
  return {};
}

Status whole_products_claims(const KernelSpec& spec) {
  if (!std::get<GemmSpec>(spec.kernel).groups) return {};
  return error(StatusCode::unimplemented, "gemm: groups that data say");
}

}  // namespace kiln::cpu
