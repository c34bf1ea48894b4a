#include "backends/cpu/compile/emit/vector_math.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <cmath>
#include <limits>

// Range reduction and polynomials, each after the textbook (Muller, Elementary Functions, ch. 11). The
// coefficients are weighted minimax fits, made with iteratively reweighted least squares in 50-digit
// arithmetic; the stated error is theirs alone, rounding comes on top.
//
// Without FMA (x86-64-v2) Emitter::fma rounds twice, so constants of range reductions have trailing zeros:
// their products with the whole number n are exact.
namespace kiln::cpu {
namespace {

constexpr double k_inf = std::numeric_limits<double>::infinity();
constexpr double k_nan = std::numeric_limits<double>::quiet_NaN();
constexpr double k_log2_of_e = 1.4426950408889634;
constexpr double k_pi = 3.14159265358979323846;

// ln 2 in two parts; the first has 10 (f32) or 33 (f64) significant bits.
constexpr double k_ln2_high_f32 = 0.693359375;
constexpr double k_ln2_low_f32 = -2.12194440054690583e-4;
constexpr double k_ln2_high_f64 = 6.93147180369123816490e-1;
constexpr double k_ln2_low_f64 = 1.90821492927058770002e-10;

// Adding and subtracting 1.5 * 2^(mantissa bits) rounds to a whole number, half to even.
constexpr double k_round_f32 = 12582912.0;
constexpr double k_round_f64 = 6755399441055744.0;

}  // namespace

llvm::Type* VectorMath::bits_type(const llvm::Value* x) { return Emitter::like(x, is_f64(x) ? e.i64() : e.i32()); }

llvm::Value* VectorMath::polynomial(llvm::Value* x, std::initializer_list<double> ascending) {
  auto coefficient = std::rbegin(ascending);
  llvm::Value* sum = constant(x, *coefficient);
  while (++coefficient != std::rend(ascending)) sum = e.fma(sum, x, constant(x, *coefficient));
  return sum;
}

/// NaN stays NaN: both comparisons are false for it.
llvm::Value* VectorMath::clamp(llvm::Value* x, double low, double high) {
  x = e.ir.CreateSelect(e.ir.CreateFCmpOLT(x, constant(x, low)), constant(x, low), x);
  return e.ir.CreateSelect(e.ir.CreateFCmpOGT(x, constant(x, high)), constant(x, high), x);
}

llvm::Value* VectorMath::copy_sign(llvm::Value* magnitude, llvm::Value* sign) {
  return e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude, sign);
}

// Exponentials: x = n ln 2 + r with |r| ≤ ln 2 / 2, exp(x) = 2^n exp(r).

/// exp(r) - 1 for |r| ≤ 0.35.
llvm::Value* VectorMath::exp_tail(llvm::Value* r) {
  llvm::Value* p =
      is_f64(r)
          ? polynomial(r, {5.0000000000000000e-1, 1.6666666666666686e-1, 4.1666666666666723e-2, 8.3333333333153810e-3,
                           1.3888888888858590e-3, 1.9841269900373748e-4, 2.4801587373843304e-5, 2.7557230942960756e-6,
                           2.7557233082615970e-7, 2.5113386532190804e-8, 2.0927069087354233e-9})       // 6e-20
          : polynomial(r, {5.0000001e-1, 1.66665123e-1, 4.16662019e-2, 8.3696249e-3, 1.39507585e-3});  // 3e-9
  return e.fma(e.ir.CreateFMul(r, r), p, r);
}

VectorMath::Split VectorMath::split_exponential(llvm::Value* x) {
  const bool wide = is_f64(x);
  llvm::Value* magic = constant(x, wide ? k_round_f64 : k_round_f32);
  llvm::Value* n = e.ir.CreateFSub(e.fma(x, constant(x, k_log2_of_e), magic), magic);
  llvm::Value* r = e.fma(n, constant(x, wide ? -k_ln2_high_f64 : -k_ln2_high_f32), x);
  r = e.fma(n, constant(x, wide ? -k_ln2_low_f64 : -k_ln2_low_f32), r);
  return {n, exp_tail(r)};
}

/// mantissa * 2^whole, rounded once into the denormals; `whole` within ±(twice the exponent's range). In two
/// halves, each of which is a normal number, where the target has no instruction for it.
llvm::Value* VectorMath::scale(llvm::Value* mantissa, llvm::Value* whole) {
  const bool wide = is_f64(mantissa);
  const int full = wide ? 8 : 16;
  if (e.target().has(Feature::avx512) && Emitter::lanes_of(mantissa) == full) {
    const auto id =
        wide ? llvm::Intrinsic::x86_avx512_mask_scalef_pd_512 : llvm::Intrinsic::x86_avx512_mask_scalef_ps_512;
    llvm::Type* mask = wide ? e.i8() : e.i16();
    constexpr int k_current_rounding = 4;
    return e.ir.CreateIntrinsic(
        mantissa->getType(), id,
        {mantissa, whole, constant(mantissa, 0), Emitter::integer(mask, -1), e.ir.getInt32(k_current_rounding)});
  }
  const int mantissa_bits = wide ? 52 : 23;
  const int bias = wide ? 1023 : 127;
  llvm::Type* bits = bits_type(mantissa);
  llvm::Value* magic = constant(mantissa, wide ? k_round_f64 : k_round_f32);
  llvm::Value* n =
      e.ir.CreateSub(e.ir.CreateBitCast(e.ir.CreateFAdd(whole, magic), bits), e.ir.CreateBitCast(magic, bits));
  // Arithmetic shifts of 64-bit lanes are slow before AVX-512; a biased logical one is not.
  llvm::Value* half =
      e.ir.CreateSub(e.ir.CreateLShr(e.ir.CreateAdd(n, Emitter::integer(bits, 4 * bias)), Emitter::integer(bits, 1)),
                     Emitter::integer(bits, 2 * bias));
  llvm::Value* rest = e.ir.CreateSub(n, half);
  const auto power = [&](llvm::Value* exponent) {
    llvm::Value* biased = e.ir.CreateAdd(exponent, Emitter::integer(bits, bias));
    return e.ir.CreateBitCast(e.ir.CreateShl(biased, Emitter::integer(bits, mantissa_bits)), mantissa->getType());
  };
  return e.ir.CreateFMul(e.ir.CreateFMul(mantissa, power(half)), power(rest));
}

llvm::Value* VectorMath::exp(llvm::Value* x) {
  x = is_f64(x) ? clamp(x, -746, 710) : clamp(x, -104, 89);  // beyond: 0 and infinity, by way of `scale`
  const Split split = split_exponential(x);
  return scale(e.ir.CreateFAdd(split.tail, constant(x, 1)), split.whole);
}

llvm::Value* VectorMath::exp2(llvm::Value* x) {
  x = is_f64(x) ? clamp(x, -1076, 1025) : clamp(x, -151, 129);
  llvm::Value* magic = constant(x, is_f64(x) ? k_round_f64 : k_round_f32);
  llvm::Value* n = e.ir.CreateFSub(e.ir.CreateFAdd(x, magic), magic);
  llvm::Value* r = e.ir.CreateFMul(e.ir.CreateFSub(x, n), constant(x, 1 / k_log2_of_e));
  return scale(e.ir.CreateFAdd(exp_tail(r), constant(x, 1)), n);
}

/// 2^n (1 + t) - 1 = 2^n t + (2^n - 1), all halved so that 2^n does not overflow before the result does.
llvm::Value* VectorMath::expm1(llvm::Value* x) {
  llvm::Value* bounded = is_f64(x) ? clamp(x, -50, 710) : clamp(x, -30, 89);
  const Split split = split_exponential(bounded);
  llvm::Value* power = scale(constant(x, 0.5), split.whole);
  llvm::Value* half = e.fma(power, split.tail, e.ir.CreateFSub(power, constant(x, 0.5)));
  llvm::Value* result = e.ir.CreateFAdd(half, half);
  // Zero keeps its sign.
  return e.ir.CreateSelect(e.ir.CreateFCmpOEQ(x, constant(x, 0)), x, result);
}

/// em1 / (em1 + 2) with em1 = exp(2 |x|) - 1.
llvm::Value* VectorMath::tanh(llvm::Value* x) {
  llvm::Value* magnitude = absolute(x);
  llvm::Value* bounded = clamp(magnitude, 0, is_f64(x) ? 20 : 10);
  const Split split = split_exponential(e.ir.CreateFAdd(bounded, bounded));
  llvm::Value* power = scale(constant(x, 1), split.whole);
  llvm::Value* em1 = e.fma(power, split.tail, e.ir.CreateFSub(power, constant(x, 1)));
  return copy_sign(e.ir.CreateFDiv(em1, e.ir.CreateFAdd(em1, constant(x, 2))), x);
}

/// exp(-|x|) never overflows: 1 / (1 + exp(-|x|)), or exp(-|x|) over the same for negative x.
llvm::Value* VectorMath::sigmoid(llvm::Value* x) {
  llvm::Value* decay = exp(e.ir.CreateFNeg(absolute(x)));
  llvm::Value* one = constant(x, 1);
  llvm::Value* numerator = e.ir.CreateSelect(e.ir.CreateFCmpOLT(x, constant(x, 0)), decay, one);
  return e.ir.CreateFDiv(numerator, e.ir.CreateFAdd(decay, one));
}

llvm::Value* VectorMath::rsqrt(llvm::Value* x) {
  return e.ir.CreateFDiv(constant(x, 1), e.unary(llvm::Intrinsic::sqrt, x));
}

// Logarithms: x = 2^n m with m in [2/3, 4/3), so that log m has no cancellation with n ln 2.

llvm::Value* VectorMath::log(llvm::Value* x) {
  const bool wide = is_f64(x);
  const int mantissa_bits = wide ? 52 : 23;
  llvm::Type* bits = bits_type(x);
  const double least_normal = wide ? 0x1p-1022 : 0x1p-126;
  llvm::Value* tiny = e.ir.CreateFCmpOLT(x, constant(x, least_normal));
  const double lift = wide ? 0x1p54 : 0x1p25;
  llvm::Value* normal = e.ir.CreateSelect(tiny, e.ir.CreateFMul(x, constant(x, lift)), x);
  llvm::Value* from = e.ir.CreateSelect(tiny, constant(x, wide ? -54 : -25), constant(x, 0));

  // The exponent of x / (2/3), by integer arithmetic on the bits.
  llvm::Value* raw = e.ir.CreateBitCast(normal, bits);
  llvm::Value* two_thirds = Emitter::integer(bits, wide ? 0x3fe5555555555555 : 0x3f2aaaab);
  llvm::Value* difference = e.ir.CreateSub(raw, two_thirds);
  llvm::Value* exponent = e.ir.CreateAShr(difference, Emitter::integer(bits, mantissa_bits));
  llvm::Value* mantissa = e.ir.CreateBitCast(
      e.ir.CreateSub(raw, e.ir.CreateShl(exponent, Emitter::integer(bits, mantissa_bits))), x->getType());
  llvm::Value* magic = constant(x, wide ? k_round_f64 : k_round_f32);
  llvm::Value* whole = e.ir.CreateFSub(
      e.ir.CreateBitCast(e.ir.CreateAdd(exponent, e.ir.CreateBitCast(magic, bits)), x->getType()), magic);
  llvm::Value* n = e.ir.CreateFAdd(whole, from);

  llvm::Value* f = e.ir.CreateFSub(mantissa, constant(x, 1));
  llvm::Value* square = e.ir.CreateFMul(f, f);
  llvm::Value* result;
  if (wide) {
    // log(1 + f) = f - f²/2 + s (f²/2 + R(s²)), s = f / (2 + f), R from the series of 2 atanh(s).
    llvm::Value* s = e.ir.CreateFDiv(f, e.ir.CreateFAdd(f, constant(x, 2)));
    llvm::Value* z = e.ir.CreateFMul(s, s);
    llvm::Value* r =
        e.ir.CreateFMul(z, polynomial(z, {6.6666666666666664e-1, 4.0000000000008046e-1, 2.8571428567234135e-1,
                                          2.2222223054590488e-1, 1.8181737182656825e-1, 1.5388884005780485e-1,
                                          1.3209414825648043e-1, 1.3611118469948938e-1}));  // 2.4e-17
    llvm::Value* half_square = e.ir.CreateFMul(square, constant(x, 0.5));
    llvm::Value* correction = e.fma(n, constant(x, k_ln2_low_f64), e.ir.CreateFMul(s, e.ir.CreateFAdd(half_square, r)));
    result = e.ir.CreateFSub(f, e.ir.CreateFSub(half_square, correction));
    result = e.fma(n, constant(x, k_ln2_high_f64), result);
  } else {
    llvm::Value* p = polynomial(f, {3.3333223e-1, -2.49997237e-1, 2.00101132e-1, -1.66838342e-1, 1.40096098e-1,
                                    -1.21384149e-1, 1.39695577e-1, -1.30873458e-1});  // 5e-9
    llvm::Value* correction = e.ir.CreateFMul(e.ir.CreateFMul(square, f), p);
    correction = e.fma(n, constant(x, k_ln2_low_f32), correction);
    correction = e.fma(square, constant(x, -0.5), correction);
    result = e.fma(n, constant(x, k_ln2_high_f32), e.ir.CreateFAdd(f, correction));
  }
  result = e.ir.CreateSelect(e.ir.CreateFCmpOEQ(x, constant(x, k_inf)), x, result);
  result = e.ir.CreateSelect(e.ir.CreateFCmpOEQ(x, constant(x, 0)), constant(x, -k_inf), result);
  // Unordered or less: NaN for NaN and for negative numbers.
  return e.ir.CreateSelect(e.ir.CreateFCmpULT(x, constant(x, 0)), constant(x, k_nan), result);
}

/// log(u) with u = 1 + x rounded, plus what the rounding lost: (x - (u - 1)) / u.
llvm::Value* VectorMath::log1p(llvm::Value* x) {
  llvm::Value* one = constant(x, 1);
  llvm::Value* u = e.ir.CreateFAdd(x, one);
  // Of the two ways to find what was lost, the one that is exact: x - (u - 1) while |x| < 1, else 1 - (u -
  // x).
  llvm::Value* small = e.ir.CreateFSub(x, e.ir.CreateFSub(u, one));
  llvm::Value* large = e.ir.CreateFSub(one, e.ir.CreateFSub(u, x));
  llvm::Value* lost = e.ir.CreateSelect(e.ir.CreateFCmpOLT(absolute(x), one), small, large);
  llvm::Value* result = e.ir.CreateFAdd(log(u), e.ir.CreateFDiv(lost, u));
  // Infinities and -1 have no lost part; a zero keeps its sign.
  llvm::Value* special =
      e.ir.CreateOr(e.ir.CreateFCmpOEQ(x, constant(x, k_inf)), e.ir.CreateFCmpOEQ(x, constant(x, 0)));
  result = e.ir.CreateSelect(special, x, result);
  return e.ir.CreateSelect(e.ir.CreateFCmpOEQ(x, constant(x, -1)), constant(x, -k_inf), result);
}

/// x P(x²) up to 1; beyond, 1 - exp(-Q(x)) with Q = -log erfc, constant where the result rounds to 1.
llvm::Value* VectorMath::erf(llvm::Value* x) {
  const bool wide = is_f64(x);
  llvm::Value* t = absolute(x);
  llvm::Value* z = e.ir.CreateFMul(x, x);
  llvm::Value* small = e.ir.CreateFMul(
      t, wide
             ? polynomial(z, {1.1283791670955126, -3.7612638903183748e-1, 1.1283791670954884e-1, -2.6866170645077855e-2,
                              5.2239776248283298e-3, -8.5483269814221161e-4, 1.2055331132872147e-4,
                              -1.4925595770696706e-5, 1.6461008459395589e-6, -1.6350396073282118e-7,
                              1.4660328003077168e-8, -1.1374954073679994e-9, 5.9606844893985732e-11})  // 1.3e-19
             : polynomial(z, {1.12837917, -3.7612627e-1, 1.12835988e-1, -2.68543972e-2, 5.18946174e-3, -8.0203171e-4,
                              7.88774024e-5}));  // 1.2e-9
  const double middle = wide ? 3.5 : 2.5;
  llvm::Value* u = e.ir.CreateFSub(clamp(t, 1, wide ? 6 : 4), constant(x, middle));
  llvm::Value* q = wide ? polynomial(u, {1.4112437402148187e+1,   7.2660995883651975,      9.66753054741085e-1,
                                         5.2256582163341479e-3,   -8.7368732824628614e-4,  1.4729780385373501e-4,
                                         -2.4386287697735637e-5,  3.8896255481649954e-6,   -5.8569755110533087e-7,
                                         8.0464213418680120e-8,   -9.7123768256942261e-9,  7.8889187472554339e-10,
                                         1.6731625020015288e-10,  8.8154668606945514e-11,  4.4141340930875855e-11,
                                         -1.5399552851788672e-11, -1.7244464088336065e-11, -8.3072874573409009e-12,
                                         -2.1680165746603439e-12, -3.2784821230670803e-13, -2.2439543684709836e-14})
                        : polynomial(u, {7.8068153, 5.3526807, 9.43892347e-1, 1.08542504e-2, -2.16713872e-3,
                                         4.28098691e-4, -6.48790823e-5, 2.02333636e-5, -2.61284968e-7});
  llvm::Value* large = e.ir.CreateFSub(constant(x, 1), exp(e.ir.CreateFNeg(q)));
  return copy_sign(e.ir.CreateSelect(e.ir.CreateFCmpOGT(t, constant(x, 1)), large, small), x);
}

// Circular functions, in f64 for both types: x = n π/2 + r, then sine or cosine of r by n modulo 4.

llvm::Value* VectorMath::sin_or_cos(llvm::Value* x, int quarter) {
  if (!is_f64(x)) return narrow(sin_or_cos(widen(x), quarter));
  llvm::Value* magic = constant(x, k_round_f64);
  llvm::Value* shifted = e.ir.CreateFAdd(e.ir.CreateFMul(x, constant(x, 2 / k_pi)), magic);
  llvm::Value* n = e.ir.CreateFSub(shifted, magic);
  // π/2 in three parts of 33 bits and a rest.
  llvm::Value* r = e.fma(n, constant(x, -1.57079632673412561417), x);
  r = e.fma(n, constant(x, -6.07710050630396597660e-11), r);
  r = e.fma(n, constant(x, -2.02226624871116645580e-21), r);
  r = e.fma(n, constant(x, -8.47842766036889956997e-32), r);
  r = clamp(r, -1, 1);

  llvm::Value* z = e.ir.CreateFMul(r, r);
  llvm::Value* sine =
      polynomial(z, {-1.6666666666666667e-1, 8.3333333333333315e-3, -1.9841269841264995e-4, 2.7557319219292557e-6,
                     -2.5052106217985056e-8, 1.6058529508366751e-10, -7.5865800785668756e-13});  // 1.2e-20
  sine = e.fma(e.ir.CreateFMul(sine, z), r, r);
  llvm::Value* cosine =
      polynomial(z, {4.1666666666666667e-2, -1.3888888888888888e-3, 2.4801587301584607e-5, -2.755731922137683e-7,
                     2.0876755783014536e-9, -1.1470459710546895e-11, 4.7458066360098963e-14});  // 6.5e-22
  cosine = e.ir.CreateFMul(e.ir.CreateFMul(cosine, z), z);
  cosine = e.ir.CreateFAdd(constant(x, 1), e.fma(z, constant(x, -0.5), cosine));

  llvm::Type* bits = bits_type(x);
  llvm::Value* turn = e.ir.CreateAdd(e.ir.CreateBitCast(shifted, bits), Emitter::integer(bits, quarter));
  const auto turn_has = [&](int64_t bit) {
    return e.ir.CreateICmpNE(e.ir.CreateAnd(turn, Emitter::integer(bits, bit)), Emitter::integer(bits, 0));
  };
  llvm::Value* result = e.ir.CreateSelect(turn_has(1), cosine, sine);
  result = e.ir.CreateSelect(turn_has(2), e.ir.CreateFNeg(result), result);
  llvm::Value* infinite = e.ir.CreateFCmpOEQ(absolute(x), constant(x, k_inf));
  result = e.ir.CreateSelect(infinite, constant(x, k_nan), result);
  if (quarter == 1) return result;
  return e.ir.CreateSelect(e.ir.CreateFCmpOEQ(x, constant(x, 0)), x, result);  // the sign of zero
}

/// arctangent of z in [0, 1]; above tan(π/8) by way of atan z = π/4 + atan((z - 1) / (z + 1)).
llvm::Value* VectorMath::atan_of_unit(llvm::Value* z) {
  llvm::Value* one = constant(z, 1);
  llvm::Value* high = e.ir.CreateFCmpOGT(z, constant(z, 0.41421356237309503));
  llvm::Value* turned = e.ir.CreateFDiv(e.ir.CreateFSub(z, one), e.ir.CreateFAdd(z, one));
  llvm::Value* t = e.ir.CreateSelect(high, turned, z);
  llvm::Value* s = e.ir.CreateFMul(t, t);
  llvm::Value* p = polynomial(
      s, {-3.3333333333333333e-1, 1.9999999999999815e-1, -1.4285714285662410e-1, 1.1111111105391295e-1,
          -9.0909087644992128e-2, 7.6922966740583979e-2, -6.6664299534293318e-2, 5.8789841497521899e-2,
          -5.2308398324891696e-2, 4.5532668992574505e-2, -3.4611618843884308e-2, 1.6329249185519613e-2});  // 1.1e-18
  llvm::Value* angle = e.fma(e.ir.CreateFMul(p, s), t, t);
  return e.ir.CreateSelect(high, e.ir.CreateFAdd(angle, constant(z, k_pi / 4)), angle);
}

llvm::Value* VectorMath::atan2(llvm::Value* y, llvm::Value* x) {
  if (!is_f64(x)) return narrow(atan2(widen(y), widen(x)));
  llvm::Value* ax = absolute(x);
  llvm::Value* ay = absolute(y);
  llvm::Value* steep = e.ir.CreateFCmpOGT(ay, ax);
  llvm::Value* low = e.ir.CreateSelect(steep, ax, ay);
  llvm::Value* high = e.ir.CreateSelect(steep, ay, ax);
  llvm::Value* ratio = e.ir.CreateFDiv(low, high);
  // Equal magnitudes give 1 even when infinite; two zeros give 0.
  llvm::Value* nothing = e.ir.CreateFCmpOEQ(high, constant(x, 0));
  ratio = e.ir.CreateSelect(e.ir.CreateFCmpOEQ(ax, ay), constant(x, 1), ratio);
  ratio = e.ir.CreateSelect(nothing, constant(x, 0), ratio);
  llvm::Value* angle = atan_of_unit(ratio);
  angle = e.ir.CreateSelect(steep, e.ir.CreateFSub(constant(x, k_pi / 2), angle), angle);
  llvm::Type* bits = bits_type(x);
  llvm::Value* behind = e.ir.CreateICmpSLT(e.ir.CreateBitCast(x, bits), Emitter::integer(bits, 0));
  angle = e.ir.CreateSelect(behind, e.ir.CreateFSub(constant(x, k_pi), angle), angle);
  angle = copy_sign(angle, y);
  return e.ir.CreateSelect(e.ir.CreateFCmpUNO(x, y), constant(x, k_nan), angle);
}

// Powers: exp(y log |x|), then the sign and the cases C's pow lists.

llvm::Value* VectorMath::pow_magnitude(llvm::Value* x, llvm::Value* y) { return exp(e.ir.CreateFMul(y, log(x))); }

llvm::Value* VectorMath::pow(llvm::Value* x, llvm::Value* y) {
  if (!is_f64(x)) return narrow(pow(widen(x), widen(y)));
  llvm::Value* one = constant(x, 1);
  llvm::Value* ax = absolute(x);
  llvm::Value* result = pow_magnitude(ax, y);
  // 0 * inf inside would be NaN.
  llvm::Value* is_one = e.ir.CreateAnd(e.ir.CreateFCmpOEQ(ax, one), e.ir.CreateFCmpORD(y, y));
  result = e.ir.CreateSelect(is_one, one, result);

  llvm::Value* y_floor = e.unary(llvm::Intrinsic::floor, y);
  llvm::Value* whole = e.ir.CreateFCmpOEQ(y_floor, y);
  llvm::Value* half = e.ir.CreateFMul(y, constant(x, 0.5));
  llvm::Value* finite = e.ir.CreateFCmpONE(absolute(y), constant(x, k_inf));
  llvm::Value* odd =
      e.ir.CreateAnd(e.ir.CreateAnd(whole, finite), e.ir.CreateFCmpONE(e.unary(llvm::Intrinsic::floor, half), half));
  result = e.ir.CreateSelect(odd, copy_sign(result, x), result);
  llvm::Value* negative =
      e.ir.CreateAnd(e.ir.CreateFCmpOLT(x, constant(x, 0)), e.ir.CreateFCmpOGT(x, constant(x, -k_inf)));
  result = e.ir.CreateSelect(e.ir.CreateAnd(negative, e.ir.CreateNot(whole)), constant(x, k_nan), result);
  llvm::Value* certain = e.ir.CreateOr(e.ir.CreateFCmpOEQ(y, constant(x, 0)), e.ir.CreateFCmpOEQ(x, one));
  return e.ir.CreateSelect(certain, one, result);
}

/// Long division of the mantissas, as by hand: one bit of the quotient a round, the remainder exact
/// throughout.
llvm::Value* VectorMath::fmod(llvm::Value* x, llvm::Value* y) {
  const bool wide = is_f64(x);
  const int mantissa_bits = wide ? 52 : 23;
  llvm::Type* bits = bits_type(x);
  const auto whole = [&](int64_t value) { return Emitter::integer(bits, value); };
  const int64_t implicit = int64_t{1} << mantissa_bits;

  struct Parts {
    llvm::Value* mantissa;  // with its leading bit, unless the number is 0
    llvm::Value* exponent;  // biased; less than 1 for denormals
  };
  const int lift = mantissa_bits + 2;
  const auto take_apart = [&](llvm::Value* magnitude) {
    llvm::Value* denormal = e.ir.CreateFCmpOLT(magnitude, constant(x, wide ? 0x1p-1022 : 0x1p-126));
    llvm::Value* lifted = e.ir.CreateFMul(magnitude, constant(x, std::ldexp(1.0, lift)));
    llvm::Value* raw = e.ir.CreateBitCast(e.ir.CreateSelect(denormal, lifted, magnitude), bits);
    llvm::Value* from = e.ir.CreateSelect(denormal, whole(lift), whole(0));
    return Parts{e.ir.CreateOr(e.ir.CreateAnd(raw, whole(implicit - 1)), whole(implicit)),
                 e.ir.CreateSub(e.ir.CreateLShr(raw, whole(mantissa_bits)), from)};
  };
  const Parts dividend = take_apart(absolute(x));
  const Parts divisor = take_apart(absolute(y));

  // Rounds that have something to do: those of the lane with the largest difference of exponents.
  llvm::Value* difference = e.ir.CreateSub(dividend.exponent, divisor.exponent);
  llvm::Value* most = e.fold_lanes(difference, [&](llvm::Value* a, llvm::Value* b) {
    return e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, a, b);
  });
  most = e.ir.CreateSExt(most, e.i64());
  const auto subtract = [&](llvm::Value* remainder, llvm::Value* live) {
    llvm::Value* less = e.ir.CreateSub(remainder, divisor.mantissa);
    llvm::Value* fits = e.ir.CreateAnd(live, e.ir.CreateICmpSGE(remainder, divisor.mantissa));
    return e.ir.CreateSelect(fits, less, remainder);
  };
  // A lane takes part in the last `difference` rounds, so that all lanes finish together.
  const Values remainders =
      e.loop(e.index(0), most, 1, {dividend.mantissa}, [&](llvm::Value* round, const Values& carried) {
        llvm::Value* left = e.ir.CreateTrunc(e.ir.CreateSub(most, round), bits->getScalarType());
        llvm::Value* live = e.ir.CreateICmpSGE(difference, e.splat(left, Emitter::lanes_of(x)));
        llvm::Value* remainder = subtract(carried[0], live);
        return Values{e.ir.CreateSelect(live, e.ir.CreateShl(remainder, whole(1)), remainder)};
      });
  llvm::Value* remainder = subtract(remainders[0], e.ir.CreateICmpSGE(difference, whole(0)));

  // remainder * 2^(divisor's exponent), exactly: normalise by way of the float conversion's own exponent.
  llvm::Value* scaled = e.ir.CreateUIToFP(remainder, x->getType());
  llvm::Value* raw = e.ir.CreateBitCast(scaled, bits);
  llvm::Value* exponent = e.ir.CreateAdd(e.ir.CreateLShr(raw, whole(mantissa_bits)),
                                         e.ir.CreateSub(divisor.exponent, whole((wide ? 1075 : 150))));
  llvm::Value* normal =
      e.ir.CreateOr(e.ir.CreateAnd(raw, whole(implicit - 1)), e.ir.CreateShl(exponent, whole(mantissa_bits)));
  // Denormal results are multiples of the least one, so shifting right loses nothing.
  const auto within = [&](llvm::Value* shift) {
    return e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin,
                                      e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, shift, whole(0)),
                                      whole(mantissa_bits + 2));
  };
  llvm::Value* denormal = e.ir.CreateLShr(e.ir.CreateShl(remainder, within(e.ir.CreateSub(divisor.exponent, whole(1)))),
                                          within(e.ir.CreateSub(whole(1), divisor.exponent)));
  llvm::Value* pattern = e.ir.CreateSelect(e.ir.CreateICmpSGT(exponent, whole(0)), normal, denormal);
  pattern = e.ir.CreateSelect(e.ir.CreateICmpEQ(remainder, whole(0)), whole(0), pattern);
  llvm::Value* result = e.ir.CreateBitCast(pattern, x->getType());
  // |x| < |y|: x itself. NaN when x is infinite, y is zero, or either is NaN.
  result = e.ir.CreateSelect(e.ir.CreateFCmpOLT(absolute(x), absolute(y)), absolute(x), result);
  result = copy_sign(result, x);
  llvm::Value* invalid = e.ir.CreateOr(e.ir.CreateFCmpUNO(x, y), e.ir.CreateFCmpOEQ(y, constant(y, 0)));
  invalid = e.ir.CreateOr(invalid, e.ir.CreateFCmpOEQ(absolute(x), constant(x, k_inf)));
  return e.ir.CreateSelect(invalid, constant(x, k_nan), result);
}

}  // namespace kiln::cpu
