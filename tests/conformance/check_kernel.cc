#include "tests/conformance/check_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backends/reference/number.h"
#include "backends/reference/reference.h"
#include "tests/conformance/guarded_buffer.h"
#include "tests/conformance/sealed_code.h"

namespace kiln::conformance {
namespace {

using Buffers = std::vector<std::unique_ptr<GuardedBuffer>>;

/// NaN, infinities and zeros; of an integer dtype its least and greatest numbers.
Number special_value(DType dtype, int kind) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double reals[] = {std::nan(""), infinity, -infinity, 0.0, -0.0};
  const int64_t least = INT64_MIN >> (64 - 8 * size_of(dtype));
  const int64_t integers[] = {least, ~least, least + 1, -1, 0};
  return {reals[kind], integers[kind]};
}

void fill(const BufferSpec& spec, GuardedBuffer& buffer, std::mt19937_64& random, const CheckOptions& options,
          int64_t index_bound) {
  std::normal_distribution<double> normal(0, 1);
  std::uniform_int_distribution<int> small(-9, 9), one_in_twenty(0, 19), kind(0, 4);
  for (int64_t i = 0; i < spec.elements; ++i) {
    Number value{normal(random), small(random)};
    if (options.special_values && one_in_twenty(random) == 0) value = special_value(spec.dtype, kind(random));
    if (index_bound > 0) {
      value.integer = std::uniform_int_distribution<int64_t>(0, index_bound - 1)(random);
      if (options.bad_indices && one_in_twenty(random) == 0) value.integer = kind(random) < 2 ? -1 : index_bound;
    }
    if (spec.dtype == DType::boolean) value.integer &= 1;
    store_number(spec.dtype, buffer.data(), i, value);
  }
}

/// With contents that no kernel gives: NaN, a truth value that is neither 0 nor 1.
Buffers make_buffers(const KernelSpec& spec, const CheckOptions& options) {
  constexpr uint8_t k_nan = 0xFF;  // in each byte
  Buffers buffers;
  for (const BufferSpec& buffer : spec.buffers) {
    const size_t element = size_of(buffer.dtype), bytes = buffer.bytes();
    const size_t slack = options.off_by_an_element ? 16 - (bytes + element) % 16 : 0;
    buffers.push_back(std::make_unique<GuardedBuffer>(bytes, slack));
    if (is_floating(buffer.dtype)) std::ranges::fill(buffers.back()->bytes(), k_nan);
  }
  return buffers;
}

std::vector<void*> pointers(Buffers& buffers) {
  std::vector<void*> result;
  for (const auto& buffer : buffers) result.push_back(buffer->data());
  return result;
}

bool close(Number got, Number expected, double tolerance, double scale) {
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

/// What was computed in the accumulator and rounded once.
double tolerance_of(DType dtype, const CheckOptions& options) {
  const DType accumulator = accumulator_of(dtype);
  const double computed = options.tolerance_factor * conformance::tolerance_of(accumulator);
  return accumulator == dtype || computed == 0 ? computed : computed + conformance::tolerance_of(dtype);
}

void compare(const KernelSpec& spec, Buffers& got, Buffers& expected, const CheckOptions& options) {
  for (size_t b = 0; b < spec.buffers.size(); ++b) {
    const BufferSpec& buffer = spec.buffers[b];
    ASSERT_TRUE(got[b]->intact()) << "buffer " << b << " was written outside of its ends";
    const double tolerance = buffer.role == BufferRole::input ? 0 : tolerance_of(buffer.dtype, options);
    const double scale = scale_of(buffer, *expected[b]);
    const size_t bytes = size_of(buffer.dtype);
    for (int64_t i = 0; i < buffer.elements; ++i) {
      const Number value = load_number(buffer.dtype, got[b]->data(), i);
      const Number wanted = load_number(buffer.dtype, expected[b]->data(), i);
      const auto at = static_cast<size_t>(i) * bytes;
      const bool is_same = std::memcmp(got[b]->data() + at, expected[b]->data() + at, bytes) == 0;
      ASSERT_TRUE(is_same || (is_floating(buffer.dtype) && close(value, wanted, tolerance, scale)))
          << "buffer " << b << " (" << to_string(buffer.dtype) << ") element " << i << " of " << buffer.elements << ": "
          << (is_floating(buffer.dtype) ? value.real : static_cast<double>(value.integer)) << ", expected "
          << (is_floating(buffer.dtype) ? wanted.real : static_cast<double>(wanted.integer));
    }
  }
}

LaunchStatus run_in_slices(const HostExecutable& executable, const std::vector<void*>& buffers,
                           std::span<const int64_t> extents, std::mt19937_64& random) {
  std::vector<uint8_t> workspace(executable.workspace_bytes() + 64, 0xA5);
  uint8_t* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  std::vector<std::pair<uint64_t, uint64_t>> slices;
  const uint64_t tasks = launch_tasks(executable.tasks(), extents);
  for (uint64_t first = 0; first < tasks;) {
    const uint64_t last = std::min(tasks, first + 1 + random() % 9);
    slices.emplace_back(first, last);
    first = last;
  }
  std::shuffle(slices.begin(), slices.end(), random);
  auto status = LaunchStatus::ok;
  for (const auto& [first, last] : slices) executable.run(buffers.data(), aligned, &status, first, last, extents);
  return status;
}

/// Memory of a device with a red zone on both sides, over a buffer of the host, and aligned no better than that one.
class DeviceBuffer {
 public:
  DeviceBuffer(Device& device, Queue& queue, GuardedBuffer& host) : m_device(device), m_queue(queue), m_host(host) {
    m_start = k_red_zone + reinterpret_cast<uintptr_t>(host.data()) % k_alignment;
    m_bytes.assign(m_start + host.size() + k_red_zone, k_poison);
    std::ranges::copy(host.bytes(), content().begin());
    const auto memory = device.allocate(m_bytes.size());
    EXPECT_TRUE(memory.ok()) << memory.status().to_string();
    m_memory = memory.ok() ? *memory : nullptr;
    EXPECT_TRUE(queue.upload(m_memory, m_bytes.data(), m_bytes.size()).ok());
  }
  ~DeviceBuffer() { m_device.release(m_memory); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return static_cast<uint8_t*>(m_memory) + m_start; }
  /// Into the buffer of the host; what was written outside is a failure.
  void fetch() {
    EXPECT_TRUE(m_queue.download(m_bytes.data(), m_memory, m_bytes.size()).ok());
    EXPECT_TRUE(m_queue.synchronise().ok());
    const auto is_poison = [](uint8_t byte) { return byte == k_poison; };
    EXPECT_TRUE(std::ranges::all_of(std::span(m_bytes).first(m_start), is_poison)) << "written before the buffer";
    EXPECT_TRUE(std::ranges::all_of(std::span(m_bytes).last(k_red_zone), is_poison)) << "written behind the buffer";
    std::ranges::copy(content(), m_host.data());
  }

 private:
  static constexpr size_t k_red_zone = 1024, k_alignment = 256;
  static constexpr uint8_t k_poison = 0xA5;

  std::span<uint8_t> content() { return std::span(m_bytes).subspan(m_start, m_host.size()); }

  Device& m_device;
  Queue& m_queue;
  GuardedBuffer& m_host;
  size_t m_start = 0;
  std::vector<uint8_t> m_bytes;
  void* m_memory = nullptr;
};

/// The whole grid on a queue of its own, over copies of `buffers`, which it leaves as the device left them.
LaunchStatus run_on_device(Device& device, const DeviceExecutable& executable, const Buffers& buffers,
                           std::span<const int64_t> extents) {
  const auto queue = device.create_queue();
  EXPECT_TRUE(queue.ok()) << queue.status().to_string();
  if (!queue.ok()) return LaunchStatus::ok;
  constexpr uint64_t k_workspace_alignment = 64;
  const uint64_t units = (executable.workspace_bytes() + k_workspace_alignment - 1) / k_workspace_alignment;
  GuardedBuffer workspace(units * k_workspace_alignment), status(sizeof(LaunchStatus));
  std::ranges::fill(status.bytes(), uint8_t{0});
  std::vector<std::unique_ptr<DeviceBuffer>> copies;
  std::vector<void*> pointers;
  for (const auto& buffer : buffers) {
    copies.push_back(std::make_unique<DeviceBuffer>(device, **queue, *buffer));
    pointers.push_back(copies.back()->data());
  }
  DeviceBuffer device_workspace(device, **queue, workspace), device_status(device, **queue, status);
  const Status launched =
      executable.launch(**queue, pointers.data(), device_workspace.data(), device_status.data(), extents);
  EXPECT_TRUE(launched.ok()) << launched.to_string();
  for (const auto& copy : copies) copy->fetch();
  device_workspace.fetch();
  device_status.fetch();
  auto result = LaunchStatus::ok;
  std::memcpy(&result, status.data(), sizeof result);
  return result;
}

/// Gradients of attention are of one forward pass: its results and sums, which the reference makes.
void run_forward(const KernelSpec& spec, Buffers& inputs) {
  const auto* backward = std::get_if<AttentionBackwardSpec>(&spec.kernel);
  if (backward == nullptr) return;
  KernelSpec forward{spec.buffers, backward->forward};
  for (const Access& result : {backward->forward.out, backward->forward.lse}) {
    forward.buffers[result.buffer].role = BufferRole::output;
  }
  const Status done = run_reference(forward, pointers(inputs));
  EXPECT_TRUE(done.ok()) << done.to_string();
}

bool uses(const Body& body, DType dtype) {
  return std::ranges::any_of(body.exprs, [&](const ScalarNode& node) { return node.dtype == dtype; });
}

bool uses(const KernelSpec& spec, DType dtype) {
  if (std::ranges::any_of(spec.buffers, [&](const BufferSpec& buffer) { return buffer.dtype == dtype; })) return true;
  const auto* loops = std::get_if<LoopsSpec>(&spec.kernel);
  return loops != nullptr && uses(loops->body, dtype);
}

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

std::string check_kernel(const BackendUnderTest& backend, const KernelSpec& spec, std::mt19937_64& random,
                         const CheckOptions& options) {
  const Status valid = validate(spec);
  EXPECT_TRUE(valid.ok()) << valid.to_string();
  const Status claimed = backend.compile->claims(spec, backend.target);
  // Devices may do without f64, and without nothing else.
  if (claimed.code() == StatusCode::unimplemented && uses(spec, DType::f64)) return claimed.message();
  EXPECT_TRUE(claimed.ok()) << claimed.to_string();
  if (!valid.ok() || !claimed.ok()) return {};

  Buffers inputs = make_buffers(spec, options);
  for (size_t b = 0; b < spec.buffers.size(); ++b) {
    if (spec.buffers[b].role == BufferRole::output) continue;
    fill(spec.buffers[b], *inputs[b], random, options, b < options.index_bounds.size() ? options.index_bounds[b] : 0);
  }
  run_forward(spec, inputs);
  const auto copy = [&] {
    Buffers buffers = make_buffers(spec, options);
    for (size_t b = 0; b < buffers.size(); ++b) std::ranges::copy(inputs[b]->bytes(), buffers[b]->data());
    return buffers;
  };
  Buffers expected = copy();
  const Status reference = run_reference(spec, pointers(expected));
  EXPECT_TRUE(reference.ok() || reference.code() == StatusCode::out_of_range) << reference.to_string();
  const LaunchStatus wanted = reference.ok() ? LaunchStatus::ok : LaunchStatus::index_out_of_range;

  std::vector<Schedule> schedules = default_candidates(*backend.compile, spec, backend.target);
  EXPECT_FALSE(schedules.empty());
  const auto sized = backend.compile->sized(spec, backend.target);
  if (sized) schedules.push_back(sized->candidates.front());
  for (size_t s = 0; s < schedules.size(); ++s) {
    const Schedule& schedule = schedules[s];
    const bool is_sized = sized && s + 1 == schedules.size();
    const std::span<const int64_t> extents = is_sized ? std::span(sized->extents) : std::span<const int64_t>();
    SCOPED_TRACE(kernel_name(spec) + ", " + schedule.description);
    const auto image = backend.compile->compile(spec, schedule, backend.target);
    // A vendor's library says which of its code there is when it is asked for it.
    if (image.status().code() == StatusCode::unimplemented) continue;
    EXPECT_TRUE(image.ok()) << image.status().to_string();
    if (!image.ok()) return {};
    if (!backend.host_runs()) continue;
    const SealedCode code(image->code);
    const auto executable = backend.device->load_whole(*image, code.bytes());
    // And some say it where they find the device.
    if (executable.status().code() == StatusCode::unimplemented) continue;
    EXPECT_TRUE(executable.ok()) << executable.status().to_string();
    if (!executable.ok()) return {};
    Buffers got = copy();
    const LaunchStatus status = (*executable)->host()
                                    ? run_in_slices(*(*executable)->host(), pointers(got), extents, random)
                                    : run_on_device(*backend.device, *(*executable)->device(), got, extents);
    EXPECT_EQ(status, wanted);
    compare(spec, got, expected, options);
    if (testing::Test::HasFailure()) return {};
  }
  return backend.host_runs() ? "" : "compiled, not run: this host lacks " + backend.target.name;
}

}  // namespace kiln::conformance
