#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "backends/cpu/compile/gemm/amx.h"
#include "backends/cpu/compile/gemm/dot.h"
#include "backends/cpu/compile/gemm/outer_product.h"
#include "tests/backends/cpu/kernel_check.h"

namespace kiln::cpu {
namespace {

// Tolerances, on top of the rounding of the output: inputs lie in [-1, 1], so a sum of k products wanders to about
// sqrt(k) / 3, and k roundings of it err by up to k / 2 units in the last place of 1.
double tolerance(DType dtype, int64_t k) {
  const auto steps = static_cast<double>(k);
  switch (dtype) {
    case DType::f64:
      return 1e-15 + 1e-16 * steps;
    case DType::f32:
      return 1e-6 + 5e-8 * steps;
    case DType::bf16:
      return 8e-3;  // a unit in the last place: the rounding may go either way
    case DType::f16:
      return 1e-3;
    default:
      return 0;
  }
}

struct Case {
  int64_t m = 1, n = 1, k = 1;
  const char* layout = "nn";  // A then B: n as written, t transposed, s strided in both dims
  DType dtype = DType::f32;
  std::vector<int64_t> batch;
  enum class Epilogue { none, bias_gelu_residual } epilogue = Epilogue::none;
  DType output = DType::f32;
  bool transposed_output = false;
  bool scaled_operands = false;                 // prologues: A * 0.5 + index, B negated
  std::optional<DType> weights = std::nullopt;  // what B lies in memory as, where that is not `dtype`
};

/// Strides of a matrix, its batch dims outside. Returns the elements it spans.
int64_t matrix_strides(char layout, int64_t rows, int64_t columns, const std::vector<int64_t>& batch,
                       std::vector<int64_t>& strides) {
  int64_t row = columns, column = 1, span = rows * columns;
  if (layout == 't') row = 1, column = rows;
  if (layout == 's') row = 3, column = 3 * rows + 2, span = 3 * rows + (3 * rows + 2) * columns;
  strides.assign(batch.size() + 2, 0);
  strides[batch.size()] = row;
  strides[batch.size() + 1] = column;
  for (size_t d = batch.size(); d-- > 0;) {
    strides[d] = span;
    span *= batch[d];
  }
  return span;
}

class SpecBuilder {
 public:
  explicit SpecBuilder(const Case& c) : m_case(c) {
    m_gemm.batch = c.batch;
    m_gemm.m = c.m, m_gemm.n = c.n, m_gemm.k = c.k;
    m_gemm.dtype = c.dtype;
    m_gemm.a_value = operand(m_gemm.a, c.layout[0], c.m, c.k, /*is_a=*/true);
    m_gemm.b_value = operand(m_gemm.b, c.layout[1], c.k, c.n, /*is_a=*/false);
    epilogue();
    m_spec.kernel = m_gemm;
  }
  KernelSpec take() { return m_spec; }

 private:
  uint32_t add_access(Body& body, DType dtype, char layout, int64_t rows, int64_t columns, BufferRole role) {
    Access access;
    access.buffer = static_cast<uint32_t>(m_spec.buffers.size());
    const int64_t span = matrix_strides(layout, rows, columns, m_case.batch, access.strides);
    m_spec.buffers.push_back({dtype, std::max<int64_t>(span, 1), role});
    body.accesses.push_back(access);
    return static_cast<uint32_t>(body.accesses.size() - 1);
  }
  static ExprId add(Body& body, ScalarNode node) {
    body.exprs.push_back(node);
    return static_cast<ExprId>(body.exprs.size() - 1);
  }
  static ExprId apply(Body& body, ScalarOp op, DType dtype, ExprId a, ExprId b = k_no_expr) {
    return add(body, {.op = op, .dtype = dtype, .operands = {a, b, k_no_expr}});
  }
  static ExprId real(Body& body, DType dtype, double value) {
    return add(body, {.op = ScalarOp::constant, .dtype = dtype, .immediate = value});
  }

  ExprId operand(Body& body, char layout, int64_t rows, int64_t columns, bool is_a) {
    const DType loaded = is_a ? m_case.dtype : m_case.weights.value_or(m_case.dtype);
    const uint32_t access = add_access(body, loaded, layout, rows, columns, BufferRole::input);
    ExprId value = add(body, {.op = ScalarOp::load, .dtype = loaded, .slot = access});
    if (loaded != m_case.dtype) value = apply(body, ScalarOp::cast, m_case.dtype, value);
    if (!m_case.scaled_operands) return value;
    if (!is_a) return apply(body, ScalarOp::neg, m_case.dtype, value);
    const auto inner = static_cast<uint32_t>(m_case.batch.size() + 1);
    const ExprId index = add(body, {.op = ScalarOp::index, .dtype = DType::i64, .slot = inner});
    const ExprId position = apply(body, ScalarOp::mul, m_case.dtype, apply(body, ScalarOp::cast, m_case.dtype, index),
                                  real(body, m_case.dtype, 1.0 / 1024));
    return apply(body, ScalarOp::add, m_case.dtype, value, position);
  }

  void store(ExprId value) {
    const char layout = m_case.transposed_output ? 't' : 'n';
    const uint32_t access = add_access(m_gemm.epilogue, m_case.output, layout, m_case.m, m_case.n, BufferRole::output);
    const DType have = m_gemm.epilogue.exprs[value].dtype;
    if (have != m_case.output) value = apply(m_gemm.epilogue, ScalarOp::cast, m_case.output, value);
    m_gemm.stores.push_back({value, access, StoreMode::assign});
  }

  void epilogue() {
    Body& body = m_gemm.epilogue;
    const DType dtype = accumulator_of(m_case.dtype);
    ExprId value = add(body, {.op = ScalarOp::accumulator, .dtype = dtype});
    if (m_case.epilogue == Case::Epilogue::bias_gelu_residual) {
      const uint32_t bias = add_access(body, dtype, 'n', 1, m_case.n, BufferRole::input);
      body.accesses[bias].strides.assign(m_case.batch.size() + 2, 0);
      body.accesses[bias].strides.back() = 1;
      const ExprId shifted =
          apply(body, ScalarOp::add, dtype, value, add(body, {.op = ScalarOp::load, .dtype = dtype, .slot = bias}));
      store(shifted);
      const ExprId half = apply(body, ScalarOp::mul, dtype, shifted, real(body, dtype, 0.5));
      const ExprId erf = apply(body, ScalarOp::erf, dtype,
                               apply(body, ScalarOp::mul, dtype, shifted, real(body, dtype, std::sqrt(0.5))));
      const ExprId gelu =
          apply(body, ScalarOp::mul, dtype, half, apply(body, ScalarOp::add, dtype, erf, real(body, dtype, 1)));
      const uint32_t residual = add_access(body, dtype, 'n', m_case.m, m_case.n, BufferRole::input);
      value =
          apply(body, ScalarOp::add, dtype, gelu, add(body, {.op = ScalarOp::load, .dtype = dtype, .slot = residual}));
    }
    store(value);
  }

  const Case& m_case;
  KernelSpec m_spec;
  GemmSpec m_gemm;
};

/// The targets that this host can run, and of products that tiles are for, those that it can emulate.
std::vector<const CpuTarget*> targets_for(const Case& c) {
  std::vector<const CpuTarget*> targets;
  for (const CpuTarget& target : ladder()) {
    const bool has_tiles = c.dtype == DType::bf16 || c.dtype == DType::i8;
    if (host_runs(target) || (has_tiles && can_emulate(target))) targets.push_back(&target);
  }
  return targets;
}

void check(const Case& c, size_t candidate = 0, uint64_t ranges = 1) {
  const KernelSpec spec = SpecBuilder(c).take();
  const bool narrow = size_of(c.output) < size_of(accumulator_of(c.dtype)) && is_floating(c.output);
  for (const CpuTarget* target : targets_for(c)) {
    const double size = c.weights ? 4 : 1;  // of the numbers that are weights
    check_kernel(spec, *target, size * tolerance(narrow ? c.output : accumulator_of(c.dtype), c.k), candidate, ranges);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Gemm, every_layout_of_the_operands_gives_the_reference) {
  for (const char* layout : {"nn", "nt", "tn", "tt", "sn", "ns", "ss", "st"}) {
    check({.m = 37, .n = 53, .k = 41, .layout = layout});
    check({.m = 64, .n = 96, .k = 64, .layout = layout});
  }
}

TEST(Gemm, tiny_and_odd_sizes_have_right_edges) {
  for (int64_t m : {1, 2, 5, 17, 33}) {
    for (int64_t n : {1, 3, 16, 31}) {
      for (int64_t k : {1, 7, 33}) {
        for (const char* layout : {"nn", "nt", "tn"}) check({.m = m, .n = n, .k = k, .layout = layout});
      }
    }
  }
}

TEST(Gemm, no_k_at_all_gives_the_epilogue_of_zero) {
  check({.m = 19, .n = 35, .k = 0});
  check({.m = 19, .n = 35, .k = 0, .epilogue = Case::Epilogue::bias_gelu_residual});
}

TEST(Gemm, several_blocks_of_k_and_slabs_of_columns_add_up) {
  check({.m = 150, .n = 700, .k = 1100, .layout = "nn"});
  check({.m = 50, .n = 333, .k = 2100, .layout = "nt"});
  check({.m = 333, .n = 100, .k = 1500, .layout = "tn"});
  check({.m = 50, .n = 333, .k = 1500, .layout = "nn", .epilogue = Case::Epilogue::bias_gelu_residual});
}

TEST(Gemm, partial_sums_of_a_narrow_output_wait_in_the_workspace) {
  check({.m = 60, .n = 200, .k = 1500, .layout = "tn", .output = DType::bf16}, 0, 3);
  check({.m = 60, .n = 200, .k = 1500, .layout = "nn", .output = DType::f16}, 0, 2);
}

TEST(Gemm, few_rows_and_few_columns_take_their_own_ways) {
  for (int64_t m : {1, 2, 3, 4, 7, 16, 31}) {
    check({.m = m, .n = 1000, .k = 300, .layout = "nt"});
    check({.m = m, .n = 1000, .k = 300, .layout = "nn"});
    check({.m = 500, .n = m, .k = 300, .layout = "nn"});
    check({.m = 500, .n = m, .k = 300, .layout = "tn"});
  }
}

TEST(Gemm, batches_run_over_all_their_dims) {
  check({.m = 20, .n = 24, .k = 16, .layout = "nt", .batch = {5}});
  check({.m = 20, .n = 24, .k = 16, .layout = "tn", .batch = {2, 3}}, 0, 4);
  check({.m = 9, .n = 33, .k = 70, .layout = "nn", .batch = {2, 1, 3}, .epilogue = Case::Epilogue::bias_gelu_residual});
}

TEST(Gemm, an_epilogue_with_two_stores_sees_bias_and_residual) {
  for (const char* layout : {"nn", "nt", "tn"}) {
    check({.m = 45, .n = 77, .k = 64, .layout = layout, .epilogue = Case::Epilogue::bias_gelu_residual});
  }
  check({.m = 3, .n = 77, .k = 64, .layout = "nt", .epilogue = Case::Epilogue::bias_gelu_residual});
}

TEST(Gemm, operands_may_be_expressions) {
  for (const char* layout : {"nn", "nt", "tn", "tt", "ss"}) {
    check({.m = 30, .n = 50, .k = 70, .layout = layout, .scaled_operands = true});
  }
}

TEST(Gemm, an_output_that_lies_transposed_is_written_so) {
  check({.m = 70, .n = 50, .k = 40, .layout = "nn", .transposed_output = true});
  check({.m = 70,
         .n = 50,
         .k = 40,
         .layout = "nt",
         .epilogue = Case::Epilogue::bias_gelu_residual,
         .transposed_output = true});
}

TEST(Gemm, half_precision_operands_accumulate_in_f32) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (const char* layout : {"nn", "nt", "tn", "tt", "ss", "sn", "ns"}) {
      check({.m = 33, .n = 70, .k = 129, .layout = layout, .dtype = dtype});
      check({.m = 33, .n = 70, .k = 128, .layout = layout, .dtype = dtype, .output = dtype});
    }
    for (int64_t m : {1, 3, 20}) {  // few rows: dot products, and a B that is read where it lies
      for (const char* layout : {"nn", "nt", "tn"}) {
        check({.m = m, .n = 300, .k = 333, .layout = layout, .dtype = dtype, .output = dtype});
      }
    }
    check({.m = 20, .n = 24, .k = 15, .layout = "nt", .dtype = dtype, .batch = {2, 3}, .output = dtype}, 0, 4);
    check({.m = 20, .n = 24, .k = 0, .dtype = dtype});
    check({.m = 30, .n = 50, .k = 70, .dtype = dtype, .scaled_operands = true});
  }
}

TEST(Gemm, half_precisions_of_many_blocks_are_right_by_every_candidate) {
  for (const char* layout : {"nn", "nt", "tn", "ss"}) {
    // An odd k: the last pair has one element. Several blocks, the first in whole vectors and the last not.
    const Case c{.m = 37, .n = 100, .k = 2211, .layout = layout, .dtype = DType::bf16, .output = DType::bf16};
    const KernelSpec spec = SpecBuilder(c).take();
    for (const CpuTarget* target : targets_for(c)) {
      const size_t count = default_candidates(CpuCompileBackend(), spec, {"cpu", std::string(target->name)}).size();
      for (size_t i = 0; i < count; ++i) {
        check_kernel(spec, *target, tolerance(c.output, c.k), i, 1 + i % 5);
        if (HasFatalFailure()) return;
      }
    }
  }
}

std::string_view implementation_of(const Schedule& schedule) { return open_schedule(schedule.bytes)->implementation; }

TEST(Gemm, pairs_of_bf16_are_multiplied_where_the_target_can_and_the_operands_are_such) {
  const CpuCompileBackend backend;
  struct Way {
    Case c;
    std::string_view implementation;
  };
  const Way ways[] = {{{.m = 64, .n = 64, .k = 64, .dtype = DType::bf16}, "outer_product_bf16"},
                      {{.m = 4, .n = 64, .k = 64, .layout = "nt", .dtype = DType::bf16}, "dot_bf16"},
                      {{.m = 64, .n = 64, .k = 64, .dtype = DType::bf16, .scaled_operands = true}, "outer_product"},
                      {{.m = 64, .n = 64, .k = 64, .dtype = DType::f16}, "outer_product"},
                      {{.m = 4, .n = 64, .k = 64, .layout = "nt", .dtype = DType::f16}, "dot"},
                      {{.m = 64, .n = 64, .k = 64}, "outer_product"}};
  for (const auto& [c, implementation] : ways) {
    const KernelSpec spec = SpecBuilder(c).take();
    const Target pairs{"cpu", "x86-64-v4-bf16"}, lesser{"cpu", "x86-64-v4"};
    const Schedule best = default_candidates(backend, spec, pairs).front();
    EXPECT_EQ(implementation_of(best), implementation) << best.description;
    const bool is_widened = !implementation.ends_with("_bf16");
    for (const Schedule& candidate : default_candidates(backend, spec, lesser)) {
      EXPECT_FALSE(implementation_of(candidate).ends_with("_bf16")) << candidate.description;
    }
    const Status status = backend.compile(spec, best, lesser).status();
    EXPECT_EQ(status.code(), is_widened ? StatusCode::ok : StatusCode::unimplemented) << status.to_string();
    // What a race may choose from has both, where there are both.
    const auto candidates = default_candidates(backend, spec, pairs);
    EXPECT_TRUE(std::ranges::any_of(
        candidates, [](const Schedule& candidate) { return !implementation_of(candidate).ends_with("_bf16"); }));
  }
}

TEST(Gemm, f64_is_as_accurate_as_f64) {
  for (const char* layout : {"nn", "nt", "tn", "tt", "ss"}) {
    check({.m = 33, .n = 70, .k = 129, .layout = layout, .dtype = DType::f64, .output = DType::f64});
  }
  check({.m = 2, .n = 70, .k = 129, .layout = "nt", .dtype = DType::f64, .output = DType::f64});
}

TEST(Gemm, integers_are_exact) {
  for (DType dtype : {DType::i32, DType::i64, DType::i8, DType::u8}) {
    check({.m = 19, .n = 37, .k = 23, .layout = "nn", .dtype = dtype, .output = DType::i64});
    check({.m = 19, .n = 37, .k = 23, .layout = "tt", .dtype = dtype, .output = DType::i64});
  }
}

/// Signed bytes, the extremes among them; sums as i32, which many of the longest wrap around.
void check_bytes(const Case& c, const CpuTarget& target, size_t candidate, uint64_t ranges) {
  const KernelSpec spec = SpecBuilder(c).take();
  std::vector<GuardedBuffer> buffers = make_buffers(spec, 7);
  std::mt19937 random(11);
  std::uniform_int_distribution<int> byte(-128, 127);
  for (const size_t operand : {0, 1}) {
    for (int64_t i = 0; i < buffers[operand].elements(); ++i) {
      buffers[operand].set(i, c.k > 200'000 || random() % 8 == 0 ? -128 : random() % 8 == 0 ? 127 : byte(random));
    }
  }
  check_kernel_on(spec, buffers, target, 0, candidate, ranges);
}

TEST(Gemm, sums_of_bytes_are_exact_in_every_layout_and_by_every_way) {
  const CpuCompileBackend backend;
  std::vector<Case> cases;
  for (const char* layout : {"nn", "nt", "tn", "tt", "ss"}) {
    for (const int64_t k : {1, 2, 3, 65, 128}) cases.push_back({.m = 17, .n = 37, .k = k, .layout = layout});
    for (const int64_t few : {1, 3}) {
      cases.push_back({.m = few, .n = 45, .k = 133, .layout = layout});
      cases.push_back({.m = 45, .n = few, .k = 133, .layout = layout, .transposed_output = true});
    }
  }
  for (const char* layout : {"nn", "nt", "tn"}) cases.push_back({.m = 9, .n = 70, .k = 4203, .layout = layout});
  cases.push_back({.m = 20, .n = 24, .k = 50, .layout = "tn", .batch = {2, 3}});
  cases.push_back({.m = 20, .n = 24, .k = 0});
  cases.push_back({.m = 2, .n = 3, .k = 262'147, .layout = "nt"});
  for (Case& c : cases) {
    c.dtype = DType::i8;
    for (const DType output : {DType::i32, DType::i8}) {
      c.output = output;
      for (const CpuTarget* target : targets_for(c)) {
        const Target name{"cpu", std::string(target->name)};
        const size_t count = default_candidates(backend, SpecBuilder(c).take(), name).size();
        const bool is_quick = output == DType::i32 && host_runs(*target);
        for (size_t i = 0; i < count; i += is_quick ? 5 : count) {
          check_bytes(c, *target, i, 1 + i % 3);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Gemm, weights_may_lie_as_bytes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Case c{.dtype = dtype, .output = dtype, .weights = DType::i8};
    for (const int64_t m : {1, 3, 40}) {
      for (const char* layout : {"nn", "nt", "tn", "tt", "ss"}) {
        c.m = m, c.n = 75, c.k = 133, c.layout = layout;
        check(c);
        c.m = 75, c.n = m;
        check(c);
      }
    }
  }
  check({.m = 2, .n = 70, .k = 1200, .layout = "nt", .batch = {3}, .weights = DType::u8}, 0, 3);
  check({.m = 60, .n = 70, .k = 1200, .layout = "nt", .weights = DType::bf16}, 0, 3);
}

TEST(Gemm, what_lies_as_bytes_is_read_where_it_lies_for_few_rows) {
  const auto best = [](const Case& c) {
    return default_candidates(CpuCompileBackend(), SpecBuilder(c).take(), {"cpu", "x86-64-v4-bf16"}).front();
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Case c{.m = 1, .n = 4096, .k = 4096, .layout = "nt", .dtype = dtype, .output = dtype, .weights = DType::i8};
    EXPECT_EQ(implementation_of(best(c)), "dot");
    c.layout = "nn";
    EXPECT_EQ(implementation_of(best(c)), "outer_product");
    EXPECT_EQ(best(c).description.find("b-"), std::string::npos) << best(c).description;
    c.m = 128;
    EXPECT_EQ(implementation_of(best(c)), dtype == DType::bf16 ? "outer_product_bf16" : "outer_product");
  }
}

TEST(Gemm, bytes_are_multiplied_by_tiles_quads_or_pairs_where_their_sums_are_seen_as_i32) {
  const CpuCompileBackend backend;
  const auto implementations = [&](const Case& c, const char* target) {
    std::set<std::string> names;
    for (const Schedule& candidate : default_candidates(backend, SpecBuilder(c).take(), {"cpu", target})) {
      names.emplace(implementation_of(candidate));
    }
    return names;
  };
  using Names = std::set<std::string>;
  const Case square{.m = 64, .n = 64, .k = 64, .dtype = DType::i8, .output = DType::i32};
  EXPECT_EQ(implementations(square, "x86-64-v4-amx"),
            (Names{"amx_int8", "outer_product_i8", "outer_product_i16", "outer_product"}));
  for (const char* target : {"x86-64-v4-bf16", "x86-64-v4-vnni"}) {
    EXPECT_EQ(implementations(square, target), (Names{"outer_product_i8", "outer_product_i16", "outer_product"}));
  }
  for (const char* target : {"x86-64-v4", "x86-64-v3", "x86-64-v2"}) {
    EXPECT_EQ(implementations(square, target), (Names{"outer_product_i16", "outer_product"}));
  }
  Case other = square;
  other.output = DType::i64;
  EXPECT_EQ(implementations(other, "x86-64-v4-amx"), Names{"outer_product"});
  other = square;
  other.dtype = DType::u8;
  EXPECT_EQ(implementations(other, "x86-64-v4-amx"), Names{"outer_product"});
  const Case row{.m = 1, .n = 64, .k = 64, .layout = "nt", .dtype = DType::i8, .output = DType::i32};
  EXPECT_TRUE(implementations(row, "x86-64-v3").contains("dot_i16"));
  const KernelSpec spec = SpecBuilder(square).take();
  const Schedule best = default_candidates(backend, spec, {"cpu", "x86-64-v4-vnni"}).front();
  EXPECT_EQ(backend.compile(spec, best, {"cpu", "x86-64-v4"}).status().code(), StatusCode::unimplemented);
}

TEST(Gemm, every_candidate_is_right_however_the_grid_is_shared) {
  const CpuCompileBackend backend;
  for (const Case& c :
       {Case{.m = 100, .n = 200, .k = 900}, Case{.m = 75, .n = 210, .k = 500, .layout = "nt"},
        Case{.m = 90, .n = 150, .k = 500, .layout = "tn"}, Case{.m = 8, .n = 150, .k = 500, .layout = "nt"}}) {
    const KernelSpec spec = SpecBuilder(c).take();
    for (const CpuTarget* target : runnable_targets()) {
      const size_t count = default_candidates(backend, spec, {"cpu", std::string(target->name)}).size();
      for (size_t i = 0; i < count; ++i) {
        check_kernel(spec, *target, tolerance(DType::f32, c.k), i, 1 + i % 5);
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Compiles and checks schedules that no list of candidates has.
template <typename Choices>
void check_choices(const Case& c, const Choices& choices, int64_t rounded_steps, const CpuTarget* only = nullptr) {
  const KernelSpec spec = SpecBuilder(c).take();
  const Schedule schedule{encode_choices(choices), std::string(Choices::k_implementation)};
  for (const CpuTarget* target : only == nullptr ? runnable_targets() : std::vector{only}) {
    for (const Schedule& candidate :
         default_candidates(CpuCompileBackend(), spec, {"cpu", std::string(target->name)})) {
      ASSERT_NE(candidate.bytes, schedule.bytes);
    }
    const double allowed = tolerance(accumulator_of(c.dtype), rounded_steps) + tolerance(c.output, 0);
    check_schedule_on(spec, make_buffers(spec, 7), *target, allowed, schedule, 2);
  }
}

TEST(Gemm, schedules_of_no_list_are_as_good_in_either_orientation) {
  for (const bool exchanged : {false, true}) {
    const OuterProductSchedule outer{.exchanged = exchanged,
                                     .read_a = ReadA::rows,
                                     .read_b = ReadB::panels,
                                     .rolled_epilogue = true,
                                     .unroll = 3,
                                     .tile_rows = 2,
                                     .tile_vectors = 3,
                                     .group_rows = 5,
                                     .k_block = 37,
                                     .slab_vectors = 3,
                                     .row_parts = 3};
    OuterProductSchedule panels = outer;
    panels.read_a = ReadA::panels;
    panels.rolled_epilogue = false;
    for (const OuterProductSchedule& schedule : {outer, panels}) {
      for (const char* layout : {"nn", "nt", "tn", "ss"}) {
        check_choices({.m = 37, .n = 53, .k = 101, .layout = layout}, schedule, 101);
      }
      check_choices({.m = 1, .n = 53, .k = 40, .layout = "nt"}, schedule, 40);
      check_choices({.m = 53, .n = 1, .k = 40, .layout = "nn"}, schedule, 40);
      check_choices({.m = 20, .n = 24, .k = 50, .layout = "tn", .batch = {2, 3}, .transposed_output = true}, schedule,
                    50);
      for (const char* layout : {"nn", "nt"}) {
        check_choices({.m = 33, .n = 40, .k = 71, .layout = layout, .dtype = DType::bf16}, schedule, 71);
        if (!host_runs(*find_target("x86-64-v4-bf16"))) continue;
        check_choices({.m = 33, .n = 40, .k = 71, .layout = layout, .dtype = DType::bf16},
                      Bf16OuterProductSchedule{schedule}, 71, find_target("x86-64-v4-bf16"));
      }
      check_choices({.m = 19, .n = 37, .k = 23, .layout = "tt", .dtype = DType::i8, .output = DType::i64}, schedule,
                    23);
    }
    const DotSchedule dot{.exchanged = exchanged, .tile_rows = 2, .tile_columns = 3, .slab_columns = 5, .row_parts = 2};
    DotSchedule blocked = dot;  // the tile's sums wait in scratch
    blocked.tile_rows = 7;
    blocked.k_block = 32;
    for (const DotSchedule& schedule : {dot, blocked}) {
      for (const int64_t k : {0, 1, 5, 64, 100}) check_choices({.m = 70, .n = 53, .k = k, .layout = "nt"}, schedule, k);
    }
  }
}

/// Sizes beside those of registers, in each layout; sums that wait in the output and in the workspace between blocks of k.
TEST(Gemm, tiles_of_registers_are_right_however_they_are_cut) {
  const CpuTarget& target = *find_target("x86-64-v4-amx");
  if (!can_emulate(target)) GTEST_SKIP() << "this host has no AVX512-BF16";
  const AmxSchedule schedules[] = {
      {.tile_rows = 32, .tile_vectors = 2, .group_rows = 40, .k_block = 16, .slab_vectors = 4, .row_parts = 2},
      {.tile_rows = 20, .tile_vectors = 2, .group_rows = 32, .k_block = 48, .slab_vectors = 2, .row_parts = 1},
      {.tile_rows = 16, .tile_vectors = 4, .group_rows = 16, .k_block = 512, .slab_vectors = 8, .row_parts = 1},
      {.tile_rows = 7, .tile_vectors = 6, .group_rows = 16, .k_block = 32, .slab_vectors = 8, .row_parts = 1},
      {.tile_rows = 48, .tile_vectors = 1, .group_rows = 48, .k_block = 32, .slab_vectors = 1, .row_parts = 3}};
  for (AmxSchedule schedule : schedules) {
    for (const DType output : {DType::f32, DType::bf16}) {
      for (const char* layout : {"nn", "nt", "tn", "tt", "ss"}) {
        schedule.read_b = schedule.read_b == ReadB::panels ? ReadB::transposed : ReadB::panels;
        const int64_t k = schedule.read_b == ReadB::panels ? 70 : 119;
        check_choices({.m = 67, .n = 83, .k = k, .layout = layout, .dtype = DType::bf16, .output = output}, schedule, k,
                      &target);
        if (output == DType::bf16) continue;
        check_choices({.m = 67, .n = 83, .k = k, .layout = layout, .dtype = DType::i8, .output = DType::i32},
                      I8AmxSchedule{schedule}, 0, &target);
      }
      schedule.read_a = ReadA::direct;
      const char* layout = schedule.exchanged ? "tt" : "nn";
      check_choices(
          {.m = 33, .n = 64, .k = 128, .layout = layout, .dtype = DType::bf16, .batch = {3}, .output = output},
          schedule, 128, &target);
      schedule.read_a = ReadA::rows;
      check_choices({.m = 40,
                     .n = 50,
                     .k = 64,
                     .dtype = DType::bf16,
                     .epilogue = Case::Epilogue::bias_gelu_residual,
                     .output = output,
                     .transposed_output = true},
                    schedule, 64, &target);
      schedule.exchanged = !schedule.exchanged;
    }
    for (const int64_t k : {0, 1, 6, 16, 31, 33}) {
      check_choices({.m = 5, .n = 18, .k = k, .dtype = DType::bf16}, schedule, k, &target);
    }
  }
}

TEST(Gemm, schedules_that_the_problem_has_no_kernel_for_are_refused) {
  const KernelSpec strided = SpecBuilder({.m = 37, .n = 53, .k = 41, .layout = "ss"}).take();
  const KernelSpec packed = SpecBuilder({.m = 37, .n = 53, .k = 41, .dtype = DType::bf16}).take();
  for (const CpuTarget* target : runnable_targets()) {
    expect_refused(strided, *target, OuterProductSchedule{.tile_rows = 2}, "B cannot be multiplied where it lies");
    expect_refused(packed, *target, OuterProductSchedule{.tile_rows = 2}, "A cannot be multiplied where it lies");
    expect_refused(packed, *target, OuterProductSchedule{.k_block = 0}, "a zero extent");
    expect_refused(packed, *target, OuterProductSchedule{.unroll = 17}, "not unrolled");
    expect_refused(packed, *target, OuterProductSchedule{.read_a = ReadA{3}}, "no such way");
    expect_refused(packed, *target, OuterProductSchedule{.tile_rows = 65535, .tile_vectors = 65535}, "registers");
    // Where a row is not claimed, its schedules are not looked at.
    const Target name{"cpu", std::string(target->name)};
    const Status status = CpuCompileBackend().compile(packed, {encode_choices(DotSchedule()), "dot"}, name).status();
    EXPECT_EQ(status.code(), StatusCode::unimplemented);
    EXPECT_NE(status.message().find("not contiguous along k"), std::string::npos) << status.message();
  }
  const KernelSpec rows = SpecBuilder({.m = 37, .n = 53, .k = 41, .layout = "nt"}).take();
  const CpuTarget& target = *runnable_targets().front();
  expect_refused(rows, target, DotSchedule{.tile_columns = 17}, "more than a vector");
  expect_refused(rows, target, DotSchedule{.tile_rows = 40, .tile_columns = 4, .register_rows = 40}, "registers");
  expect_refused(rows, target, DotSchedule{.tile_rows = 300}, "too many rows");
  expect_refused(rows, target, DotSchedule{.k_block = 30}, "no number of vectors");
  expect_refused(rows, target, DotSchedule{.row_parts = 0}, "a zero extent");
  const KernelSpec halves = SpecBuilder({.m = 37, .n = 53, .k = 41, .dtype = DType::bf16}).take();
  const CpuTarget& tiles = *find_target("x86-64-v4-amx");
  expect_refused(halves, tiles, AmxSchedule{.read_a = ReadA::direct}, "A cannot be multiplied where it lies");
  expect_refused(halves, tiles, AmxSchedule{.read_a = ReadA::panels}, "no such way to read A");
  expect_refused(halves, tiles, AmxSchedule{.read_b = ReadB::direct}, "no such way to read B");
  expect_refused(halves, tiles, AmxSchedule{.tile_rows = 33}, "registers");
  expect_refused(halves, tiles, AmxSchedule{.k_block = 40}, "whole number of instructions");
  expect_refused(halves, tiles, AmxSchedule{.slab_vectors = 0}, "a zero extent");
}

TEST(Gemm, bytes_of_schedules_are_trusted_with_nothing) {
  for (const Case& c : {Case{.m = 8, .n = 150, .k = 500, .layout = "nt"}, Case{.m = 90, .n = 150, .k = 500},
                        Case{.m = 8, .n = 150, .k = 500, .layout = "nt", .dtype = DType::bf16},
                        Case{.m = 8, .n = 150, .k = 500, .layout = "nt", .dtype = DType::i8, .output = DType::i32}}) {
    for (const CpuTarget* target : runnable_targets()) {
      expect_bytes_are_trusted_with_nothing<DotSchedule, OuterProductSchedule, Bf16DotSchedule,
                                            Bf16OuterProductSchedule, I16DotSchedule, I16OuterProductSchedule,
                                            I8OuterProductSchedule, AmxSchedule, I8AmxSchedule>(SpecBuilder(c).take(),
                                                                                                *target);
    }
  }
}

TEST(Gemm, rounding_grows_with_the_root_of_a_run_not_with_k) {
  constexpr int64_t k = 6007, run = 192;  // one running sum rounds 5.2 times as much
  for (const char* layout : {"nn", "nt", "tn"}) {
    const Case c{.m = 35, .n = 20, .k = k, .layout = layout};
    expect_runs(SpecBuilder(c).take(), k, run);
  }
}

}  // namespace
}  // namespace kiln::cpu
