#include "backends/cpu/compile/emit/vector_math.h"

#include <gtest/gtest.h>
#include <llvm/IR/LLVMContext.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>

#include "backends/cpu/compile/emit/image.h"
#include "tests/backends/cpu/loaded_image.h"

namespace kiln::cpu {
namespace {

using Emit = llvm::Value* (*)(VectorMath&, llvm::Value*, llvm::Value*);
using Reference = long double (*)(long double, long double);

struct Function {
  const char* name;
  Emit emit;
  Reference reference;
  double ulp_f32, ulp_f64;
  double low, high;  // where ordinary arguments lie; special values are tried besides
  bool binary = false;
  double low2 = 0, high2 = 0;
};

#define UNARY(name) [](VectorMath& m, llvm::Value* x, llvm::Value*) { return m.name(x); }
#define BINARY(name) [](VectorMath& m, llvm::Value* x, llvm::Value* y) { return m.name(x, y); }

const Function k_functions[] = {
    {"exp", UNARY(exp), [](long double x, long double) { return std::exp(x); }, 2, 2, -110, 95},
    {"exp_far", UNARY(exp), [](long double x, long double) { return std::exp(x); }, 2, 2, -760, 720},
    {"exp2", UNARY(exp2), [](long double x, long double) { return std::exp2(x); }, 2, 2, -155, 130},
    {"expm1", UNARY(expm1), [](long double x, long double) { return std::expm1(x); }, 3, 3, -20, 90},
    {"expm1_near", UNARY(expm1), [](long double x, long double) { return std::expm1(x); }, 3, 3, -1, 1},
    {"log", UNARY(log), [](long double x, long double) { return std::log(x); }, 2, 2, 0, 1e6},
    {"log_near", UNARY(log), [](long double x, long double) { return std::log(x); }, 2, 2, 0.5, 2},
    {"log1p", UNARY(log1p), [](long double x, long double) { return std::log1p(x); }, 3, 4, -1, 1},
    {"log1p_far", UNARY(log1p), [](long double x, long double) { return std::log1p(x); }, 3, 4, 0, 1e8},
    {"tanh", UNARY(tanh), [](long double x, long double) { return std::tanh(x); }, 4, 4, -12, 12},
    {"tanh_near", UNARY(tanh), [](long double x, long double) { return std::tanh(x); }, 4, 4, -0.5, 0.5},
    {"sigmoid", UNARY(sigmoid), [](long double x, long double) { return 1 / (1 + std::exp(-x)); }, 4, 4, -90, 90},
    {"erf", UNARY(erf), [](long double x, long double) { return std::erf(x); }, 3, 4, -6.5, 6.5},
    {"erf_near", UNARY(erf), [](long double x, long double) { return std::erf(x); }, 3, 4, -1, 1},
    {"rsqrt", UNARY(rsqrt), [](long double x, long double) { return 1 / std::sqrt(x); }, 2, 2, 0, 1e6},
    {"sin", UNARY(sin), [](long double x, long double) { return std::sin(x); }, 1, 3, -1e3, 1e3},
    {"sin_far", UNARY(sin), [](long double x, long double) { return std::sin(x); }, 1, 3, -1e6, 1e6},
    {"cos", UNARY(cos), [](long double x, long double) { return std::cos(x); }, 1, 3, -1e3, 1e3},
    {"pow", BINARY(pow), [](long double x, long double y) { return std::pow(x, y); }, 1, 60, 0, 20, true, -30, 30},
    {"atan2", BINARY(atan2), [](long double y, long double x) { return std::atan2(y, x); }, 1, 3, -5, 5, true, -5, 5},
    {"fmod", BINARY(fmod), [](long double x, long double y) { return std::fmod(x, y); }, 0, 0, -1e6, 1e6, true, -9, 9},
};

/// Distance from `got` to the exact value, in units of the last place of T at the exact value.
template <typename T>
double ulp_error(T got, long double exact) {
  const T rounded = static_cast<T>(exact);
  if (std::isnan(rounded)) return std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
  if (got == rounded) return 0;
  if (!std::isfinite(got) || !std::isfinite(rounded)) return std::numeric_limits<double>::infinity();
  const T magnitude = std::max(std::fabs(rounded), std::numeric_limits<T>::min());
  const T ulp = std::nextafter(magnitude, std::numeric_limits<T>::infinity()) - magnitude;
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / ulp);
}

template <typename T>
std::vector<T> special_values() {
  using Limits = std::numeric_limits<T>;
  const T list[] = {0,
                    Limits::infinity(),
                    Limits::quiet_NaN(),
                    Limits::max(),
                    Limits::min(),
                    Limits::denorm_min(),
                    Limits::epsilon(),
                    1,
                    T(0.5),
                    2,
                    3,
                    T(1.5),
                    20,
                    100,
                    T(88.72),
                    T(709.7),
                    T(1e-5),
                    T(1e5)};
  std::vector<T> result;
  for (const T value : list) {
    result.push_back(value);
    result.push_back(-value);
  }
  return result;
}

class VectorMathTest : public testing::TestWithParam<const CpuTarget*> {
 protected:
  template <typename T>
  std::vector<T> evaluate(const Function& function, int lanes, std::vector<T> x, std::vector<T> y) {
    while (x.size() % static_cast<size_t>(lanes) != 0) {
      x.push_back(1);
      y.push_back(1);
    }
    llvm::LLVMContext context;
    llvm::Module module("test", context);
    Emitter e(module, *GetParam());
    VectorMath math(e);
    const Emitter::Entry entry = e.begin_entry();
    llvm::Type* type = Emitter::vector(sizeof(T) == 4 ? e.f32() : e.f64(), lanes);
    Values pointers;
    for (uint32_t n = 0; n < 3; ++n) pointers.push_back(e.buffer(entry, n));
    e.loop(entry.first_task, entry.last_task, lanes, [&](llvm::Value* i) {
      llvm::Value* offset = e.ir.CreateMul(i, e.index(sizeof(T)));
      llvm::Value* result = function.emit(math, e.load(type, e.advance(pointers[0], offset)),
                                          e.load(type, e.advance(pointers[1], offset)));
      e.store(result, e.advance(pointers[2], offset));
    });
    e.ir.CreateRetVoid();
    auto image = make_image(module, *GetParam());
    EXPECT_TRUE(image.ok()) << function.name << ": " << image.status().to_string();
    std::vector<T> out(x.size(), -12345);
    if (!image.ok() || !host_runs(*GetParam())) return {};
    image->tasks = x.size();
    LoadedImage(*image).run({x.data(), y.data(), out.data()});
    return out;
  }

  template <typename T>
  void check(const Function& function, int lanes) {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> first(function.low, function.high), second(function.low2, function.high2);
    std::vector<T> x, y;
    for (const T a : special_values<T>()) {
      for (const T b : special_values<T>()) {
        x.push_back(a);
        y.push_back(b);
        if (!function.binary) break;
      }
    }
    const int samples = function.binary && sizeof(T) == 8 ? 20'000 : 200'000;
    for (int i = 0; i < samples; ++i) {
      x.push_back(static_cast<T>(first(random)));
      y.push_back(static_cast<T>(second(random)));
    }
    const std::vector<T> got = evaluate(function, lanes, x, y);
    if (got.empty()) return;
    double worst = 0;
    const double allowed = sizeof(T) == 4 ? function.ulp_f32 : function.ulp_f64;
    for (size_t i = 0; i < x.size(); ++i) {
      // The reduction of far circular arguments is not promised.
      const bool far = function.name[0] == 's' && function.name[1] == 'i' && function.name[2] == 'n';
      if ((far || function.name[0] == 'c') && std::fabs(x[i]) > T(1e6) && std::isfinite(x[i])) {
        ASSERT_LE(std::fabs(got[i]), 1);
        continue;
      }
      const long double exact = function.reference(x[i], y[i]);
      double error = ulp_error(got[i], exact);
      if (std::string_view(function.name) == "pow" && sizeof(T) == 8 && std::isfinite(got[i]) && exact != 0) {
        error /= 2 + 2 * static_cast<double>(std::fabs(std::log(std::fabs(exact))));
        ASSERT_LE(error, 1) << "pow(" << x[i] << ", " << y[i] << ") = " << got[i];
        error = 0;
      }
      ASSERT_LE(error, allowed) << function.name << "(" << x[i] << ", " << y[i] << ") = " << got[i] << ", exactly "
                                << exact;
      if (exact == 0) {
        ASSERT_EQ(std::signbit(got[i]), std::signbit(exact)) << x[i] << " " << y[i];
      }
      worst = std::max(worst, error);
    }
    std::printf("%-12s f%d: %.2f ulp\n", function.name, static_cast<int>(sizeof(T) * 8), worst);
  }
};

TEST_P(VectorMathTest, f32_functions_keep_their_bounds) {
  for (const Function& function : k_functions) {
    SCOPED_TRACE(function.name);
    check<float>(function, GetParam()->vector_bytes / 4);
  }
}

TEST_P(VectorMathTest, f64_functions_keep_their_bounds) {
  for (const Function& function : k_functions) {
    SCOPED_TRACE(function.name);
    check<double>(function, GetParam()->vector_bytes / 8);
  }
}

TEST_P(VectorMathTest, scalars_are_as_good_as_vectors) {
  for (const Function& function : k_functions) {
    SCOPED_TRACE(function.name);
    check<float>(function, 1);
  }
}

std::vector<const CpuTarget*> all_targets() {
  std::vector<const CpuTarget*> result;
  for (const CpuTarget& target : ladder()) result.push_back(&target);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Targets, VectorMathTest, testing::ValuesIn(all_targets()), [](const auto& info) {
  std::string name(info.param->name);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace kiln::cpu
