#pragma once

namespace kiln::stand_in {

/// OpenCL C of the functions of cl_intel_subgroup_matrix_multiply_accumulate that add products of f16 or bf16 to f32, 8 rows
/// at a time, after the extension's specification: those for sub-groups of 8 take int8, int8, float8, those for sub-groups of
/// 16 short8, int8, float8. In sub-groups of another size, where nothing is specified, they give NaN.
extern const char* const k_matrix_functions;

}  // namespace kiln::stand_in
