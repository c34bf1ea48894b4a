// Runs a model that `kiln export` or kiln.export wrote: no Python, no daemon, no compiler. Integers of the inputs are 0, 1, 2, …
// up to a limit, other elements are a fixed wave.
//
//   run_export FILE [limit]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "client/include/kiln.hpp"

using kiln::api::Exported;
using Clock = std::chrono::steady_clock;

namespace {

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Elements from a tensor's first to its last, gaps included.
size_t span_of(const Exported::Tensor& tensor) {
  size_t last = 0;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == 0) return 0;
    last += static_cast<size_t>((tensor.shape[i] - 1) * tensor.strides[i]);
  }
  return last + 1;
}

size_t bytes_of(const std::string& dtype) {
  if (dtype == "i64" || dtype == "f64") return 8;
  if (dtype == "i32" || dtype == "f32") return 4;
  return dtype == "f16" || dtype == "bf16" ? 2 : 1;
}

template <typename T, typename Value>
void fill(std::vector<std::byte>& memory, Value value) {
  for (size_t i = 0; i * sizeof(T) < memory.size(); ++i) {
    const T element = static_cast<T>(value(i));
    std::memcpy(memory.data() + i * sizeof(T), &element, sizeof(T));
  }
}

std::vector<std::byte> make_input(const Exported::Tensor& tensor, size_t limit) {
  std::vector<std::byte> memory(span_of(tensor) * bytes_of(tensor.dtype));
  const auto count = [&](size_t i) { return i % limit; };
  const auto wave = [](size_t i) { return std::sin(static_cast<double>(i)); };
  if (tensor.dtype == "i64") fill<int64_t>(memory, count);
  if (tensor.dtype == "i32") fill<int32_t>(memory, count);
  if (tensor.dtype == "f32") fill<float>(memory, wave);
  if (tensor.dtype == "f64") fill<double>(memory, wave);
  return memory;  // zeros, of other dtypes
}

void print(const Exported::Tensor& tensor, const std::vector<std::byte>& memory) {
  std::printf("%s: %s[", tensor.name.c_str(), tensor.dtype.c_str());
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    std::printf("%s%lld", i ? ", " : "", static_cast<long long>(tensor.shape[i]));
  }
  std::printf("]");
  if (tensor.dtype == "f32") {
    for (size_t i = 0; i < std::min<size_t>(4, memory.size() / sizeof(float)); ++i) {
      float element = 0;
      std::memcpy(&element, memory.data() + i * sizeof element, sizeof element);
      std::printf(" %.6g", static_cast<double>(element));
    }
  }
  std::printf("\n");
}

void run(const char* path, size_t limit) {
  const auto start = Clock::now();
  const Exported model(path);
  const double loaded_ms = milliseconds_since(start);
  std::vector<std::vector<std::byte>> given, made;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const auto& tensor : model.inputs()) inputs.push_back(given.emplace_back(make_input(tensor, limit)).data());
  const auto results = model.outputs();
  for (const auto& tensor : results) {
    outputs.push_back(made.emplace_back(span_of(tensor) * bytes_of(tensor.dtype)).data());
  }
  const auto begin = Clock::now();
  model.run(0, inputs, outputs, std::max(1u, std::thread::hardware_concurrency()));
  std::printf("%s: loaded in %.1f ms, first result after %.1f ms more\n", model.target().c_str(), loaded_ms,
              milliseconds_since(begin));
  for (size_t i = 0; i < results.size(); ++i) print(results[i], made[i]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "run_export FILE [limit]\n");
    return 2;
  }
  try {
    run(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 100);
    return 0;
  } catch (const kiln::api::Error& error) {
    std::fprintf(stderr, "run_export: %s: %s\n", kiln_code_name(error.code()), error.what());
    return 1;
  }
}
