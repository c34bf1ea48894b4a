#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "frontend/ir/dtype.h"

namespace kiln {

/// The scalar operations kernel bodies are made of. An epilogue, a score_mod, a mask_mod and a pointwise op are all
/// expressions over these. IEEE semantics as in C's <math.h> unless said; NaN propagates through minimum/maximum (as
/// torch). Integers wrap; an integer divided by zero (floor_div, remainder, fmod) gives 0. Numbers are in keys: append,
/// never renumber.
enum class ScalarOp : uint8_t {
  // leaves
  constant = 0,     // immediate
  load = 1,         // accesses[slot]; operand 0, when given, is a predicate: false reads 0 and touches no memory
  index = 2,        // the value of iteration dim `slot`, i64
  reduced = 3,      // the result of reduction `slot` of an earlier stage
  accumulator = 4,  // gemm: the dot product at (batch…, m, n); attention: the scaled score at (b, h, q, k)
  // unary
  cast =
      10,  // to the node's dtype: float to integer truncates, to bool compares with 0, f64→f32 rounds to nearest even
  neg = 11,
  abs = 12,
  sign = 13,
  exp = 14,
  expm1 = 15,
  log = 16,
  log1p = 17,
  sqrt = 18,
  rsqrt = 19,
  reciprocal = 20,
  sin = 21,
  cos = 22,
  tanh = 23,
  erf = 24,
  sigmoid = 25,
  floor = 26,
  ceil = 27,
  round = 28 /* half to even */,
  trunc = 29,
  is_nan = 30,
  is_inf = 31,
  logical_not = 32,
  bitwise_not = 33,
  // binary
  add = 40,
  sub = 41,
  mul = 42,
  div = 43,
  floor_div = 44,
  remainder = 45 /* sign of the divisor, as Python */,
  fmod = 46 /* sign of the dividend, as C */,
  pow = 47,
  atan2 = 48,
  minimum = 49,
  maximum = 50,
  eq = 51,
  ne = 52,
  lt = 53,
  le = 54,
  gt = 55,
  ge = 56,
  bitwise_and = 57,
  bitwise_or = 58,
  bitwise_xor = 59,  // on booleans these are the logical ones
  philox = 60,       // of i64, (key, counter): 32 random bits, as a number from 0 on (philox.h)
  // ternary
  select = 70,  // operand 0 (bool) ? operand 1 : operand 2
};

/// What a reduction does with its elements.
enum class Combiner : uint8_t { sum = 0, product = 1, maximum = 2, minimum = 3, logical_and = 4, logical_or = 5 };

std::string_view to_string(ScalarOp op);
/// 0 for leaves (load's predicate not counted), else 1, 2 or 3; -1 for a number that is no ScalarOp.
int arity(ScalarOp op);

using ExprId = uint32_t;
inline constexpr ExprId k_no_expr = UINT32_MAX;

/// One node of an expression graph. Operands have smaller ids than the node. Comparisons and predicates are boolean;
/// other operands have the node's dtype except cast's, select's first and load's predicate.
struct ScalarNode {
  ScalarOp op = ScalarOp::constant;
  DType dtype = DType::f32;
  std::array<ExprId, 3> operands{k_no_expr, k_no_expr, k_no_expr};
  uint32_t slot = 0;          // load: access; index: iteration dim; reduced: reduction
  double immediate = 0;       // constant of a floating dtype
  int64_t immediate_int = 0;  // constant of an integer or boolean dtype

  bool operator==(const ScalarNode&) const = default;
};

/// Part of an address that comes from data: the value of `index` (i64) times `stride` elements. A value outside
/// [0, bound) sets the launch's status to index_out_of_range and reads or writes nothing.
struct IndirectTerm {
  ExprId index = k_no_expr;
  int64_t stride = 0;
  int64_t bound = 0;
  bool operator==(const IndirectTerm&) const = default;
};

/// Where an element lies: buffers[buffer] + offset + Σ strides[d] * iteration[d] + Σ indirect, in elements.
struct Access {
  uint32_t buffer = 0;
  int64_t offset = 0;
  std::vector<int64_t> strides;  // one per iteration dim
  std::vector<IndirectTerm> indirect;
  bool operator==(const Access&) const = default;
};

enum class StoreMode : uint8_t { assign = 0, add = 1 };

struct Store {
  ExprId value = k_no_expr;  // has the buffer's dtype
  uint32_t access = 0;
  StoreMode mode = StoreMode::assign;
  bool operator==(const Store&) const = default;
};

/// Expressions over one iteration space, and the addresses they use.
struct Body {
  std::vector<ScalarNode> exprs;
  std::vector<Access> accesses;
  bool operator==(const Body&) const = default;
};

/// The expressions that `roots` are computed from, themselves included, ascending: operands, predicates and the indices
/// of indirect accesses.
std::vector<ExprId> needed_by(const Body& body, std::span<const ExprId> roots);

}  // namespace kiln
