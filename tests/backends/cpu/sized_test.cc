#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "backends/cpu/compile/attention/schedule.h"
#include "tests/backends/cpu/kernel_check.h"
#include "tests/conformance/attention_case.h"
#include "tests/conformance/gemm_case.h"
#include "tests/conformance/loops_builder.h"

/// Kernels that take sizes from their launches: code that was made for one size runs all others of its form.
namespace kiln::cpu {
namespace {

using conformance::AttentionBuilder;
using conformance::AttentionCase;
using conformance::GemmCase;
using conformance::LoopsBuilder;

Target named(const CpuTarget& target) { return {"cpu", std::string(target.name)}; }

using IsLeftOut = std::function<bool(const CpuTarget&)>;
bool none(const CpuTarget&) { return false; }

using MakeBuffers = std::function<std::vector<GuardedBuffer>(const KernelSpec&)>;
std::vector<GuardedBuffer> random_buffers(const KernelSpec& spec) { return make_buffers(spec, 11); }

/// What was compiled for one spec, and how many others it has run.
struct OneCode {
  const CpuTarget* target;
  std::string made_of;
  Digest form;
  std::vector<uint8_t> choices;
  std::unique_ptr<LoadedImage> image;
  size_t served = 0;
};

/// Of the first spec and of the last, on each target whose code this host runs or emulates, but those that `is_left_out` names.
std::vector<OneCode> compiled_for(const std::vector<KernelSpec>& specs, const IsLeftOut& is_left_out) {
  const CpuCompileBackend backend;
  std::vector<OneCode> codes;
  for (const CpuTarget& target : ladder()) {
    if (!can_emulate(target) || is_left_out(target)) continue;
    for (const KernelSpec* spec : {&specs.front(), &specs.back()}) {
      const auto sized = backend.sized(*spec, named(target));
      EXPECT_TRUE(sized) << kernel_name(*spec) << " on " << target.name;
      if (!sized) continue;
      const auto image = backend.compile(*spec, sized->candidates.front(), named(target));
      EXPECT_TRUE(image.ok()) << image.status().to_string();
      if (image.ok())
        codes.push_back({&target, kernel_name(*spec), sized->form, sized->candidates.front().bytes,
                         std::make_unique<LoadedImage>(*image)});
    }
  }
  return codes;
}

void check_by(OneCode& code, const KernelSpec& spec, std::vector<GuardedBuffer> ours,
              const std::vector<GuardedBuffer>& reference, double tolerance) {
  const auto sized = CpuCompileBackend().sized(spec, named(*code.target), code.choices);
  if (!sized || sized->form != code.form) return;
  ++code.served;
  const HostExecutable& kernel = code.image->executable();
  run_in_ranges(kernel, pointers(ours), 3, sized->extents);
  for (size_t b = 0; b < ours.size(); ++b) {
    EXPECT_TRUE(ours[b].zones_are_whole()) << kernel_name(spec) << ": buffer " << b << " was written beyond its end";
    for (int64_t i = 0; i < ours[b].elements(); ++i) {
      const double expected = reference[b].at(i), got = ours[b].at(i);
      if (got == expected || std::abs(got - expected) <= tolerance * (1 + std::abs(expected))) continue;
      ADD_FAILURE() << kernel_name(spec) << " on " << code.target->name << " by the code of " << code.made_of
                    << ": buffer " << b << " element " << i << " is " << got << ", expected " << expected;
      return;
    }
  }
}

/// Expects each code to run at least so many of the specs, whatever their sizes are.
void expect_one_code_of(const std::vector<KernelSpec>& specs, size_t at_least, double tolerance,
                        const MakeBuffers& make = random_buffers, const IsLeftOut& is_left_out = none) {
  std::vector<OneCode> codes = compiled_for(specs, is_left_out);
  for (const KernelSpec& spec : specs) {
    EXPECT_TRUE(validate(spec).ok()) << validate(spec).to_string();
    const std::vector<GuardedBuffer> inputs = make(spec);
    for (OneCode& code : codes) check_by(code, spec, inputs, reference_of(spec, inputs), tolerance);
  }
  for (const OneCode& code : codes) EXPECT_GE(code.served, at_least) << code.made_of << " on " << code.target->name;
}

/// One more row behind `length` rows, in each of `heads`: a cache of keys that grows.
KernelSpec grown(int64_t heads, int64_t length, int64_t columns) {
  LoopsBuilder b({heads, length + 1, columns}, 3);
  const auto input = [&](int64_t rows, int64_t offset) {
    return b.access(b.buffer(DType::f32, heads * rows * columns, BufferRole::input), {rows * columns, columns, 1},
                    offset);
  };
  const uint32_t old_rows = input(length, 0), new_row = input(1, -length * columns);
  const ExprId row = b.index(1), end = b.integer(DType::i64, length);
  const ExprId is_old = b.op(ScalarOp::lt, row, end), is_new = b.op(ScalarOp::ge, row, end);
  b.output(b.op(ScalarOp::select, is_old, b.load(old_rows, is_old), b.load(new_row, is_new)),
           {(length + 1) * columns, columns, 1});
  return b.build();
}

/// Each row divided by the sum of its squares.
KernelSpec normed(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 1);
  const ExprId x = b.input(DType::f32, {columns, 1});
  const uint32_t sum = b.reduce(Combiner::sum, b.op(ScalarOp::mul, x, x));
  b.next_stage();
  b.output(b.op(ScalarOp::div, x, b.reduced(sum)), {columns, 1});
  return b.build();
}

/// Rows become columns: whichever way lanes lie, one of both sides is gathered or scattered.
KernelSpec transposed(int64_t images, int64_t rows, int64_t columns) {
  LoopsBuilder b({images, columns, rows}, 3);
  b.output(b.input(DType::f32, {rows * columns, 1, columns}), {rows * columns, rows, 1});
  return b.build();
}

/// The same where lanes lie along what is reduced.
KernelSpec normed_and_transposed(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 1);
  const ExprId x = b.input(DType::f32, {columns, 1});
  const uint32_t sum = b.reduce(Combiner::sum, x);
  b.next_stage();
  b.output(b.op(ScalarOp::sub, x, b.reduced(sum)), {1, rows});
  return b.build();
}

/// The places of each row's elements in descending order; where it is turned, a row lies across an image's rows.
KernelSpec sorted(int64_t images, int64_t rows, int64_t count, bool is_turned) {
  const int64_t elements = images * rows * count;
  SortSpec sort{{images, rows, count}, true, {.buffer = 0}, {.buffer = 1}};
  sort.order.strides = {rows * count, count, 1};
  sort.x.strides = is_turned ? std::vector<int64_t>{rows * count, 1, rows} : sort.order.strides;
  return {{{DType::bf16, elements, BufferRole::input}, {DType::i64, elements, BufferRole::output}}, std::move(sort)};
}

/// The places of the first `k` of each row.
KernelSpec first_of(int64_t rows, int64_t count, int64_t k) {
  SortSpec sort{{rows, count}, true, {.buffer = 0}, {.buffer = 1}, TopK{k}};
  sort.x.strides = {count, 1}, sort.order.strides = {k, 1};
  return {{{DType::f32, rows * count, BufferRole::input}, {DType::i64, rows * k, BufferRole::output}}, std::move(sort)};
}

/// Sums over `blocks` times `rows`, which lie apart, of each of `columns`: a gradient of a bias.
KernelSpec summed(int64_t columns, int64_t blocks, int64_t rows) {
  LoopsBuilder b({columns, blocks, rows}, 1);
  const uint32_t sum = b.reduce(Combiner::sum, b.input(DType::f32, {1, (rows + 3) * columns, columns}));
  b.next_stage();
  b.output(b.reduced(sum), {1, 0, 0});
  return b.build(true);
}

/// Sums over windows of `points` rows, of each of `columns`, two rows apart.
KernelSpec pooled(int64_t columns, int64_t windows, int64_t points) {
  LoopsBuilder b({columns, windows, points}, 2);
  const uint32_t sum = b.reduce(Combiner::sum, b.input(DType::f32, {1, 2 * columns, columns}));
  b.next_stage();
  b.output(b.reduced(sum), {1, columns, 0});
  return b.build();
}

/// Each row of a sequence added to the row of a table that data names.
KernelSpec scattered(int64_t columns, int64_t blocks, int64_t rows) {
  constexpr int64_t k_table = 4;
  LoopsBuilder b({columns, blocks, rows}, 1);
  const ExprId index = b.input(DType::i64, {0, rows + 1, 1});
  const ExprId place = b.op(ScalarOp::minimum, b.op(ScalarOp::abs, index), b.integer(DType::i64, k_table - 1));
  const uint32_t table = b.buffer(DType::f32, k_table * columns, BufferRole::inout);
  const ExprId row = b.input(DType::f32, {1, rows * columns, columns});
  b.store(row, b.access(table, {1, 0, 0}, 0, {{place, columns, k_table}}), StoreMode::add);
  return b.build();
}

KernelSpec softmax(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 1);
  const ExprId x = b.input(DType::f32, {columns, 1});
  const uint32_t most = b.reduce(Combiner::maximum, x);
  b.next_stage();
  const ExprId power = b.op(ScalarOp::exp, b.op(ScalarOp::sub, x, b.reduced(most)));
  const uint32_t sum = b.reduce(Combiner::sum, power);
  b.next_stage();
  b.output(b.op(ScalarOp::div, power, b.reduced(sum)), {columns, 1});
  return b.build();
}

KernelSpec squared(int64_t elements) {
  LoopsBuilder b({elements}, 1);
  const ExprId x = b.input(DType::f32, {1});
  b.output(b.op(ScalarOp::mul, x, x), {1});
  return b.build();
}

KernelSpec decoded(int64_t keys, bool is_interleaved) {
  return AttentionBuilder(
             {.batch = 2, .heads = 4, .kv_heads = 2, .k_len = keys, .head_dim = 48, .interleaved = is_interleaved})
      .forward();
}

/// Inputs of a backward pass that fit: what the forward pass gives is the reference's.
std::vector<GuardedBuffer> backward_buffers(const KernelSpec& spec) {
  const auto& forward = std::get<AttentionBackwardSpec>(spec.kernel).forward;
  KernelSpec of_forward{spec.buffers, forward};
  for (const Access* result : {&forward.out, &forward.lse})
    of_forward.buffers[result->buffer].role = BufferRole::output;
  std::vector<GuardedBuffer> buffers = make_buffers(spec, 11);
  EXPECT_TRUE(run_reference(of_forward, pointers(buffers)).ok());
  return buffers;
}

/// One code for all, of either pass.
void expect_one_attention(const std::vector<AttentionCase>& cases, double tolerance) {
  std::vector<KernelSpec> forward, backward;
  for (const AttentionCase& c : cases) {
    forward.push_back(AttentionBuilder(c).forward());
    backward.push_back(AttentionBuilder(c).backward());
  }
  expect_one_code_of(forward, cases.size(), tolerance);
  expect_one_code_of(backward, cases.size(), 4 * tolerance, backward_buffers);
}

/// Cases of these lengths; `change` says what else they are.
template <typename Change>
std::vector<AttentionCase> of_lengths(const std::vector<int64_t>& lengths, const Change& change) {
  std::vector<AttentionCase> cases;
  for (const int64_t length : lengths) {
    cases.push_back({.batch = 2, .heads = 2, .kv_heads = 1, .q_len = length, .k_len = length, .head_dim = 20});
    change(cases.back());
  }
  return cases;
}

template <typename Make>
void expect_one_code(const std::vector<int64_t>& sizes, size_t at_least, double tolerance, const Make& make) {
  std::vector<KernelSpec> specs;
  for (const int64_t size : sizes) specs.push_back(make(size));
  expect_one_code_of(specs, at_least, tolerance);
}

TEST(Sized, one_code_grows_a_cache_by_a_row) {
  expect_one_code({50, 64, 65, 71, 83}, 5, 0, [](int64_t length) { return grown(4, length, 64); });
  expect_one_code({2, 3, 30, 41}, 4, 0, [](int64_t length) { return grown(3, length, 7); });
}

TEST(Sized, one_code_takes_any_number_of_rows) {
  expect_one_code({31, 33, 40, 50}, 4, 1e-6, [](int64_t rows) { return normed(rows, 200); });
  expect_one_code({3, 5, 18}, 3, 1e-6, [](int64_t rows) { return normed(rows, 37); });
}

TEST(Sized, one_code_reduces_rows_of_any_length) {
  expect_one_code({65, 128, 200, 201, 256, 1000, 1300}, 7, 1e-5, [](int64_t columns) { return normed(3, columns); });
  expect_one_code({3000, 8191, 70000}, 3, 1e-5, [](int64_t columns) { return normed(3, columns); });
  expect_one_code({64, 70, 127, 256, 321}, 5, 1e-5, [](int64_t columns) { return softmax(9, columns); });
}

TEST(Sized, one_code_sums_everything) {
  const auto total = [](int64_t elements) {
    LoopsBuilder b({elements}, 0);
    const uint32_t sum = b.reduce(Combiner::sum, b.input(DType::f32, {1}));
    b.next_stage();
    b.output(b.reduced(sum), {0});
    return b.build(true);
  };
  expect_one_code({17, 19, 20}, 3, 1e-4, total);
  expect_one_code({4000, 5001, 100'000}, 3, 1e-4, total);
}

TEST(Sized, one_code_sums_any_number_of_rows) {
  expect_one_code({17, 20, 31, 128, 129, 1000, 5000}, 7, 1e-4, [](int64_t rows) { return summed(32, 3, rows); });
  expect_one_code({2, 3, 40, 200}, 4, 1e-4, [](int64_t blocks) { return summed(32, blocks, 150); });
  expect_one_code({17, 100, 150}, 3, 1e-5, [](int64_t rows) { return scattered(48, 5, rows); });
}

TEST(Sized, one_code_turns_rows_of_any_number_into_columns) {
  expect_one_code({35, 40, 47, 51}, 4, 0, [](int64_t rows) { return transposed(3, rows, 40); });
  expect_one_code({35, 40, 47, 51}, 4, 0, [](int64_t columns) { return transposed(3, 40, columns); });
  expect_one_code({33, 40, 50}, 3, 1e-5, [](int64_t rows) { return normed_and_transposed(rows, 200); });
}

TEST(Sized, one_code_takes_any_number_of_elements) { expect_one_code({6200, 10001, 300000}, 3, 0, squared); }

TEST(Sized, one_code_sorts_rows_of_any_length_up_to_its_room) {
  const auto turned = [](int64_t images, int64_t rows, int64_t count) { return sorted(images, rows, count, true); };
  const auto in_line = [](int64_t images, int64_t rows, int64_t count) { return sorted(images, rows, count, false); };
  expect_one_code_of({turned(2, 3, 5), turned(9, 40, 70), turned(3, 2, 4096)}, 3, 0);
  expect_one_code_of({in_line(2, 3, 5), in_line(300, 7, 2), in_line(3, 2, 4097)}, 2, 0);
}

TEST(Sized, one_code_finds_the_first_of_rows_of_any_length_up_to_its_room) {
  expect_one_code_of({first_of(7, 200, 8), first_of(30, 9, 9), first_of(2, 4096, 40), first_of(2, 4096, 3000)}, 4, 0);
}

TEST(Sized, one_code_sees_any_number_of_keys) {
  for (const bool is_interleaved : {false, true}) {
    expect_one_code({2, 17, 64, 128, 129, 300, 1000}, 7, 1e-5,
                    [&](int64_t keys) { return decoded(keys, is_interleaved); });
  }
}

TEST(Sized, one_code_of_attention_takes_any_lengths) {
  const std::vector<int64_t> lengths{2, 17, 32, 65, 131};
  expect_one_attention(of_lengths(lengths, [](AttentionCase&) {}), 1e-5);
  expect_one_attention(of_lengths(lengths, [](AttentionCase& c) { c.causal = c.interleaved = true; }), 1e-5);
  expect_one_attention(of_lengths({17, 64, 130}, [](AttentionCase& c) { c.k_len = 2 * c.q_len + 3, c.strided = true; }),
                       1e-5);
  expect_one_attention(
      of_lengths({20, 64, 131}, [](AttentionCase& c) { c.causal = true, c.causal_offset = c.k_len / 2; }), 1e-5);
  expect_one_attention(
      of_lengths({20, 64, 131}, [](AttentionCase& c) { c.causal = true, c.causal_offset = -c.k_len / 2; }), 1e-5);
}

TEST(Sized, one_code_of_attention_takes_any_batch_heads_bias_and_window) {
  expect_one_attention(
      of_lengths({33, 50, 64, 100}, [](AttentionCase& c) { c.batch = 2 + c.q_len / 20, c.heads = c.kv_heads = 3; }),
      1e-5);
  expect_one_attention(of_lengths({33, 48, 131}, [](AttentionCase& c) { c.bias = true; }), 1e-5);
  expect_one_attention(of_lengths({33, 64, 131}, [](AttentionCase& c) { c.window = c.q_len / 3; }), 1e-5);
}

TEST(Sized, one_code_of_attention_takes_halves) {
  expect_one_attention(of_lengths({20, 64, 131}, [](AttentionCase& c) { c.dtype = DType::bf16, c.causal = true; }),
                       2e-2);
}

/// Tails below and above a tile, a whole one, many of them.
const std::vector<int64_t> k_product_sizes{17, 19, 31, 64, 77, 130, 250};

/// Products of each way that operands can lie: `make(size)` without that. Targets that multiply bytes and bf16 besides have the same
/// code for others.
template <typename Make>
void expect_products_of_one_code(const std::vector<int64_t>& sizes, double tolerance, const Make& make) {
  for (const int way : {0, 1, 2, 3}) {
    std::vector<KernelSpec> specs;
    for (const int64_t size : sizes) {
      GemmCase c = make(size);
      c.a_transposed = way % 2 == 1;
      c.b_transposed = way / 2 == 1;
      specs.push_back(conformance::gemm(c));
    }
    expect_one_code_of(specs, specs.size(), tolerance, random_buffers,
                       [](const CpuTarget& target) { return target.has(Feature::avx512_vnni); });
  }
}

TEST(Sized, one_code_multiplies_any_number_of_rows) {
  const auto by_wide = [](int64_t rows) { return GemmCase{.m = rows, .n = 70, .k = 50}; };
  expect_products_of_one_code(k_product_sizes, 1e-5, by_wide);
  const auto by_narrow = [](int64_t rows) { return GemmCase{.m = rows, .n = 5, .k = 300}; };
  expect_products_of_one_code({77, 131, 250}, 1e-5, by_narrow);
}

TEST(Sized, one_code_multiplies_any_number_of_columns) {
  expect_products_of_one_code({65, 80, 97, 257}, 1e-5,
                              [](int64_t columns) { return GemmCase{.m = 23, .n = columns, .k = 50}; });
}

TEST(Sized, one_code_sums_any_number_of_products) {
  const auto make = [](int64_t k) { return GemmCase{.m = 20, .n = 33, .k = k}; };
  expect_products_of_one_code({2, 3, 17, 255, 256}, 1e-4, make);
  expect_products_of_one_code({257, 600, 1025, 1300}, 1e-4, make);
}

TEST(Sized, one_code_multiplies_any_number_of_matrices) {
  for (const bool b_transposed : {false, true}) {
    expect_one_code({2, 3, 5}, 3, 1e-5, [&](int64_t batch) {
      return conformance::gemm(
          {.batch = batch, .m = 13 * batch, .n = 49 + batch, .k = 9 * batch, .b_transposed = b_transposed});
    });
  }
}

TEST(Sized, one_code_of_a_product_does_what_follows_it) {
  expect_products_of_one_code({17, 31, 130}, 1e-5,
                              [](int64_t rows) { return GemmCase{.m = rows, .n = 70, .k = 50, .with_bias = true}; });
}

/// Partial sums of what is not stored in the dtype of sums lie in the workspace, of so many rows at a time.
TEST(Sized, one_code_multiplies_numbers_of_each_dtype) {
  struct Size {
    int64_t rows, k;
  };
  const std::vector<std::vector<Size>> forms{{{130, 1201}, {61, 1027}, {49, 515}}, {{130, 39}, {61, 41}, {49, 255}}};
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16}) {
    const double tolerance = dtype == DType::f64 ? 1e-13 : 2e-2;
    for (const std::vector<Size>& sizes : forms) {
      for (const bool b_transposed : {false, true}) {
        std::vector<KernelSpec> specs;
        for (const auto [rows, k] : sizes) {
          specs.push_back(
              conformance::gemm({.m = rows, .n = 24, .k = k, .dtype = dtype, .b_transposed = b_transposed}));
        }
        expect_one_code_of(specs, specs.size(), tolerance, random_buffers, [](const CpuTarget& target) {
          const bool has_others_code = target.has(Feature::avx512_vnni) && !target.has(Feature::avx512_bf16);
          return has_others_code || target.has(Feature::amx_bf16);
        });
      }
    }
  }
}

TEST(Sized, few_rows_and_what_tiles_multiply_have_code_for_each_size) {
  for (const CpuTarget* target : runnable_targets()) {
    const auto is_sized = [&](const GemmCase& c) {
      return CpuCompileBackend().sized(conformance::gemm(c), named(*target)).has_value();
    };
    EXPECT_EQ(is_sized({.m = 40, .n = 70, .k = 50, .dtype = DType::bf16}), !target->has(Feature::amx_bf16));
    EXPECT_FALSE(is_sized({.m = 2, .n = 70, .k = 50}));
    EXPECT_TRUE(is_sized({.m = 40, .n = 70, .k = 50}));
  }
}

TEST(Sized, choices_for_the_largest_serve_smaller_ones_and_none_beyond_their_room) {
  const CpuCompileBackend backend;
  for (const CpuTarget* target : runnable_targets()) {
    const auto choices_of = [&](const KernelSpec& spec) {
      return backend.sized(spec, named(*target))->candidates.front().bytes;
    };
    const auto form = [&](const KernelSpec& spec, const KernelSpec& like) {
      const auto sized = backend.sized(spec, named(*target), choices_of(like));
      return sized ? std::optional(sized->form) : std::nullopt;
    };
    const auto product = [](int64_t k) { return conformance::gemm({.m = 64, .n = 200, .k = k}); };
    EXPECT_EQ(form(product(90), product(900)), form(product(900), product(900)));
    EXPECT_EQ(form(product(900), product(90)), std::nullopt);
    const auto backward = [](int64_t keys) {
      return AttentionBuilder({.heads = 2, .kv_heads = 2, .q_len = 20, .k_len = keys}).backward();
    };
    EXPECT_EQ(form(backward(4097), backward(40)), std::nullopt);
    EXPECT_EQ(form(summed(32, 2, 17), product(90)), std::nullopt) << "another kind's";
  }
}

TEST(Sized, what_code_depends_on_is_in_the_form) {
  const CpuCompileBackend backend;
  for (const CpuTarget* target : runnable_targets()) {
    const auto form = [&](const KernelSpec& spec) { return backend.sized(spec, named(*target))->form; };
    EXPECT_EQ(form(grown(4, 64, 64)), form(grown(2, 128, 80)));
    EXPECT_EQ(form(normed(40, 200)), form(normed(40, 201)));
    EXPECT_EQ(form(summed(32, 2, 17)), form(summed(32, 9, 400)));
    EXPECT_EQ(form(summed(80, 3, 5)), form(summed(80, 3, 4)));
    EXPECT_EQ(form(pooled(80, 30, 3)), form(pooled(80, 31, 3)));
    EXPECT_NE(form(pooled(80, 30, 3)), form(pooled(80, 30, 4)));  // a window is laid out point by point
    EXPECT_EQ(form(squared(10'000)), form(squared(1'000'000)));
    EXPECT_NE(form(decoded(64, true)), form(decoded(64, false)));
    EXPECT_EQ(form(conformance::gemm({.m = 64, .n = 200, .k = 90})),
              form(conformance::gemm({.m = 99, .n = 300, .k = 64})));
    EXPECT_NE(form(conformance::gemm({.m = 64, .n = 200, .k = 90})),
              form(conformance::gemm({.m = 64, .n = 200, .k = 900})));
    const auto backward = [](int64_t keys) {
      return AttentionBuilder({.heads = 2, .kv_heads = 2, .q_len = 20, .k_len = keys}).backward();
    };
    EXPECT_EQ(form(backward(40)), form(backward(4096)));
    EXPECT_NE(form(backward(40)), form(backward(4097)));  // more room
    const auto grouped = [](int64_t kv_heads) {
      return AttentionBuilder({.heads = 4, .kv_heads = kv_heads, .q_len = 20, .k_len = 40}).forward();
    };
    EXPECT_NE(form(grouped(4)), form(grouped(2)));
  }
}

TEST(Sized, a_workspace_has_room_for_as_many_keys_as_its_schedule_says) {
  const KernelSpec spec = AttentionBuilder({.heads = 2, .kv_heads = 2, .q_len = 20, .k_len = 40}).backward();
  using Choices = SizedAttentionSchedule<AttentionSchedule>;
  for (const CpuTarget* target : runnable_targets()) {
    const auto of_keys = [](uint32_t most) { return Choices{{.key_block = 64, .tile_rows = 4}, most}; };
    expect_refused(spec, *target, of_keys(39), "39 keys at most");
    EXPECT_TRUE(CpuCompileBackend().compile(spec, {encode_choices(of_keys(40)), "40"}, named(*target)).ok());
  }
}

TEST(Sized, a_launch_carries_no_more_than_it_can) {
  LoopsBuilder b({50, 60}, 2);
  ExprId sum = b.input(DType::f32, {60, 1});
  for (int64_t i = 0; i < 40; ++i) sum = b.op(ScalarOp::add, sum, b.input(DType::f32, {60 + i, 1}));
  b.output(sum, {60, 1});
  const KernelSpec few = b.build();
  LoopsBuilder c({50, 60}, 2);
  sum = c.input(DType::f32, {60, 1});
  for (int64_t i = 0; i < 80; ++i) sum = c.op(ScalarOp::add, sum, c.input(DType::f32, {60 + i, 1}));
  c.output(sum, {60, 1});
  const KernelSpec many = c.build();
  for (const CpuTarget* target : runnable_targets()) {
    EXPECT_TRUE(CpuCompileBackend().sized(few, named(*target)));
    EXPECT_FALSE(CpuCompileBackend().sized(many, named(*target)));
  }
}

}  // namespace
}  // namespace kiln::cpu
