#include "samples.h"

#include <cmath>
#include <functional>
#include <random>
#include <stdexcept>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln {

namespace {

using Dims = std::vector<int64_t>;
using Integers = std::vector<int64_t>;

/// Random tensors, reproducible.
class Source {
 public:
  /// Normally distributed, at least 0.05 away from every multiple of 0.5: where sign, relu, floor and such jump.
  Tensor normal(Dims dims, double scale = 1) {
    return make(DType::f64, std::move(dims), [&] {
      double x = 0;
      do x = scale * m_normal(m_random);
      while (std::fabs(std::remainder(x, 0.5)) < 0.05);
      return x;
    });
  }
  Tensor positive(Dims dims) {
    return make(DType::f64, std::move(dims), [&] { return 0.3 + 2 * m_uniform(m_random); });
  }
  /// In [0, bound).
  Tensor integers(Dims dims, int64_t bound, DType dtype = DType::i64) {
    return make(dtype, std::move(dims), [&] { return std::floor(m_uniform(m_random) * static_cast<double>(bound)); });
  }
  /// Of all values.
  Tensor bytes(Dims dims) {
    return make(DType::i8, std::move(dims), [&] { return std::floor(m_uniform(m_random) * 256) - 128; });
  }
  Tensor mask(Dims dims) { return integers(std::move(dims), 2, DType::boolean); }

 private:
  template <typename Draw>
  Tensor make(DType dtype, Dims dims, Draw&& draw) {
    Tensor tensor = Tensor::zeros(dtype, std::move(dims));
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, draw());
    return tensor;
  }

  std::mt19937_64 m_random{2024};
  std::normal_distribution<double> m_normal;
  std::uniform_real_distribution<double> m_uniform;
};

Tensor values(DType dtype, Dims dims, const std::vector<double>& numbers) {
  return Tensor::from_values(dtype, std::move(dims), numbers);
}

void add_pointwise(Source& s, std::vector<Sample>& out) {
  for (const char* op :
       {"neg",     "abs",   "sign",     "exp",   "expm1",      "sin",          "cos",        "tanh",        "erf",
        "sigmoid", "floor", "ceil",     "round", "trunc",      "is_nan",       "is_inf",     "logical_not", "relu",
        "gelu",    "silu",  "softplus", "elu",   "leaky_relu", "hard_sigmoid", "hard_swish", "log_sigmoid", "mish"}) {
    out.push_back({op, {s.normal({3, 5}, 2)}, {}});
  }
  for (const char* op : {"log", "log1p", "sqrt", "rsqrt", "reciprocal"}) out.push_back({op, {s.positive({7})}, {}});
  for (const char* op : {"add", "sub", "mul", "div", "remainder", "fmod", "floor_div", "atan2", "minimum", "maximum",
                         "eq", "ne", "lt", "le", "gt", "ge"}) {
    out.push_back({op, {s.normal({4, 1, 3}, 2), s.positive({5, 1})}, {}});
  }
  for (const char* op : {"add", "sub", "mul", "floor_div", "remainder", "fmod", "minimum", "bitwise_and", "bitwise_or",
                         "bitwise_xor", "eq", "lt"}) {
    const Tensor divisors = values(DType::i64, {4}, {3, -2, 5, 1});
    out.push_back({op, {values(DType::i64, {4}, {-7, 7, -12, 9}), divisors}, {}});
  }
  out.push_back({"pow", {s.positive({3, 1}), s.normal({4})}, {}});
  out.push_back({"add", {s.normal({0, 3}), s.normal({3})}, {}});
  out.push_back(
      {"philox",
       {values(DType::i64, {2, 1}, {0x243F6A88, 0x13198A2E85A3}), values(DType::i64, {4}, {0, 1, 77, 0x1FFFFFFFF})},
       {}});
  out.push_back({"bitwise_not", {values(DType::i32, {3}, {-7, 0, 5})}, {}});
  out.push_back({"bitwise_not", {s.mask({5})}, {}});
  out.push_back({"select", {s.mask({4, 1}), s.normal({3}), s.normal({4, 3})}, {}});
  out.push_back({"cast", {s.normal({5})}, {{"dtype", DType::f64}}});
  out.push_back({"cast", {s.normal({5}, 3)}, {{"dtype", DType::i32}}});
  out.push_back({"cast", {values(DType::f64, {3}, {0, -0.0, 0.5})}, {{"dtype", DType::boolean}}});
  for (const char* op : {"logical_and", "logical_or", "logical_xor"}) {
    out.push_back({op, {s.mask({4, 1}), s.mask({3})}, {}});
    out.push_back({op, {s.integers({6}, 2), s.integers({6}, 3)}, {}});
  }
  for (const char* op : {"relu_backward", "gelu_backward", "silu_backward", "tanh_backward", "sigmoid_backward"}) {
    out.push_back({op, {s.normal({3, 3}), s.normal({3, 3})}, {}});
  }
  const Attributes tanh = {{"approximate", std::string("tanh")}};
  out.push_back({"gelu", {s.normal({9}, 2)}, tanh});
  out.push_back({"gelu_backward", {s.normal({9}), s.normal({9})}, tanh});
  out.push_back({"softplus", {s.normal({9}, 4)}, {{"beta", 2.0}, {"threshold", 3.3}}});
  out.push_back({"elu", {s.normal({9})}, {{"alpha", 1.7}}});
  out.push_back({"clamp", {s.normal({9})}, {{"min", -0.5}, {"max", 0.5}}});
  out.push_back({"clamp", {s.normal({9})}, {{"max", 0.5}}});
  out.push_back({"clamp", {s.integers({9}, 9)}, {{"min", 2.0}}});
  for (const double exponent : {-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0, 1.3}) {
    out.push_back({"pow_scalar", {s.positive({4})}, {{"exponent", exponent}}});
  }
  out.push_back({"dropout_apply", {s.normal({4, 3}), s.mask({4, 3})}, {{"scale", 1.25}}});
}

void add_reductions(Source& s, std::vector<Sample>& out) {
  for (const char* op : {"sum", "prod", "amax", "amin", "mean", "var", "norm2", "logsumexp"}) {
    out.push_back({op, {s.normal({3, 5, 2})}, {{"dims", Integers{1}}}});
    out.push_back({op, {s.normal({3, 5, 2})}, {{"dims", Integers{0, 2}}, {"keep_dims", true}}});
    out.push_back({op, {s.normal({7})}, {{"dims", Integers{0}}}});
  }
  for (const char* op : {"any", "all"}) {
    out.push_back({op, {s.mask({4, 3})}, {{"dims", Integers{1}}}});
    out.push_back({op, {s.mask({4, 3})}, {{"dims", Integers{0, 1}}, {"keep_dims", true}}});
  }
  out.push_back({"sum", {s.normal({0, 3})}, {{"dims", Integers{0}}}});
  out.push_back({"sum", {s.integers({5, 3}, 100)}, {{"dims", Integers{0}}}});
  out.push_back({"var", {s.normal({6, 2})}, {{"dims", Integers{0}}, {"correction", int64_t{0}}}});
}

void add_views(Source& s, std::vector<Sample>& out) {
  out.push_back({"reshape", {s.normal({3, 4})}, {{"shape", Shape{2, 3, 2}}}});
  out.push_back({"permute", {s.normal({2, 3, 4})}, {{"dims", Integers{2, 0, 1}}}});
  out.push_back({"expand", {s.normal({3, 1})}, {{"shape", Shape{2, 3, 4}}}});
  out.push_back({"slice",
                 {s.normal({2, 7, 3})},
                 {{"dim", int64_t{1}}, {"start", int64_t{1}}, {"end", int64_t{6}}, {"step", int64_t{2}}}});
  out.push_back({"slice", {s.normal({3})}, {{"dim", int64_t{0}}, {"start", int64_t{3}}, {"end", int64_t{3}}}});
  out.push_back({"flip", {s.normal({2, 3, 4})}, {{"dims", Integers{0, 2}}}});
  out.push_back({"window",
                 {s.normal({2, 7, 6})},
                 {{"kernel", Integers{3, 2}}, {"stride", Integers{2, 1}}, {"dilation", Integers{1, 3}}}});
  out.push_back({"full", {}, {{"shape", Shape{2, 3}}, {"value", 1.5}, {"dtype", DType::f64}}});
  out.push_back({"iota",
                 {},
                 {{"shape", Shape{2, 5}}, {"dim", int64_t{1}}, {"start", 3.0}, {"step", -2.0}, {"dtype", DType::i64}}});
  out.push_back({"extent", {}, {{"value", int64_t{12}}, {"dtype", DType::f64}}});
}

void add_indexing(Source& s, std::vector<Sample>& out) {
  const Attributes dim0 = {{"dim", int64_t{0}}}, dim1 = {{"dim", int64_t{1}}};
  out.push_back({"take", {s.normal({3, 5, 2}), s.integers({2, 3}, 5)}, dim1});
  out.push_back({"index_select", {s.normal({3, 5}), s.integers({4}, 5, DType::i32)}, dim1});
  out.push_back({"index_add", {s.normal({3, 5, 2}), s.integers({2, 2}, 5), s.normal({3, 2, 2, 2})}, dim1});
  out.push_back({"gather", {s.normal({4, 5}), s.integers({3, 7}, 5)}, dim1});
  out.push_back(
      {"scatter", {s.normal({3, 5}), values(DType::i64, {2, 3}, {4, 0, 2, 1, 3, 0}), s.normal({2, 3})}, dim1});
  out.push_back({"scatter_add", {s.normal({4, 5}), s.integers({6, 3}, 4), s.normal({6, 3})}, dim0});
  out.push_back({"embedding", {s.normal({6, 3}), s.integers({2, 4}, 6)}, {}});
  out.push_back({"embedding", {s.normal({6, 3}), s.integers({0}, 6)}, {}});
  out.push_back({"embedding_backward", {s.normal({2, 4, 3}), s.integers({2, 4}, 6)}, {{"rows", int64_t{6}}}});
  out.push_back({"embedding_backward",
                 {s.normal({9, 3}), s.integers({9}, 4)},
                 {{"rows", int64_t{4}}, {"padding_idx", int64_t{2}}}});
  out.push_back({"concat", {s.normal({2, 3}), s.normal({2, 0}), s.normal({2, 4})}, dim1});
  out.push_back({"stack", {s.normal({2, 3}), s.normal({2, 3}), s.normal({2, 3})}, dim1});
  out.push_back({"pad", {s.normal({2, 3})}, {{"low", Integers{1, 0}}, {"high", Integers{0, 2}}, {"value", 0.25}}});
  out.push_back({"slice_scatter",
                 {s.normal({2, 7}), s.normal({2, 3})},
                 {{"dim", int64_t{1}}, {"start", int64_t{1}}, {"end", int64_t{6}}, {"step", int64_t{2}}}});
  out.push_back({"select_scatter", {s.normal({3, 4}), s.normal({3})}, {{"dim", int64_t{1}}, {"index", int64_t{2}}}});
  for (const char* op : {"tril", "triu"}) {
    out.push_back({op, {s.normal({2, 4, 3})}, {}});
    out.push_back({op, {s.normal({3, 5})}, {{"diagonal", int64_t{1}}}});
  }
  out.push_back({"cumsum", {s.normal({3, 4, 2})}, dim1});
  out.push_back({"argsort", {s.normal({3, 4, 2})}, dim1});
  out.push_back(
      {"argsort", {values(DType::i64, {6}, {2, 1, 3, 1, 3, 2})}, {{"dim", int64_t{0}}, {"descending", true}}});
  out.push_back({"topk", {s.normal({3, 40, 2})}, {{"dim", int64_t{1}}, {"k", int64_t{30}}}});
  out.push_back({"topk",
                 {values(DType::i64, {6}, {2, 1, 3, 1, 3, 2})},
                 {{"dim", int64_t{0}}, {"k", int64_t{3}}, {"descending", false}, {"sorted", false}}});
  for (const char* op : {"argmax", "argmin"}) {
    out.push_back({op, {s.normal({3, 4, 2})}, dim1});
    out.push_back({op, {values(DType::i64, {5}, {2, 1, 3, 1, 3})}, {{"dim", int64_t{0}}, {"keep_dims", true}}});
  }
}

void add_contractions(Source& s, std::vector<Sample>& out) {
  out.push_back({"matmul", {s.normal({3, 5}), s.normal({5, 2})}, {}});
  out.push_back({"matmul", {s.normal({2, 1, 3, 5}), s.normal({4, 5, 2})}, {}});
  out.push_back({"matmul", {s.normal({3, 0}), s.normal({0, 2})}, {}});
  out.push_back({"matmul", {s.integers({3, 4}, 9), s.integers({4, 2}, 9)}, {}});
  out.push_back({"matmul", {s.bytes({3, 40}), s.bytes({40, 2})}, {}});
  out.push_back({"addmm", {s.normal({2}), s.normal({3, 5}), s.normal({5, 2})}, {}});
  out.push_back({"addmm", {s.bytes({2}), s.bytes({3, 40}), s.bytes({40, 2})}, {{"alpha", 3.0}, {"beta", -2.0}}});
  out.push_back(
      {"addmm", {s.normal({4, 1, 2}), s.normal({4, 3, 5}), s.normal({5, 2})}, {{"alpha", 0.5}, {"beta", -2.0}}});
}

/// Groups of which some are empty, end before another one did, or behind what there is; and rows of no group.
void add_grouped_products(Source& s, std::vector<Sample>& out) {
  for (const auto& ends : {std::vector<double>{2, 2, 5}, {0, 3, 7}, {4, 1, 6}, {-3, 9, 2}, {7, 7, 7}}) {
    const Tensor of_i32 = values(DType::i32, {3}, ends), of_i64 = values(DType::i64, {3}, ends);
    out.push_back({"grouped_matmul", {s.normal({7, 4}), s.normal({3, 4, 2}), of_i32}, {}});
    out.push_back({"grouped_matmul", {s.normal({4, 7}), s.normal({7, 2}), of_i64}, {}});
  }
}

Attributes convolution(Integers stride, Integers padding, Integers dilation, int64_t groups) {
  return {{"stride", std::move(stride)},
          {"padding", std::move(padding)},
          {"dilation", std::move(dilation)},
          {"groups", groups}};
}

/// A convolution of each rank, kind and oddity, and the gradients of each.
void add_convolutions(Source& s, std::vector<Sample>& out) {
  struct Case {
    Dims x, weight, positions;
    Attributes attributes;
  };
  const Case cases[] = {
      {{2, 3, 7, 6}, {4, 3, 3, 2}, {4, 3}, convolution({2, 2}, {1, 0}, {1, 1}, 1)},
      {{1, 4, 5, 5}, {6, 2, 3, 3}, {5, 5}, convolution({1, 1}, {1, 1}, {1, 1}, 2)},
      {{2, 4, 6, 5}, {4, 1, 3, 3}, {3, 3}, convolution({2, 2}, {1, 1}, {1, 1}, 4)},
      {{2, 3, 11}, {2, 3, 3}, {4}, convolution({2}, {0}, {2}, 1)},
      {{1, 2, 4, 5, 3}, {3, 2, 2, 3, 1}, {3, 2, 3}, convolution({1, 2, 1}, {0, 0, 0}, {1, 1, 1}, 1)},
      {{1, 2, 3, 3}, {2, 2, 1, 1}, {5, 3}, convolution({1, 2}, {1, 1}, {1, 1}, 1)},
      {{0, 2, 3, 3}, {2, 2, 2, 2}, {2, 2}, convolution({1, 1}, {0, 0}, {1, 1}, 1)},
  };
  for (const Case& one : cases) {
    Dims grad{one.x[0], one.weight[0]};
    grad.insert(grad.end(), one.positions.begin(), one.positions.end());
    out.push_back({"convolution", {s.normal(one.x), s.normal(one.weight)}, one.attributes});
    Attributes input = one.attributes, weight = one.attributes;
    input.emplace_back("extents", Shape(one.x.begin() + 2, one.x.end()));
    weight.emplace_back("kernel", Integers(one.weight.begin() + 2, one.weight.end()));
    out.push_back({"convolution_backward_input", {s.normal(grad), s.normal(one.weight)}, input});
    out.push_back({"convolution_backward_weight", {s.normal(grad), s.normal(one.x)}, weight});
  }
}

void add_normalisations(Source& s, std::vector<Sample>& out) {
  for (const char* op : {"softmax", "log_softmax"}) {
    out.push_back({op, {s.normal({3, 5}, 3)}, {{"dim", int64_t{1}}}});
    out.push_back({op, {s.normal({3, 4, 2})}, {{"dim", int64_t{1}}}});
  }
  for (const char* op : {"softmax_backward", "log_softmax_backward"}) {
    out.push_back({op, {s.normal({3, 4, 2}), s.normal({3, 4, 2})}, {{"dim", int64_t{1}}}});
  }
  const Attributes last = {{"normalized_rank", int64_t{1}}, {"eps", 1e-3}},
                   two = {{"normalized_rank", int64_t{2}}, {"eps", 1e-3}};
  out.push_back({"layer_norm", {s.normal({3, 7}), s.normal({7}), s.normal({7})}, last});
  out.push_back({"layer_norm", {s.normal({2, 3, 4}), std::nullopt, std::nullopt}, two});
  out.push_back({"layer_norm", {s.normal({0, 4}), s.normal({4}), std::nullopt}, last});
  const Attributes rank1 = {{"normalized_rank", int64_t{1}}}, rank2 = {{"normalized_rank", int64_t{2}}};
  out.push_back({"layer_norm_backward",
                 {s.normal({3, 7}), s.normal({3, 7}), s.normal({3, 1}), s.positive({3, 1}), s.normal({7})},
                 rank1});
  out.push_back({"layer_norm_backward",
                 {s.normal({2, 3, 4}), s.normal({2, 3, 4}), s.normal({2, 1, 1}), s.positive({2, 1, 1}), std::nullopt},
                 rank2});
  out.push_back({"rms_norm", {s.normal({3, 7}), s.normal({7})}, last});
  out.push_back({"rms_norm", {s.normal({3, 7}), std::nullopt}, last});
  out.push_back({"batch_norm",
                 {s.normal({2, 3, 4}), s.normal({3}), s.normal({3}), s.normal({3}), s.positive({3})},
                 {{"eps", 1e-3}}});
  out.push_back(
      {"batch_norm", {s.normal({2, 3}), std::nullopt, std::nullopt, s.normal({3}), s.positive({3})}, {{"eps", 1e-3}}});
  out.push_back(
      {"group_norm", {s.normal({2, 6, 3}), s.normal({6}), s.normal({6})}, {{"groups", int64_t{2}}, {"eps", 1e-3}}});
}

void add_losses(Source& s, std::vector<Sample>& out) {
  for (const char* reduction : {"mean", "sum", "none"}) {
    const bool none = std::string_view(reduction) == "none";
    const Attributes attributes = {{"reduction", std::string(reduction)}, {"ignore_index", int64_t{1}}};
    const Tensor target = values(DType::i64, {5}, {0, 1, 3, 2, 3});
    out.push_back({"nll_loss", {s.normal({5, 4}), target}, attributes});
    out.push_back({"cross_entropy", {s.normal({5, 4}), target}, attributes});
    out.push_back({"nll_loss_backward",
                   {none ? s.normal({5}) : s.normal({}), s.normal({5, 4}), target, s.positive({})},
                   attributes});
    out.push_back({"mse_loss", {s.normal({3, 4}), s.normal({3, 4})}, {{"reduction", std::string(reduction)}}});
  }
  out.push_back({"nll_loss", {s.normal({4}), values(DType::i64, {}, {2})}, {}});
}

void add_attention(Source& s, std::vector<Sample>& out) {
  const Attributes plain = {{"scale", 0.7}}, causal = {{"scale", 0.7}, {"causal", true}};
  const Attributes offset = {{"scale", 0.5}, {"causal", true}, {"causal_offset", int64_t{2}}};
  out.push_back(
      {"attention", {s.normal({2, 2, 3, 4}), s.normal({2, 2, 5, 4}), s.normal({2, 2, 5, 3}), std::nullopt}, plain});
  out.push_back(
      {"attention", {s.normal({1, 4, 3, 2}), s.normal({1, 2, 3, 2}), s.normal({1, 2, 3, 2}), std::nullopt}, causal});
  out.push_back({"attention",
                 {s.normal({1, 2, 3, 2}), s.normal({1, 1, 5, 2}), s.normal({1, 1, 5, 2}), s.normal({1, 3, 5})},
                 offset});
  const Attributes scale = {{"scale", 0.7}}, mask = {{"causal", true}, {"causal_offset", int64_t{1}}};
  out.push_back({"attention_scores", {s.normal({2, 2, 3, 4}), s.normal({2, 2, 5, 4})}, scale});
  out.push_back({"attention_scores", {s.normal({2, 6, 3, 2}), s.normal({2, 2, 5, 2})}, scale});
  out.push_back({"attention_of_scores", {s.normal({2, 2, 3, 5}), s.normal({2, 2, 5, 4})}, {}});
  out.push_back({"attention_of_scores", {s.normal({2, 6, 3, 5}), s.normal({2, 2, 5, 2})}, mask});
  const auto backward = [&](int64_t heads, int64_t kv_heads, int64_t q, int64_t k, std::optional<Tensor> bias,
                            const Attributes& attributes) {
    const Sample forward = {
        "attention",
        {s.normal({1, heads, q, 2}), s.normal({1, kv_heads, k, 2}), s.normal({1, kv_heads, k, 3}), std::move(bias)},
        attributes};
    const std::vector<Tensor> saved = *evaluate_dense(graph_of(forward), inputs_of(forward));
    const auto& in = forward.operands;
    out.push_back({"attention_backward",
                   {s.normal({1, heads, q, 3}), in[0], in[1], in[2], saved[0], saved[1], in[3]},
                   attributes});
  };
  backward(2, 2, 3, 5, std::nullopt, plain);
  backward(4, 2, 3, 3, std::nullopt, causal);
  backward(2, 1, 3, 5, s.normal({2, 3, 5}), offset);
}

}  // namespace

std::vector<Sample> op_samples() {
  Source source;
  std::vector<Sample> samples;
  for (const auto add : {add_pointwise, add_reductions, add_views, add_indexing, add_contractions, add_grouped_products,
                         add_convolutions, add_normalisations, add_losses, add_attention}) {
    add(source, samples);
  }
  return samples;
}

std::vector<Sample> special_samples() {
  const double nan = std::nan(""), infinity = INFINITY;
  const std::vector<double> numbers = {nan, infinity, -infinity, 0.0, -0.0, 2.5, -2.5, 0.5, -1, 700, -700};
  const auto count = static_cast<int64_t>(numbers.size());
  const Tensor column = values(DType::f64, {count, 1}, numbers), row = values(DType::f64, {count}, numbers);
  std::vector<Sample> samples;
  for (const char* op :
       {"neg",   "abs",        "sign",  "exp",        "expm1",        "log",         "log1p",       "sqrt",
        "rsqrt", "reciprocal", "sin",   "cos",        "tanh",         "erf",         "sigmoid",     "floor",
        "ceil",  "round",      "trunc", "is_nan",     "is_inf",       "logical_not", "relu",        "gelu",
        "silu",  "softplus",   "elu",   "leaky_relu", "hard_sigmoid", "hard_swish",  "log_sigmoid", "mish"}) {
    samples.push_back({op, {row}, {}});
  }
  for (const char* op : {"add", "sub", "mul", "div", "floor_div", "remainder", "fmod", "pow", "atan2", "minimum",
                         "maximum", "eq", "ne", "lt", "le", "gt", "ge"}) {
    samples.push_back({op, {column, row}, {}});
  }
  samples.push_back({"relu_backward", {row, row}, {}});
  samples.push_back({"cast", {row}, {{"dtype", DType::boolean}}});
  samples.push_back({"cast", {row}, {{"dtype", DType::f32}}});
  samples.push_back({"clamp", {row}, {{"min", -1.0}, {"max", 1.0}}});
  samples.push_back({"dropout_apply", {row, Tensor::zeros(DType::boolean, {count})}, {{"scale", 2.0}}});
  const Tensor rows = values(DType::f64, {6, 3},
                             {nan, 0, 1, infinity, 0, 1, -infinity, 0, 1, -infinity, -infinity, -infinity, infinity,
                              -infinity, 0, 700, 700, -700});
  for (const char* op : {"sum", "prod", "amax", "amin", "mean", "var", "norm2", "logsumexp"}) {
    samples.push_back({op, {rows}, {{"dims", Integers{1}}}});
  }
  for (const char* op : {"softmax", "log_softmax", "cumsum", "argsort", "argmax", "argmin"}) {
    samples.push_back({op, {rows}, {{"dim", int64_t{1}}}});
  }
  samples.push_back({"topk", {rows}, {{"dim", int64_t{0}}, {"k", int64_t{3}}}});
  // Torch's running mean makes NaN of an infinity where the definition makes infinity: not compared.
  const Tensor with_nan = values(DType::f64, {2, 3}, {nan, 0, 1, 700, 0, 1});
  samples.push_back(
      {"layer_norm", {with_nan, std::nullopt, std::nullopt}, {{"normalized_rank", int64_t{1}}, {"eps", 1e-5}}});
  samples.push_back({"var", {values(DType::f64, {1}, {3})}, {{"dims", Integers{0}}}});
  samples.push_back({"mean", {Tensor::zeros(DType::f64, {2, 0})}, {{"dims", Integers{1}}}});
  samples.push_back({"nll_loss", {values(DType::f64, {1, 2}, {-1, -2}), values(DType::i64, {1}, {-100})}, {}});
  return samples;
}

namespace {

/// The row's results, of what `operand` makes of each operand that is given. Throws, saying why, when they are not accepted.
std::vector<ValueId> results_of(const Sample& sample, GraphBuilder& b,
                                const std::function<ValueId(const Tensor&)>& operand) {
  std::vector<ValueId> operands;
  for (const std::optional<Tensor>& each : sample.operands) operands.push_back(each ? operand(*each) : k_none);
  std::vector<ValueId> results = b.ops(sample.op, operands, sample.attributes);
  if (!b.status().ok()) throw std::runtime_error(sample.op + ": " + b.status().message());
  return results;
}

ValueId input_like(Graph& graph, const Tensor& operand, DType dtype) {
  return graph.add_input({dtype, Shape(operand.dims.begin(), operand.dims.end()), {}});
}

}  // namespace

Graph graph_of(const Sample& sample) {
  Graph graph;
  GraphBuilder b(graph);
  graph.set_outputs(
      results_of(sample, b, [&](const Tensor& operand) { return input_like(graph, operand, operand.dtype); }));
  return graph;
}

Graph graph_behind_casts(const Sample& sample) {
  Graph graph;
  GraphBuilder b(graph);
  graph.set_outputs(results_of(sample, b, [&](const Tensor& operand) {
    const bool is_wide = operand.dtype == DType::f64;
    const ValueId input = input_like(graph, operand, is_wide ? DType::f64 : DType::f32);
    return b.cast(is_wide ? b.cast(input, DType::f32) : input, operand.dtype);
  }));
  return graph;
}

std::vector<Tensor> inputs_behind_casts(const Sample& sample) {
  std::vector<Tensor> inputs = inputs_of(sample);
  for (Tensor& input : inputs) {
    if (is_floating(input.dtype)) continue;
    Tensor fractional = Tensor::zeros(DType::f32, input.dims);
    for (int64_t i = 0; i < input.elements(); ++i) {
      const double value = input.at(i), lost = static_cast<double>((i * 7) % 10) / 11;
      fractional.set(i, value == 0 ? value : value + std::copysign(lost, value));
    }
    input = std::move(fractional);
  }
  return inputs;
}

Graph graph_around(const Sample& sample) {
  Graph graph;
  GraphBuilder b(graph);
  std::vector<ValueId> outputs;
  const std::vector<ValueId> results = results_of(sample, b, [&](const Tensor& operand) {
    const ValueId input = input_like(graph, operand, operand.dtype);
    return is_floating(operand.dtype) ? b.add(b.mul(input, 1.0), 0.0) : input;
  });
  for (const ValueId result : results) {
    std::vector<int64_t> reversed;
    Dim count(1);
    for (size_t d = b.shape(result).size(); d-- > 0;) {
      reversed.push_back(static_cast<int64_t>(d));
      count = count * b.shape(result)[d];
    }
    ValueId value = b.permute(result, reversed);
    if (is_floating(b.dtype(result))) value = b.mul(value, 2.0);
    outputs.push_back(b.reshape(value, {count}));
  }
  if (!b.status().ok()) throw std::runtime_error(sample.op + ": " + b.status().message());
  graph.set_outputs(outputs);
  return graph;
}

std::vector<Tensor> inputs_of(const Sample& sample) {
  std::vector<Tensor> inputs;
  for (const std::optional<Tensor>& operand : sample.operands) {
    if (operand) inputs.push_back(*operand);
  }
  return inputs;
}

}  // namespace kiln
