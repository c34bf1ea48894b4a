// How fast are loops kernels of the shapes that training GPT-2 has? Prints one row per kernel and thread count:
// microseconds, GB/s of the bytes that must move, compile time. The same rows from torch: bench/loops_bench.py.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <thread>

#include "backends/cpu/compile/backend.h"
#include "base/ceil_div.h"
#include "tests/backends/cpu/loaded_image.h"
#include "tests/conformance/loops_cases.h"

namespace kiln {
namespace {

using conformance::column_sums;
using conformance::LoopsBuilder;
using conformance::row_softmax;
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

KernelSpec add(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 2);
  const ExprId x = b.input(DType::f32, {columns, 1}), y = b.input(DType::f32, {columns, 1});
  b.output(b.op(ScalarOp::add, x, y), {columns, 1});
  return b.build();
}

/// GPT-2's form, by tanh.
KernelSpec gelu(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 2);
  const auto real = [&](double value) { return b.real(DType::f32, value); };
  const ExprId x = b.input(DType::f32, {columns, 1});
  const ExprId cube = b.op(ScalarOp::mul, b.op(ScalarOp::mul, x, x), x);
  const ExprId inner = b.op(ScalarOp::add, x, b.op(ScalarOp::mul, cube, real(0.044715)));
  const ExprId t = b.op(ScalarOp::tanh, b.op(ScalarOp::mul, inner, real(0.7978845608028654)));
  b.output(b.op(ScalarOp::mul, b.op(ScalarOp::mul, x, real(0.5)), b.op(ScalarOp::add, t, real(1))), {columns, 1});
  return b.build();
}

KernelSpec layer_norm(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 1);
  const ExprId x = b.input(DType::f32, {columns, 1});
  const ExprId weight = b.input(DType::f32, {0, 1}), bias = b.input(DType::f32, {0, 1});
  const ExprId share = b.real(DType::f32, 1.0 / static_cast<double>(columns));
  const uint32_t total = b.reduce(Combiner::sum, x);
  b.next_stage();
  const ExprId mean = b.op(ScalarOp::mul, b.reduced(total), share);
  const ExprId centred = b.op(ScalarOp::sub, x, mean);
  const uint32_t squares = b.reduce(Combiner::sum, b.op(ScalarOp::mul, centred, centred));
  b.next_stage();
  const ExprId variance = b.op(ScalarOp::mul, b.reduced(squares), share);
  const ExprId scale = b.op(ScalarOp::rsqrt, b.op(ScalarOp::add, variance, b.real(DType::f32, 1e-5)));
  b.output(mean, {1, 0});
  b.output(scale, {1, 0});
  b.next_stage(true);
  b.output(b.op(ScalarOp::add, b.op(ScalarOp::mul, b.op(ScalarOp::mul, centred, scale), weight), bias), {columns, 1});
  return b.build();
}

/// The gradient of the input, from mean and scale saved per row.
KernelSpec layer_norm_backward(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 1);
  const ExprId gradient = b.input(DType::f32, {columns, 1}), x = b.input(DType::f32, {columns, 1});
  const ExprId weight = b.input(DType::f32, {0, 1});
  const ExprId mean = b.input(DType::f32, {1, 0}), scale = b.input(DType::f32, {1, 0});
  const ExprId share = b.real(DType::f32, 1.0 / static_cast<double>(columns));
  const ExprId weighted = b.op(ScalarOp::mul, gradient, weight);
  const ExprId normal = b.op(ScalarOp::mul, b.op(ScalarOp::sub, x, mean), scale);
  const uint32_t first = b.reduce(Combiner::sum, weighted);
  const uint32_t second = b.reduce(Combiner::sum, b.op(ScalarOp::mul, weighted, normal));
  b.next_stage();
  const ExprId mean_of_first = b.op(ScalarOp::mul, b.reduced(first), share);
  const ExprId mean_of_second = b.op(ScalarOp::mul, b.reduced(second), share);
  const ExprId rest =
      b.op(ScalarOp::sub, b.op(ScalarOp::sub, weighted, mean_of_first), b.op(ScalarOp::mul, normal, mean_of_second));
  b.output(b.op(ScalarOp::mul, rest, scale), {columns, 1});
  return b.build();
}

KernelSpec log_softmax(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 1);
  const ExprId x = b.input(DType::f32, {columns, 1});
  const uint32_t maximum = b.reduce(Combiner::maximum, x);
  b.next_stage();
  const ExprId shifted = b.op(ScalarOp::sub, x, b.reduced(maximum));
  const uint32_t sum = b.reduce(Combiner::sum, b.op(ScalarOp::exp, shifted));
  b.next_stage();
  b.output(b.op(ScalarOp::sub, shifted, b.op(ScalarOp::log, b.reduced(sum))), {columns, 1});
  return b.build();
}

KernelSpec zero(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 2);
  b.output(b.real(DType::f32, 0), {columns, 1});
  return b.build();
}

KernelSpec scatter_rows(int64_t rows, int64_t columns, int64_t bound) {
  LoopsBuilder b({columns, rows}, 1);
  const ExprId index = b.input(DType::i64, {0, 1});
  const ExprId gradient = b.input(DType::f32, {1, columns});
  const uint32_t table = b.buffer(DType::f32, bound * columns, BufferRole::inout);
  b.store(gradient, b.access(table, {1, 0}, 0, {{index, columns, bound}}), StoreMode::add);
  return b.build();
}

KernelSpec transpose(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 2);
  b.output(b.input(DType::f32, {1, rows}), {columns, 1});
  return b.build();
}

class Runner {
 public:
  Runner(const KernelSpec& spec, const Image& image) : m_loaded(image) {
    for (const BufferSpec& buffer : spec.buffers) {
      const size_t size = buffer.bytes();
      auto* data = static_cast<float*>(std::aligned_alloc(64, round_up(size, 64)));
      std::memset(data, 0, size);
      for (int64_t i = 0; buffer.dtype == DType::f32 && i < buffer.elements; ++i) {
        data[i] = static_cast<float>(i % 1009) / 500 - 1;
      }
      for (int64_t i = 0; buffer.dtype == DType::i64 && i < buffer.elements; ++i) {
        reinterpret_cast<int64_t*>(data)[i] = i * 37 % 50257;
      }
      m_buffers.push_back(data);
      m_bytes += static_cast<double>(size);
    }
  }
  ~Runner() {
    for (void* buffer : m_buffers) std::free(buffer);
  }

  double bytes() const { return m_bytes; }
  /// The least of some runs, in microseconds.
  double time(int threads) const {
    double best = 1e30;
    const auto start = Clock::now();
    for (int round = 0; round < 200 && (round < 3 || us_since(start) < 3e5); ++round) {
      std::atomic<uint64_t> next{0};
      std::atomic<int> ready{0};
      const auto work = [&] {
        auto status = LaunchStatus::ok;
        for (uint64_t t = next++; t < m_loaded.executable().tasks(); t = next++) {
          m_loaded.executable().run(m_buffers.data(), nullptr, &status, t, t + 1, {});
        }
      };
      // The helper spins until it may begin, as a pool's threads do that worked a moment ago.
      std::thread helper;
      if (threads == 2) {
        helper = std::thread([&] {
          ready = 1;
          while (ready != 2) continue;
          work();
          ready = 3;
        });
        while (ready != 1) continue;
      }
      const auto begin = Clock::now();
      ready = 2;
      work();
      while (threads == 2 && ready != 3) continue;
      const double us = us_since(begin);
      if (helper.joinable()) helper.join();
      best = std::min(best, us);
    }
    return best;
  }

 private:
  cpu::LoadedImage m_loaded;
  std::vector<void*> m_buffers;
  double m_bytes = 0;
};

void bench(std::string_view name, const KernelSpec& spec, bool all_candidates) {
  const cpu::CpuCompileBackend backend;
  const Target target = cpu::host_targets().front();
  for (const Schedule& schedule : default_candidates(backend, spec, target)) {
    cpu::ImageReport report;
    const auto start = Clock::now();
    const auto image = backend.compile(spec, schedule, target, &report);
    const double compile_ms = us_since(start) / 1000;
    if (!image.ok()) {
      fmt::print("{}: {}\n", name, image.status().to_string());
      return;
    }
    const Runner runner(spec, *image);
    const double one = runner.time(1), two = runner.time(2);
    fmt::print(
        "{:22} {:8.0f} us {:6.1f} GB/s {:8.0f} us on 2 threads, {:2} tasks, compiled in {:5.2f} ms, {} spills, {}\n",
        name, one, runner.bytes() / one / 1e3, two, image->tasks, compile_ms, report.hot_spills, schedule.description);
    if (!all_candidates) return;
  }
}

}  // namespace
}  // namespace kiln

int main(int argc, char**) {
  using namespace kiln;
  const bool all = argc > 1;
  bench("warm up", add(8, 8), false);
  bench("add 512x3072", add(512, 3072), all);
  bench("gelu 512x3072", gelu(512, 3072), all);
  bench("layer_norm 512x768", layer_norm(512, 768), all);
  bench("layer_norm_bw 512x768", layer_norm_backward(512, 768), all);
  bench("softmax 512x50257", row_softmax(DType::f32, 512, 50257), all);
  bench("log_softmax 512x50257", log_softmax(512, 50257), all);
  bench("column_sum 512x3072", column_sums(DType::f32, 512, 3072), all);
  bench("column_sum 512x768", column_sums(DType::f32, 512, 768), all);
  bench("zero 50257x768", zero(50257, 768), all);
  bench("scatter 512x768", scatter_rows(512, 768, 50257), all);
  bench("transpose 512x768", transpose(512, 768), all);
}
