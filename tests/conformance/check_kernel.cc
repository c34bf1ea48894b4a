#include "tests/conformance/check_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backends/reference/number.h"
#include "backends/reference/reference.h"
#include "tests/conformance/guarded_buffer.h"

namespace kiln::conformance {
namespace {

using Buffers = std::vector<std::unique_ptr<GuardedBuffer>>;

void fill(const BufferSpec& spec, GuardedBuffer& buffer, std::mt19937_64& random, const CheckOptions& options,
          int64_t index_bound) {
  std::normal_distribution<double> normal(0, 1);
  std::uniform_int_distribution<int> small(-9, 9), one_in_twenty(0, 19), kind(0, 4);
  const double infinity = std::numeric_limits<double>::infinity();
  const double specials[] = {std::nan(""), infinity, -infinity, 0.0, -0.0};
  for (int64_t i = 0; i < spec.elements; ++i) {
    Number value{normal(random), small(random)};
    if (options.special_values && one_in_twenty(random) == 0) value.real = specials[kind(random)];
    if (index_bound > 0) {
      value.integer = std::uniform_int_distribution<int64_t>(0, index_bound - 1)(random);
      if (options.bad_indices && one_in_twenty(random) == 0) value.integer = kind(random) < 2 ? -1 : index_bound;
    }
    if (spec.dtype == DType::boolean) value.integer &= 1;
    store_number(spec.dtype, buffer.data(), i, value);
  }
}

Buffers make_buffers(const KernelSpec& spec) {
  Buffers buffers;
  for (const BufferSpec& buffer : spec.buffers) {
    buffers.push_back(std::make_unique<GuardedBuffer>(static_cast<size_t>(buffer.elements) * size_of(buffer.dtype)));
  }
  return buffers;
}

std::vector<void*> pointers(Buffers& buffers) {
  std::vector<void*> result;
  for (const auto& buffer : buffers) result.push_back(buffer->data());
  return result;
}

bool close(DType dtype, Number got, Number expected, double tolerance, double scale) {
  if (!is_floating(dtype)) return got.integer == expected.integer;
  if (std::isnan(expected.real)) return std::isnan(got.real);
  if (std::isinf(expected.real)) return got.real == expected.real;
  return std::fabs(got.real - expected.real) <= tolerance * std::max(std::fabs(expected.real), scale);
}

/// The size of what the values of a buffer are made of: errors are in its proportion.
double scale_of(const BufferSpec& spec, GuardedBuffer& buffer) {
  double sum = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < spec.elements; ++i) {
    const double value = std::fabs(load_number(spec.dtype, buffer.data(), i).real);
    if (!std::isfinite(value)) continue;
    sum += value;
    ++finite;
  }
  return finite == 0 ? 1 : std::max(1e-3, sum / static_cast<double>(finite));
}

void compare(const KernelSpec& spec, Buffers& got, Buffers& expected, const CheckOptions& options) {
  for (size_t b = 0; b < spec.buffers.size(); ++b) {
    const BufferSpec& buffer = spec.buffers[b];
    ASSERT_TRUE(got[b]->intact()) << "buffer " << b << " was written before its start";
    const double tolerance = tolerance_of(buffer.dtype) * options.tolerance_factor;
    const double scale = scale_of(buffer, *expected[b]);
    for (int64_t i = 0; i < buffer.elements; ++i) {
      const Number value = load_number(buffer.dtype, got[b]->data(), i);
      const Number wanted = load_number(buffer.dtype, expected[b]->data(), i);
      const bool exact = buffer.role == BufferRole::input;
      ASSERT_TRUE(close(buffer.dtype, value, wanted, exact ? 0 : tolerance, scale))
          << "buffer " << b << " (" << to_string(buffer.dtype) << ") element " << i << " of " << buffer.elements << ": "
          << (is_floating(buffer.dtype) ? value.real : static_cast<double>(value.integer)) << ", expected "
          << (is_floating(buffer.dtype) ? wanted.real : static_cast<double>(wanted.integer));
    }
  }
}

LaunchStatus run_in_slices(const Executable& executable, const std::vector<void*>& buffers, std::mt19937_64& random) {
  std::vector<uint8_t> workspace(executable.workspace_bytes() + 64, 0xA5);
  auto* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) & ~uintptr_t{63});
  std::vector<std::pair<uint64_t, uint64_t>> slices;
  for (uint64_t first = 0; first < executable.tasks();) {
    const uint64_t last = std::min(executable.tasks(), first + 1 + random() % 9);
    slices.emplace_back(first, last);
    first = last;
  }
  std::shuffle(slices.begin(), slices.end(), random);
  auto status = LaunchStatus::ok;
  for (const auto& [first, last] : slices) executable.run(buffers.data(), aligned, &status, first, last);
  return status;
}

/// Executable memory that is never writable at the same time.
class SealedCode {
 public:
  explicit SealedCode(const std::vector<uint8_t>& code) : m_size(std::max<size_t>(1, code.size())) {
    m_address = mmap(nullptr, m_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(m_address, MAP_FAILED);
    std::memcpy(m_address, code.data(), code.size());
    EXPECT_EQ(mprotect(m_address, m_size, PROT_READ | PROT_EXEC), 0);
  }
  ~SealedCode() { munmap(m_address, m_size); }
  SealedCode(const SealedCode&) = delete;
  SealedCode& operator=(const SealedCode&) = delete;
  std::span<const uint8_t> bytes(size_t size) const { return {static_cast<const uint8_t*>(m_address), size}; }

 private:
  size_t m_size;
  void* m_address;
};

}  // namespace

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 2e-3;  // two units of its 11 bits
    case DType::bf16:
      return 1.6e-2;  // two units of its 8 bits
    case DType::f32:
      return 4e-6;  // some tens of units of its 24 bits
    case DType::f64:
      return 1e-13;
    default:
      return 0;
  }
}

bool check_kernel(const BackendUnderTest& backend, const KernelSpec& spec, std::mt19937_64& random,
                  const CheckOptions& options) {
  const Status valid = validate(spec);
  EXPECT_TRUE(valid.ok()) << valid.to_string();
  const Status claimed = backend.compile->claims(spec, backend.target);
  EXPECT_TRUE(claimed.ok()) << claimed.to_string();
  if (!valid.ok() || !claimed.ok()) return true;

  Buffers inputs = make_buffers(spec);
  for (size_t b = 0; b < spec.buffers.size(); ++b) {
    if (spec.buffers[b].role == BufferRole::output) continue;
    fill(spec.buffers[b], *inputs[b], random, options, b < options.index_bounds.size() ? options.index_bounds[b] : 0);
  }
  const auto copy = [&] {
    Buffers buffers = make_buffers(spec);
    for (size_t b = 0; b < buffers.size(); ++b) std::ranges::copy(inputs[b]->bytes(), buffers[b]->data());
    return buffers;
  };
  Buffers expected = copy();
  const Status reference = run_reference(spec, pointers(expected));
  EXPECT_TRUE(reference.ok() || reference.code() == StatusCode::out_of_range) << reference.to_string();
  const LaunchStatus wanted = reference.ok() ? LaunchStatus::ok : LaunchStatus::index_out_of_range;

  const std::vector<Schedule> schedules = backend.compile->candidates(spec, backend.target);
  EXPECT_FALSE(schedules.empty());
  for (const Schedule& schedule : schedules) {
    SCOPED_TRACE(kernel_name(spec) + ", " + schedule.description);
    const auto image = backend.compile->compile(spec, schedule, backend.target);
    EXPECT_TRUE(image.ok()) << image.status().to_string();
    if (!image.ok()) return true;
    if (!backend.host_runs()) continue;
    const SealedCode code(image->code);
    const auto executable = backend.runtime->load(*image, code.bytes(image->code.size()));
    EXPECT_TRUE(executable.ok()) << executable.status().to_string();
    if (!executable.ok()) return true;
    Buffers got = copy();
    const LaunchStatus status = run_in_slices(**executable, pointers(got), random);
    EXPECT_EQ(status, wanted);
    compare(spec, got, expected, options);
    if (testing::Test::HasFailure()) return true;
  }
  return backend.host_runs();
}

}  // namespace kiln::conformance
