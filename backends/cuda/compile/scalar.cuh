// What the scalar operations of kernel specs (frontend/kernel/scalar.h) are, in C++ over the prelude: one function an
// operation, named after it, for values in registers. f16 and bf16 are held as f32.

namespace kiln {

template <typename T>
struct Unsigned;  // arithmetic that wraps
template <>
struct Unsigned<u8> {
  using type = u32;
};
template <>
struct Unsigned<i8> {
  using type = u32;
};
template <>
struct Unsigned<i32> {
  using type = u32;
};
template <>
struct Unsigned<i64> {
  using type = u64;
};
template <typename T>
using Wrapping = typename Unsigned<T>::type;

constexpr i64 k_least_i64 = -9223372036854775807ll - 1;
constexpr i64 k_greatest_i64 = 9223372036854775807ll;

// ---- casts

/// Toward zero, to i64, or to i32 for narrower integers; the least of these for NaN and what they do not hold.
template <typename To, typename From>
KILN_DEVICE i64 truncated(From x) {
  constexpr From k_limit = sizeof(To) == 8 ? static_cast<From>(9223372036854775808.0) : static_cast<From>(2147483648.0);
  return static_cast<i64>(-k_limit < x && x < k_limit ? x : -k_limit);
}
KILN_DEVICE f32 round_to(bf16, f32 x) { return to_f32(to_bf16(x)); }
KILN_DEVICE f32 round_to(f16, f32 x) { return to_f32(to_f16(x)); }
template <typename T>
struct Caster {
  template <typename From>
  static KILN_MEMBER T of(From x) {
    return static_cast<T>(x);
  }
  static KILN_MEMBER T of(f32 x) { return static_cast<T>(truncated<T>(x)); }
  static KILN_MEMBER T of(f64 x) { return static_cast<T>(truncated<T>(x)); }
};
template <>
struct Caster<bool> {
  template <typename From>
  static KILN_MEMBER bool of(From x) {
    return x != 0;
  }
};
template <>
struct Caster<f32> {
  template <typename From>
  static KILN_MEMBER f32 of(From x) {
    return static_cast<f32>(x);
  }
};
template <>
struct Caster<f64> {
  template <typename From>
  static KILN_MEMBER f64 of(From x) {
    return static_cast<f64>(x);
  }
};
template <typename To, typename From>
KILN_DEVICE To cast_to(From x) {
  return Caster<To>::of(x);
}

// ---- memory: what an element is in a register, and back

KILN_DEVICE bool from_memory(const bool&, u8 x) { return x != 0; }
template <typename T>
KILN_DEVICE T from_memory(const T&, T x) {
  return x;
}
KILN_DEVICE f32 from_memory(const f32&, bf16 x) { return to_f32(x); }
KILN_DEVICE f32 from_memory(const f32&, f16 x) { return to_f32(x); }

KILN_DEVICE void to_memory(bf16& to, f32 x) { to = to_bf16(x); }
KILN_DEVICE void to_memory(f16& to, f32 x) { to = to_f16(x); }
KILN_DEVICE void to_memory(u8& to, bool x) { to = x ? 1 : 0; }
template <typename T>
KILN_DEVICE void to_memory(T& to, T x) {
  to = x;
}

/// `n` neighbours in global memory, n * sizeof(T) at most 16. In one piece where `aligned` says that the address is a
/// multiple of their size.
template <int bytes>
struct Piece;
template <>
struct Piece<2> {
  u16 w;
};
template <>
struct Piece<4> {
  u32 w;
};
template <>
struct Piece<8> {
  Words2 w;
};
template <>
struct Piece<16> {
  Words4 w;
};
template <typename T, int n>
union Run {
  Piece<n * sizeof(T)> piece;
  T items[n];
};
template <typename T, int n>
KILN_DEVICE void load_run(Run<T, n>& to, const T* from, bool aligned) {
  if (aligned) {
    to.piece = *reinterpret_cast<const Piece<n * sizeof(T)>*>(from);
  } else {
    KILN_UNROLL for (int i = 0; i < n; ++i) to.items[i] = from[i];
  }
}
template <typename T, int n>
KILN_DEVICE void store_run(T* to, const Run<T, n>& from, bool aligned) {
  if (aligned) {
    *reinterpret_cast<Piece<n * sizeof(T)>*>(to) = from.piece;
  } else {
    KILN_UNROLL for (int i = 0; i < n; ++i) to[i] = from.items[i];
  }
}
KILN_DEVICE bool is_aligned(const void* pointer, u32 bytes) {
  return (reinterpret_cast<u64>(pointer) & (bytes - 1)) == 0;
}

// ---- rings of stages in shared memory

/// Where in a ring a thread is; the parity flips each time round.
template <u32 stages>
struct PlaceInRing {
  u32 stage = 0, parity = 0;

  KILN_MEMBER void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// ---- operations on integers

template <typename T>
KILN_DEVICE T op_add(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <typename T>
KILN_DEVICE T op_sub(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <typename T>
KILN_DEVICE T op_mul(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}
template <typename T>
KILN_DEVICE T op_neg(T a) {
  return op_sub(static_cast<T>(0), a);
}
template <typename T>
KILN_DEVICE T op_abs(T a) {
  return a < 0 ? op_neg(a) : a;
}
template <typename T>
KILN_DEVICE T op_sign(T a) {
  return static_cast<T>((a > 0) - (a < 0));
}
/// Rounded toward zero; x / 0 is 0, and the least number by -1 wraps.
template <typename T>
KILN_DEVICE T quotient(T a, T b) {
  if (b == 0) return 0;
  if (b == static_cast<T>(-1) && static_cast<T>(-1) < 0) return op_neg(a);
  return static_cast<T>(a / b);
}
template <typename T>
KILN_DEVICE T op_fmod(T a, T b) {
  return b == 0 ? static_cast<T>(0) : op_sub(a, op_mul(quotient(a, b), b));
}
template <typename T>
KILN_DEVICE T op_remainder(T a, T b) {
  const T rest = op_fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? op_add(rest, b) : rest;
}
template <typename T>
KILN_DEVICE T op_floor_div(T a, T b) {
  const T rest = op_fmod(a, b), q = quotient(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? op_sub(q, static_cast<T>(1)) : q;
}
template <typename T>
KILN_DEVICE T op_minimum(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
KILN_DEVICE T op_maximum(T a, T b) {
  return b > a ? b : a;
}
template <typename T>
KILN_DEVICE T op_bitwise_not(T a) {
  return static_cast<T>(~a);
}
template <typename T>
KILN_DEVICE T op_bitwise_and(T a, T b) {
  return static_cast<T>(a & b);
}
template <typename T>
KILN_DEVICE T op_bitwise_or(T a, T b) {
  return static_cast<T>(a | b);
}
template <typename T>
KILN_DEVICE T op_bitwise_xor(T a, T b) {
  return static_cast<T>(a ^ b);
}

// Philox-2x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
KILN_DEVICE i64 op_philox(i64 key, i64 counter) {
  u32 x = static_cast<u32>(counter), round_key = static_cast<u32>(key);
  u32 y = static_cast<u32>(counter >> 32) ^ static_cast<u32>(key >> 32);
  for (int round = 0; round < 10; ++round, round_key += 0x9E3779B9u) {
    const u64 product = static_cast<u64>(x) * 0xD256D193u;
    x = static_cast<u32>(product >> 32) ^ round_key ^ y;
    y = static_cast<u32>(product);
  }
  return x;
}

// ---- on booleans

KILN_DEVICE bool op_add(bool a, bool b) { return a || b; }
KILN_DEVICE bool op_mul(bool a, bool b) { return a && b; }
KILN_DEVICE bool op_minimum(bool a, bool b) { return a && b; }
KILN_DEVICE bool op_maximum(bool a, bool b) { return a || b; }
KILN_DEVICE bool op_bitwise_not(bool a) { return !a; }

// ---- on all

template <typename T>
KILN_DEVICE T op_select(bool condition, T a, T b) {
  return condition ? a : b;
}
template <typename T>
KILN_DEVICE bool op_eq(T a, T b) {
  return a == b;
}
template <typename T>
KILN_DEVICE bool op_ne(T a, T b) {
  return a != b;
}
template <typename T>
KILN_DEVICE bool op_lt(T a, T b) {
  return a < b;
}
template <typename T>
KILN_DEVICE bool op_le(T a, T b) {
  return a <= b;
}
template <typename T>
KILN_DEVICE bool op_gt(T a, T b) {
  return a > b;
}
template <typename T>
KILN_DEVICE bool op_ge(T a, T b) {
  return a >= b;
}
template <typename T>
KILN_DEVICE bool op_logical_not(T a) {
  return a == 0;
}
template <typename T>
KILN_DEVICE bool op_is_nan(T a) {
  return a != a;
}
template <typename T>
KILN_DEVICE bool op_is_inf(T) {
  return false;
}
KILN_DEVICE bool op_is_inf(f32 a) { return ::fabsf(a) == f32_of_bits(0x7f800000u); }
KILN_DEVICE bool op_is_inf(f64 a) { return ::fabs(a) == f64_of_bits(0x7ff0000000000000ull); }

// ---- on floating numbers: the same text for both widths, `F(name)` being the C function

#define KILN_FLOATING(T, F)                                                                                     \
  KILN_DEVICE T op_add(T a, T b) { return a + b; }                                                              \
  KILN_DEVICE T op_sub(T a, T b) { return a - b; }                                                              \
  KILN_DEVICE T op_mul(T a, T b) { return a * b; }                                                              \
  KILN_DEVICE T op_div(T a, T b) { return a / b; }                                                              \
  KILN_DEVICE T op_neg(T a) { return -a; }                                                                      \
  KILN_DEVICE T op_abs(T a) { return F(fabs)(a); }                                                              \
  KILN_DEVICE T op_sign(T a) { return static_cast<T>((a > 0) - (a < 0)); }                                      \
  KILN_DEVICE T op_exp(T a) { return F(exp)(a); }                                                               \
  KILN_DEVICE T op_expm1(T a) { return F(expm1)(a); }                                                           \
  KILN_DEVICE T op_log(T a) { return F(log)(a); }                                                               \
  KILN_DEVICE T op_log1p(T a) { return F(log1p)(a); }                                                           \
  KILN_DEVICE T op_sqrt(T a) { return F(sqrt)(a); }                                                             \
  KILN_DEVICE T op_rsqrt(T a) { return reciprocal_sqrt(a); }                                                    \
  KILN_DEVICE T op_reciprocal(T a) { return 1 / a; }                                                            \
  KILN_DEVICE T op_sin(T a) { return F(sin)(a); }                                                               \
  KILN_DEVICE T op_cos(T a) { return F(cos)(a); }                                                               \
  KILN_DEVICE T op_erf(T a) { return F(erf)(a); }                                                               \
  KILN_DEVICE T op_sigmoid(T a) { return 1 / (1 + F(exp)(-a)); }                                                \
  KILN_DEVICE T op_floor(T a) { return F(floor)(a); }                                                           \
  KILN_DEVICE T op_ceil(T a) { return F(ceil)(a); }                                                             \
  KILN_DEVICE T op_round(T a) { return F(rint)(a); }                                                            \
  KILN_DEVICE T op_trunc(T a) { return F(trunc)(a); }                                                           \
  KILN_DEVICE T op_fmod(T a, T b) { return F(fmod)(a, b); }                                                     \
  KILN_DEVICE T op_pow(T a, T b) { return F(pow)(a, b); }                                                       \
  KILN_DEVICE T op_atan2(T a, T b) { return F(atan2)(a, b); }                                                   \
  KILN_DEVICE T op_minimum(T a, T b) { return b != b ? b : b < a ? b : a; }                                     \
  KILN_DEVICE T op_maximum(T a, T b) { return b != b ? b : b > a ? b : a; }                                     \
  /* Whether the quotient that leaves `rest` was rounded up by rounding to zero. */                             \
  KILN_DEVICE bool is_rounded_up(T rest, T b) { return rest != 0 && (rest < 0) != (b < 0); }                    \
  KILN_DEVICE T op_remainder(T a, T b) {                                                                        \
    const T rest = F(fmod)(a, b);                                                                               \
    return is_rounded_up(rest, b) ? rest + b : rest;                                                            \
  }                                                                                                             \
  KILN_DEVICE T op_floor_div(T a, T b) {                                                                        \
    const T exact = a / b, rest = F(fmod)(a, b), quotient = (a - rest) / b;                                     \
    const T whole = F(rint)(is_rounded_up(rest, b) ? quotient - 1 : quotient); /* whole but for its last bit */ \
    return b == 0 ? exact : whole == 0 ? F(copysign)(static_cast<T>(0), exact) : whole;                         \
  }
#define KILN_SINGLE(name) ::name##f
#define KILN_DOUBLE(name) ::name
KILN_FLOATING(f32, KILN_SINGLE)
KILN_FLOATING(f64, KILN_DOUBLE)
#undef KILN_FLOATING

KILN_DEVICE f64 op_tanh(f64 a) { return ::tanh(a); }
/// At most 4 ulp off, without a branch that would keep neighbouring elements from being computed side by side: a polynomial
/// (minimax of the relative error) up to 5/8, 1 - 2 / (e^2|a| + 1) beyond.
KILN_DEVICE f32 op_tanh(f32 a) {
  const f32 size = ::fabsf(a), square = a * a;
  f32 p = -0.0057170447f;
  p = multiply_add(p, square, 0.020650586f);
  p = multiply_add(p, square, -0.0537434965f);
  p = multiply_add(p, square, 0.133314908f);
  p = multiply_add(p, square, -0.333332837f);
  const f32 near = multiply_add(p, square * a, a);
  const f32 far = multiply_add(-2.0f, reciprocal_approximate(exp2_approximate(size * 2.88539008f) + 1), 1.0f);
  return size <= 0.625f ? near : ::copysignf(far, a);
}

// ---- reductions

struct Sum {
  template <typename T>
  static KILN_MEMBER T combine(T a, T b) {
    return op_add(a, b);
  }
};
struct Product {
  template <typename T>
  static KILN_MEMBER T combine(T a, T b) {
    return op_mul(a, b);
  }
};
struct Maximum {
  template <typename T>
  static KILN_MEMBER T combine(T a, T b) {
    return op_maximum(a, b);
  }
};
struct Minimum {
  template <typename T>
  static KILN_MEMBER T combine(T a, T b) {
    return op_minimum(a, b);
  }
};

/// Over the `lanes` neighbouring threads of a warp (a power of two up to 32): each gets the whole. Aligned.
template <typename Combiner, int lanes, typename T>
KILN_DEVICE T combine_lanes(T x) {
  KILN_UNROLL for (u32 mask = lanes / 2; mask > 0; mask /= 2) x = Combiner::combine(x, shuffle_xor(x, mask));
  return x;
}

/// Over `members` neighbouring threads, a power of two from 64 up: each gets the whole. All threads of the block come;
/// `scratch` holds one T for each warp.
template <typename Combiner, int members, typename T>
KILN_DEVICE T combine_warps(T x, T* scratch) {
  x = combine_lanes<Combiner, 32>(x);
  if (thread_index() % 32 == 0) scratch[thread_index() / 32] = x;
  block_barrier();
  const T* of_group = scratch + thread_index() / members * (members / 32);
  x = of_group[0];
  KILN_UNROLL for (u32 i = 1; i < members / 32; ++i) x = Combiner::combine(x, of_group[i]);
  block_barrier();  // before the next use of scratch
  return x;
}

/// Over the `members` threads of a block that share `column` (of `columns`), their numbers being `member`: each gets the
/// whole. All threads of the block come; `scratch` holds members * columns of T. Powers of two.
template <typename Combiner, int members, int columns, typename T>
KILN_DEVICE T combine_members(T x, u32 member, u32 column, T* scratch) {
  scratch[member * columns + column] = x;
  KILN_UNROLL for (u32 half = members / 2; half > 0; half /= 2) {
    block_barrier();
    if (member < half) {
      T& mine = scratch[member * columns + column];
      mine = Combiner::combine(mine, scratch[(member + half) * columns + column]);
    }
  }
  block_barrier();
  x = scratch[column];
  block_barrier();  // before the next use of scratch
  return x;
}

}  // namespace kiln
