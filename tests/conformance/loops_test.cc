#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/conformance/check_kernel.h"
#include "tests/conformance/loops_cases.h"

namespace kiln::conformance {
namespace {

class Loops : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void check(const KernelSpec& spec, const CheckOptions& options = {}) {
    if (const std::string why = check_kernel(GetParam(), spec, m_random, options); !why.empty()) m_skipped = why;
  }
  void TearDown() override {
    if (!m_skipped.empty() && !HasFailure()) GTEST_SKIP() << m_skipped;
  }
  std::mt19937_64 m_random{20};
  std::string m_skipped;
};

// Sizes around the widths of vectors and of unrolled loops.
const int64_t k_sizes[] = {1, 2, 7, 16, 17, 63, 64, 65, 200, 1031};

TEST_P(Loops, softmax_of_rows) {
  for (const int64_t columns : k_sizes) check(row_softmax(DType::f32, 5, columns));
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16}) check(row_softmax(dtype, 3, 65));
}

TEST_P(Loops, softmax_of_columns) {
  for (const int64_t columns : k_sizes) {
    LoopsBuilder b({columns, 19}, 1);
    const ExprId x = b.input(DType::f32, {1, columns});
    const uint32_t maximum = b.reduce(Combiner::maximum, x);
    b.next_stage();
    const ExprId power = b.op(ScalarOp::exp, b.op(ScalarOp::sub, x, b.reduced(maximum)));
    const uint32_t sum = b.reduce(Combiner::sum, power);
    b.next_stage();
    b.output(b.op(ScalarOp::div, power, b.reduced(sum)), {1, columns});
    check(b.build());
  }
}

TEST_P(Loops, layer_norm_keeps_mean_and_deviation_per_row) {
  for (const int64_t columns : k_sizes) {
    LoopsBuilder b({9, columns}, 1);
    const ExprId x = b.input(DType::f32, {columns, 1});
    const ExprId weight = b.input(DType::f32, {0, 1});
    const ExprId bias = b.input(DType::f32, {0, 1});
    const ExprId count = b.real(DType::f32, static_cast<double>(columns));
    const uint32_t total = b.reduce(Combiner::sum, x);
    b.next_stage();
    const ExprId mean = b.op(ScalarOp::div, b.reduced(total), count);
    const ExprId centred = b.op(ScalarOp::sub, x, mean);
    const uint32_t squares = b.reduce(Combiner::sum, b.op(ScalarOp::mul, centred, centred));
    b.next_stage();
    const ExprId variance = b.op(ScalarOp::div, b.reduced(squares), count);
    const ExprId scale = b.op(ScalarOp::rsqrt, b.op(ScalarOp::add, variance, b.real(DType::f32, 1e-5)));
    b.output(mean, {1, 0});
    b.output(scale, {1, 0});
    b.next_stage(/*finished_is_per_row=*/true);
    b.output(b.op(ScalarOp::add, b.op(ScalarOp::mul, b.op(ScalarOp::mul, centred, scale), weight), bias), {columns, 1});
    check(b.build(), {.tolerance_factor = 4});
  }
}

TEST_P(Loops, sums_of_columns) {
  for (const int64_t columns : k_sizes) check(column_sums(DType::f32, 77, columns), {.tolerance_factor = 8});
}

TEST_P(Loops, a_whole_tensor_reduces_to_one_value) {
  for (const int64_t size : k_sizes) {
    LoopsBuilder b({size, 3}, 0);
    const ExprId x = b.input(DType::f32, {3, 1});
    const uint32_t sum = b.reduce(Combiner::sum, b.op(ScalarOp::abs, x));
    b.next_stage();
    b.output(b.op(ScalarOp::log, b.reduced(sum)), {0, 0});
    check(b.build(true), {.tolerance_factor = 8});
  }
}

TEST_P(Loops, every_combiner_of_every_dtype) {
  for (int d = 0; d < k_dtype_count; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (int c = 0; c <= static_cast<int>(Combiner::logical_or); ++c) {
      const auto combiner = static_cast<Combiner>(c);
      for (const bool in_columns : {false, true}) {
        LoopsBuilder b({6, 37}, 1);
        const uint32_t result =
            b.reduce(combiner, b.input(dtype, in_columns ? std::vector<int64_t>{1, 6} : std::vector<int64_t>{37, 1}));
        b.next_stage();
        b.output(b.reduced(result), {1, 0});
        SCOPED_TRACE(std::string(to_string(dtype)) + " combiner " + std::to_string(c));
        check(b.build(true), {.tolerance_factor = combiner == Combiner::product ? 30.0 : 8.0});
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Loops, maximum_and_minimum_let_nan_win) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const auto combiner : {Combiner::maximum, Combiner::minimum}) {
      for (const std::vector<int64_t>& strides : {std::vector<int64_t>{61, 1}, {1, 40}}) {
        LoopsBuilder b({40, 61}, 1);
        const uint32_t best = b.reduce(combiner, b.input(dtype, strides));
        b.next_stage();
        b.output(b.reduced(best), {1, 0});
        check(b.build(true), {.tolerance_factor = 0, .special_values = true});
      }
    }
  }
}

TEST_P(Loops, a_product_and_a_sum_are_rounded_each) {
  LoopsBuilder b({300}, 1);
  const ExprId x = b.input(DType::f32, {1}), y = b.input(DType::f32, {1});
  // The same product twice, where the second cannot be told to be: one rounding for both would leave the error.
  const ExprId doubled = b.op(ScalarOp::mul, x, b.real(DType::f32, 2));
  const ExprId halved = b.op(ScalarOp::mul, y, b.real(DType::f32, 0.5));
  b.output(b.op(ScalarOp::sub, b.op(ScalarOp::mul, x, y), b.op(ScalarOp::mul, doubled, halved)), {1});
  check(b.build(), {.tolerance_factor = 0});
}

TEST_P(Loops, transposition_and_broadcast) {
  for (const int64_t size : k_sizes) {
    LoopsBuilder b({3, size, 18}, 3);
    const ExprId x = b.input(DType::f32, {size * 18, 1, size});
    const ExprId y = b.input(DType::f32, {0, 0, 1});
    const ExprId z = b.input(DType::f32, {1, 0, 0});
    b.output(b.op(ScalarOp::mul, b.op(ScalarOp::add, x, y), z), {size * 18, 18, 1});
    check(b.build());
  }
}

TEST_P(Loops, buffers_may_begin_at_any_element) {
  for (const DType dtype : {DType::f32, DType::f16, DType::u8}) {
    LoopsBuilder b({6, 64}, 2);
    b.output(b.op(ScalarOp::maximum, b.input(dtype, {64, 1}), b.input(dtype, {0, 1})), {64, 1});
    check(b.build(), {.off_by_an_element = true});
  }
  check(row_softmax(DType::f32, 3, 512), {.off_by_an_element = true});
}

TEST_P(Loops, elements_may_lie_a_few_apart) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8}) {
    for (const int64_t stride : {2, 3, 4}) {
      for (const int64_t size : {7, 65}) {
        LoopsBuilder b({3, size}, 2);
        const ExprId is_wanted =
            b.op(ScalarOp::ne, b.index(0), b.op(ScalarOp::floor_div, b.index(1), b.integer(DType::i64, 5)));
        const uint32_t buffer = b.buffer(dtype, 3 * size * stride - stride + 1, BufferRole::input);
        const uint32_t access = b.access(buffer, {size * stride, stride});
        b.output(b.load(access), {size, 1});
        b.output(b.load(access, is_wanted), {size, 1});
        check(b.build(), {.tolerance_factor = 0});
      }
    }
  }
}

TEST_P(Loops, strides_may_be_negative) {
  LoopsBuilder b({4, 100}, 2);
  const uint32_t buffer = b.buffer(DType::f32, 400, BufferRole::input);
  b.output(b.load(b.access(buffer, {100, -1}, 99)), {100, 1});
  check(b.build());
}

TEST_P(Loops, casts_between_all_dtypes) {
  for (int from = 0; from < k_dtype_count; ++from) {
    for (int to = 0; to < k_dtype_count; ++to) {
      LoopsBuilder b({77}, 1);
      ExprId x = b.input(static_cast<DType>(from), {1});
      // To whole numbers of some size; a power of two, so that rounding cannot change what truncation gives.
      if (from == static_cast<int>(DType::f32) || from == static_cast<int>(DType::f64)) {
        x = b.op(ScalarOp::mul, x, b.real(static_cast<DType>(from), 32));
      }
      b.output(b.cast(x, static_cast<DType>(to)), {1});
      SCOPED_TRACE(std::string(to_string(static_cast<DType>(from))) + " to " +
                   std::string(to_string(static_cast<DType>(to))));
      check(b.build());
      if (HasFailure()) return;
    }
  }
}

TEST_P(Loops, what_no_integer_holds_becomes_the_least_one) {
  for (const DType from : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const DType to : {DType::u8, DType::i8, DType::i32, DType::i64}) {
      for (const double factor : {0x1p7, 0x1p31, 0x1p63}) {
        LoopsBuilder b({301}, 1);
        const ExprId x = b.cast(b.input(from, {1}), from == DType::f64 ? from : DType::f32);
        b.output(b.cast(b.op(ScalarOp::mul, x, b.real(from == DType::f64 ? from : DType::f32, factor)), to), {1});
        SCOPED_TRACE(fmt::format("{} times {} to {}", to_string(from), factor, to_string(to)));
        check(b.build(), {.tolerance_factor = 0, .special_values = true});
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Loops, half_precisions_round_as_stored) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const double factor : {1.0, 1e-6, 3e4, 1e-39}) {  // the last gives denormals of bf16
      LoopsBuilder b({500}, 1);
      const ExprId x = b.op(ScalarOp::mul, b.input(DType::f32, {1}), b.real(DType::f32, factor));
      b.output(b.cast(x, dtype), {1});
      // Exact: a single rounding on both sides.
      check(b.build(), {.tolerance_factor = 0, .special_values = true});
    }
  }
}

TEST_P(Loops, half_precisions_that_are_moved_stay_what_they_are) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::vector<int64_t>& strides : {std::vector<int64_t>{33, 1}, {1, 17}}) {
      LoopsBuilder b({17, 33}, 2);
      const ExprId x = b.input(dtype, strides);
      b.output(x, {33, 1});
      b.output(b.op(ScalarOp::neg, b.cast(x, DType::f32)), {33, 1});
      check(b.build(), {.tolerance_factor = 0, .special_values = true});
    }
  }
}

TEST_P(Loops, operations_of_floating_dtypes) {
  const ScalarOp unary[] = {ScalarOp::neg,   ScalarOp::abs,   ScalarOp::sign,  ScalarOp::exp,   ScalarOp::expm1,
                            ScalarOp::log,   ScalarOp::log1p, ScalarOp::sqrt,  ScalarOp::rsqrt, ScalarOp::reciprocal,
                            ScalarOp::sin,   ScalarOp::cos,   ScalarOp::tanh,  ScalarOp::erf,   ScalarOp::sigmoid,
                            ScalarOp::floor, ScalarOp::ceil,  ScalarOp::round, ScalarOp::trunc};
  const ScalarOp binary[] = {ScalarOp::add,       ScalarOp::sub,       ScalarOp::mul,    ScalarOp::div,
                             ScalarOp::floor_div, ScalarOp::remainder, ScalarOp::fmod,   ScalarOp::pow,
                             ScalarOp::atan2,     ScalarOp::minimum,   ScalarOp::maximum};
  const auto check_op = [&](ScalarOp op, DType dtype, bool is_binary) {
    LoopsBuilder b({6, 70}, 2);
    const ExprId x = b.input(dtype, {70, 1});
    const ExprId y = is_binary ? b.input(dtype, {1, 6}) : k_no_expr;
    b.output(b.op(op, x, y), {70, 1});
    SCOPED_TRACE(std::string(to_string(op)) + " " + std::string(to_string(dtype)));
    check(b.build(), {.tolerance_factor = op == ScalarOp::pow ? 8.0 : 1.0, .special_values = true});
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const ScalarOp op : unary) check_op(op, dtype, false);
    for (const ScalarOp op : binary) check_op(op, dtype, true);
  }
}

TEST_P(Loops, operations_of_integers) {
  const ScalarOp binary[] = {ScalarOp::add,         ScalarOp::sub,        ScalarOp::mul,        ScalarOp::floor_div,
                             ScalarOp::remainder,   ScalarOp::fmod,       ScalarOp::minimum,    ScalarOp::maximum,
                             ScalarOp::bitwise_and, ScalarOp::bitwise_or, ScalarOp::bitwise_xor};
  const ScalarOp unary[] = {ScalarOp::neg, ScalarOp::abs, ScalarOp::sign, ScalarOp::bitwise_not, ScalarOp::logical_not};
  const ScalarOp comparisons[] = {ScalarOp::eq, ScalarOp::ne, ScalarOp::lt, ScalarOp::le, ScalarOp::gt, ScalarOp::ge};
  for (const DType dtype : {DType::u8, DType::i8, DType::i32, DType::i64}) {
    LoopsBuilder b({150}, 1);
    const ExprId x = b.input(dtype, {1});
    const ExprId y = b.input(dtype, {1});
    for (const ScalarOp op : binary) b.output(b.op(op, x, y), {1});
    for (const ScalarOp op : unary) b.output(b.op(op, x), {1});
    for (const ScalarOp op : comparisons) b.output(b.op(op, x, y), {1});
    SCOPED_TRACE(to_string(dtype));
    check(b.build(), {.special_values = true});
  }
}

TEST_P(Loops, random_bits_of_a_counter) {
  LoopsBuilder b({5, 70}, 2);
  const ExprId key = b.input(DType::i64, {1, 0});
  const ExprId place = b.op(ScalarOp::add, b.op(ScalarOp::mul, b.index(0), b.integer(DType::i64, 70)), b.index(1));
  const ExprId far = b.op(ScalarOp::add, place, b.integer(DType::i64, (int64_t{1} << 32) - 100));
  b.output(b.op(ScalarOp::philox, key, far), {70, 1});
  const ExprId most = b.integer(DType::i64, 0xE6666666);
  b.output(b.op(ScalarOp::lt, b.op(ScalarOp::philox, key, place), most), {70, 1});
  check(b.build(), {.special_values = true});
}

TEST_P(Loops, select_by_comparison_and_index) {
  for (const int64_t size : k_sizes) {
    LoopsBuilder b({5, size}, 2);
    const ExprId x = b.input(DType::f32, {size, 1});
    const ExprId y = b.input(DType::f32, {0, 1});
    const ExprId below = b.op(ScalarOp::le, b.index(1), b.op(ScalarOp::mul, b.index(0), b.integer(DType::i64, 3)));
    const ExprId both = b.op(ScalarOp::bitwise_and, below, b.op(ScalarOp::lt, x, y));
    b.output(b.op(ScalarOp::select, both, x, y), {size, 1});
    check(b.build(), {.special_values = true});
  }
}

TEST_P(Loops, a_predicate_keeps_loads_in_their_buffer) {
  // Padding by 2 on the left and 3 on the right: addresses outside are formed, never touched.
  for (const int64_t size : k_sizes) {
    LoopsBuilder b({4, size + 5}, 2);
    const ExprId column = b.index(1);
    const ExprId inside = b.op(ScalarOp::bitwise_and, b.op(ScalarOp::ge, column, b.integer(DType::i64, 2)),
                               b.op(ScalarOp::lt, column, b.integer(DType::i64, size + 2)));
    const uint32_t buffer = b.buffer(DType::f32, 4 * size, BufferRole::input);
    b.output(b.load(b.access(buffer, {size, 1}, -2), inside), {size + 5, 1});
    check(b.build());
  }
}

/// rows[i, :] = table[indices[i], :]
KernelSpec gather_rows(int64_t rows, int64_t columns, int64_t bound) {
  LoopsBuilder b({rows, columns}, 2);
  const ExprId index = b.input(DType::i64, {1, 0});
  const uint32_t table = b.buffer(DType::f32, bound * columns, BufferRole::input);
  b.output(b.load(b.access(table, {0, 1}, 0, {{index, columns, bound}})), {columns, 1});
  return b.build();
}

TEST_P(Loops, rows_are_gathered) {
  for (const int64_t columns : k_sizes) check(gather_rows(13, columns, 11), {.index_bounds = {11}});
}

TEST_P(Loops, an_index_out_of_range_is_reported_and_reads_nothing) {
  for (const int64_t columns : k_sizes) {
    check(gather_rows(60, columns, 11), {.index_bounds = {11}, .bad_indices = true});
  }
}

TEST_P(Loops, single_elements_are_gathered) {
  for (const bool bad : {false, true}) {
    LoopsBuilder b({7, 45}, 2);
    const ExprId index = b.input(DType::i64, {45, 1});
    const uint32_t table = b.buffer(DType::f32, 45 * 20, BufferRole::input);
    b.output(b.load(b.access(table, {0, 1}, 0, {{index, 45, 20}})), {45, 1});
    check(b.build(), {.index_bounds = {20}, .bad_indices = bad});
  }
}

TEST_P(Loops, rows_that_meet_are_added_in_order) {
  for (const bool bad : {false, true}) {
    for (const int64_t columns : k_sizes) {
      LoopsBuilder b({columns, 50}, 1);
      const ExprId index = b.input(DType::i64, {0, 1});
      const ExprId gradient = b.input(DType::f32, {1, columns});
      const uint32_t table = b.buffer(DType::f32, 9 * columns, BufferRole::inout);
      b.store(gradient, b.access(table, {1, 0}, 0, {{index, columns, 9}}), StoreMode::add);
      check(b.build(), {.tolerance_factor = 4, .index_bounds = {9}, .bad_indices = bad});
    }
  }
}

TEST_P(Loops, elements_that_meet_are_added_in_order) {
  LoopsBuilder b({500}, 0);
  const ExprId index = b.input(DType::i64, {1});
  const ExprId value = b.input(DType::f32, {1});
  const uint32_t bins = b.buffer(DType::f32, 7, BufferRole::inout);
  b.store(value, b.access(bins, {0}, 0, {{index, 1, 7}}), StoreMode::add);
  check(b.build(), {.tolerance_factor = 8, .index_bounds = {7}});
}

TEST_P(Loops, a_stage_sees_what_an_earlier_one_stored) {
  LoopsBuilder b({8, 33}, 1);
  const uint32_t buffer = b.buffer(DType::f32, 8 * 33, BufferRole::inout);
  const uint32_t access = b.access(buffer, {33, 1});
  const ExprId x = b.load(access);
  b.store(b.op(ScalarOp::mul, x, x), access);
  b.next_stage();
  const uint32_t sum = b.reduce(Combiner::sum, x);
  b.next_stage();
  b.output(b.reduced(sum), {1, 0});
  check(b.build(true), {.tolerance_factor = 4});
}

TEST_P(Loops, a_stage_may_overwrite_what_an_earlier_one_read) {
  for (const int64_t columns : {33, 700}) {
    LoopsBuilder b({5, columns}, 1);
    const uint32_t heads = b.access(b.buffer(DType::f32, 5, BufferRole::inout), {1, 0});
    const ExprId head = b.load(heads);
    b.output(b.op(ScalarOp::add, b.input(DType::f32, {columns, 1}), head), {columns, 1});
    b.next_stage();
    b.store(b.op(ScalarOp::neg, head), heads);
    check(b.build(/*last_is_per_row=*/true));
  }
}

TEST_P(Loops, a_stage_may_overwrite_what_an_earlier_one_stored) {
  for (const int64_t columns : {33, 700}) {
    LoopsBuilder b({5, columns}, 1);
    const ExprId x = b.input(DType::f32, {columns, 1}), last = b.input(DType::f32, {1, 0});
    const uint32_t out = b.buffer(DType::f32, 5 * columns, BufferRole::output);
    b.store(x, b.access(out, {columns, 1}));
    b.next_stage();
    b.store(last, b.access(out, {columns, 0}, columns - 1));
    check(b.build(/*last_is_per_row=*/true));
  }
}

TEST_P(Loops, a_stage_per_row_needs_no_reduction) {
  for (const int64_t size : k_sizes) {
    LoopsBuilder b({3, size}, 2);
    b.output(b.op(ScalarOp::neg, b.input(DType::f32, {size, 1})), {size, 1});
    check(b.build(/*last_is_per_row=*/true));
  }
}

/// Random dims, layouts, expressions and reductions.
KernelSpec random_kernel(std::mt19937_64& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const int64_t parallel = below(4), reduced = below(3);
  std::vector<int64_t> extents;
  for (int64_t d = 0; d < parallel + reduced; ++d) extents.push_back(1 + below(below(3) == 0 ? 70 : 6));
  LoopsBuilder b(extents, static_cast<uint32_t>(parallel));

  const auto layout = [&](bool whole) {
    std::vector<size_t> order(extents.size());
    std::iota(order.begin(), order.end(), 0);
    if (below(3) == 0) std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> strides(extents.size(), 0);
    int64_t stride = below(5) == 0 ? 2 : 1;
    for (size_t position = order.size(); position-- > 0;) {
      if (!whole && below(4) == 0) continue;
      strides[order[position]] = stride;
      stride *= extents[order[position]];
    }
    return strides;
  };
  std::vector<ExprId> values;
  for (int64_t n = 1 + below(3); n > 0; --n) {
    values.push_back(b.cast(
        b.input(below(4) == 0 ? static_cast<DType>(below(k_dtype_count)) : DType::f32, layout(false)), DType::f32));
  }
  const auto any = [&] { return values[static_cast<size_t>(below(static_cast<int64_t>(values.size())))]; };
  const auto grow = [&] {
    constexpr ScalarOp k_smooth[] = {ScalarOp::tanh, ScalarOp::sigmoid, ScalarOp::sin, ScalarOp::erf, ScalarOp::neg};
    constexpr ScalarOp k_pairs[] = {ScalarOp::add, ScalarOp::sub, ScalarOp::mul, ScalarOp::maximum, ScalarOp::minimum};
    for (int64_t n = 1 + below(4); n > 0; --n) {
      values.push_back(below(2) == 0
                           ? b.op(k_smooth[below(5)], b.op(ScalarOp::tanh, any()))
                           : b.op(k_pairs[below(5)], b.op(ScalarOp::tanh, any()), b.op(ScalarOp::tanh, any())));
    }
  };
  grow();
  std::vector<uint32_t> results;
  for (int64_t stage = reduced == 0 ? 0 : below(3); stage > 0; --stage) {
    constexpr Combiner k_combiners[] = {Combiner::sum, Combiner::maximum, Combiner::minimum};
    for (int64_t n = 1 + below(2); n > 0; --n) results.push_back(b.reduce(k_combiners[below(3)], any()));
    if (below(2) == 0) b.output(any(), layout(true));
    b.next_stage();
    for (const uint32_t result : results) values.push_back(b.reduced(result));
    grow();
  }
  if (!results.empty() && below(2) == 0) {
    std::vector<bool> present(extents.size(), false);
    std::fill(present.begin(), present.begin() + parallel, true);
    b.output(b.op(ScalarOp::tanh, b.reduced(results.back())), dense(extents, present));
    return b.build(true);
  }
  b.output(below(4) == 0 ? b.cast(any(), DType::bf16) : any(), layout(true));
  return b.build();
}

TEST_P(Loops, random_kernels) {
  std::mt19937_64 random(4242);
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    SCOPED_TRACE("kernel " + std::to_string(i));
    check(random_kernel(random), {.tolerance_factor = 20});
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Loops, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kiln::conformance
