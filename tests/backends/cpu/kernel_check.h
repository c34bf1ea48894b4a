#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "backends/cpu/compile/backend.h"
#include "backends/reference/reference.h"
#include "backends/schedule_bytes.h"
#include "frontend/kernel/overwrites.h"
#include "tests/backends/cpu/loaded_image.h"

namespace kiln::cpu {

/// The bytes of one dtype as f64, and back with rounding to nearest even.
inline double read_element(DType dtype, const uint8_t* at) {
  const auto as = [&]<typename T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::f32:
      return as(float{});
    case DType::f64:
      return as(double{});
    case DType::bf16:
      return std::bit_cast<float>(uint32_t{as(uint16_t{})} << 16);
    case DType::f16:
      return static_cast<double>(as(_Float16{}));
    case DType::i32:
      return as(int32_t{});
    case DType::i64:
      return static_cast<double>(as(int64_t{}));
    case DType::i8:
      return as(int8_t{});
    default:
      return as(uint8_t{});
  }
}

inline void write_element(DType dtype, uint8_t* at, double value) {
  const auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (dtype) {
    case DType::f32:
      return put(static_cast<float>(value));
    case DType::f64:
      return put(value);
    case DType::bf16: {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
      return put(static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
    }
    case DType::f16:
      return put(static_cast<_Float16>(value));
    case DType::i32:
      return put(static_cast<int32_t>(value));
    case DType::i64:
      return put(static_cast<int64_t>(value));
    case DType::i8:
      return put(static_cast<int8_t>(value));
    default:
      return put(static_cast<uint8_t>(value));
  }
}

/// A buffer between two red zones.
class GuardedBuffer {
 public:
  GuardedBuffer(DType dtype, int64_t elements)
      : m_dtype(dtype),
        m_elements(elements),
        m_bytes(static_cast<size_t>(elements) * size_of(dtype) + 2 * k_zone, k_red) {}

  uint8_t* data() { return m_bytes.data() + k_zone; }
  const uint8_t* data() const { return m_bytes.data() + k_zone; }
  size_t size() const { return static_cast<size_t>(m_elements) * size_of(m_dtype); }
  bool operator==(const GuardedBuffer&) const = default;
  int64_t elements() const { return m_elements; }
  double at(int64_t i) const { return read_element(m_dtype, data() + static_cast<size_t>(i) * size_of(m_dtype)); }
  void set(int64_t i, double value) {
    write_element(m_dtype, data() + static_cast<size_t>(i) * size_of(m_dtype), value);
  }
  bool zones_are_whole() const {
    for (size_t i = 0; i < k_zone; ++i) {
      if (m_bytes[i] != k_red || m_bytes[m_bytes.size() - 1 - i] != k_red) return false;
    }
    return true;
  }

 private:
  static constexpr size_t k_zone = 256;
  static constexpr uint8_t k_red = 0xFB;  // an output left alone stays NaN or absurd
  DType m_dtype;
  int64_t m_elements;
  std::vector<uint8_t> m_bytes;
};

/// Random inputs, half of them negative; small whole numbers for integers. Outputs stay poisoned.
inline std::vector<GuardedBuffer> make_buffers(const KernelSpec& spec, unsigned seed, double spread = 1) {
  std::mt19937 random(seed);
  std::vector<GuardedBuffer> buffers;
  for (const BufferSpec& buffer : spec.buffers) {
    buffers.emplace_back(buffer.dtype, buffer.elements);
    if (buffer.role == BufferRole::output) continue;
    std::uniform_real_distribution<double> real(-spread, spread);
    std::uniform_int_distribution<int> whole(buffer.dtype == DType::boolean || buffer.dtype == DType::u8 ? 0 : -4,
                                             buffer.dtype == DType::boolean ? 1 : 4);
    for (int64_t i = 0; i < buffer.elements; ++i) {
      buffers.back().set(i, is_floating(buffer.dtype) ? real(random) : whole(random));
    }
  }
  return buffers;
}

inline std::vector<void*> pointers(std::vector<GuardedBuffer>& buffers) {
  std::vector<void*> result;
  for (GuardedBuffer& buffer : buffers) result.push_back(buffer.data());
  return result;
}

/// Runs the kernel as several contiguous ranges of tasks, in the order of a list, with a poisoned workspace each, whose end it
/// must not pass.
inline void run_in_ranges(const HostExecutable& kernel, const std::vector<void*>& buffers, uint64_t ranges,
                          std::span<const int64_t> extents = {}) {
  constexpr uint8_t k_poison = 0xFB;
  constexpr size_t k_behind = 1 << 16;
  std::vector<uint8_t> workspace(kernel.workspace_bytes() + 64 + k_behind);
  void* aligned = workspace.data();
  size_t space = workspace.size();
  std::align(64, kernel.workspace_bytes() + k_behind, aligned, space);
  const uint8_t* end = static_cast<const uint8_t*>(aligned) + kernel.workspace_bytes();
  const uint64_t tasks = launch_tasks(kernel.tasks(), extents);
  ranges = std::min(ranges, tasks);
  for (uint64_t i = ranges; i-- > 0;) {
    std::fill(workspace.begin(), workspace.end(), k_poison);
    auto status = LaunchStatus::ok;
    kernel.run(buffers.data(), aligned, &status, tasks * i / ranges, tasks * (i + 1) / ranges, extents);
    EXPECT_EQ(status, LaunchStatus::ok);
    EXPECT_TRUE(std::all_of(end, end + k_behind, [](uint8_t byte) { return byte == k_poison; }))
        << "the workspace was written beyond its end";
  }
}

/// Runs the kernel again with each output in the memory of an input that it may overwrite: bit for bit what `apart` holds.
inline void check_in_place(const KernelSpec& spec, const HostExecutable& kernel, std::vector<GuardedBuffer> fresh,
                           const std::vector<GuardedBuffer>& apart, uint64_t ranges) {
  std::vector<void*> places = pointers(fresh);
  std::vector<std::pair<size_t, size_t>> shared;
  for (const Overwrite& pair : overwrites(spec)) {
    const auto is_taken = [&](const auto& other) { return other.first == pair.output || other.second == pair.input; };
    if (std::ranges::any_of(shared, is_taken)) continue;
    shared.emplace_back(pair.output, pair.input);
    places[pair.output] = places[pair.input];
  }
  if (shared.empty()) return;
  run_in_ranges(kernel, places, ranges);
  for (const auto& [output, input] : shared) {
    EXPECT_EQ(std::memcmp(fresh[input].data(), apart[output].data(), apart[output].size()), 0)
        << kernel_name(spec) << ": output " << output << " in the memory of input " << input;
  }
}

/// What the f64 reference makes of `buffers`. The latest answer is kept: candidates are checked one after another.
inline const std::vector<GuardedBuffer>& reference_of(const KernelSpec& spec,
                                                      const std::vector<GuardedBuffer>& buffers) {
  static std::pair<KernelSpec, std::vector<GuardedBuffer>> asked;
  static std::vector<GuardedBuffer> answer;
  if (asked != std::pair(spec, buffers)) {
    asked = {spec, buffers};
    answer = buffers;
    const Status status = run_reference(spec, pointers(answer));
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  return answer;
}

/// The candidates of a target, the latest answer kept.
inline const std::vector<Schedule>& candidates_of(const KernelSpec& spec, const CpuTarget& target) {
  static std::pair<KernelSpec, std::string_view> asked;
  static std::vector<Schedule> answer;
  if (asked != std::pair(spec, target.name)) {
    asked = {spec, target.name};
    answer = default_candidates(CpuCompileBackend(), spec, {"cpu", std::string(target.name)});
  }
  return answer;
}

/// Compiles the spec by `schedule` for `target`, runs it, and compares every element of every output with the f64
/// reference: |ours - reference| ≤ tolerance * (1 + |reference|).
inline void check_schedule_on(const KernelSpec& spec, std::vector<GuardedBuffer> ours, const CpuTarget& target,
                              double tolerance, const Schedule& schedule, uint64_t ranges = 1) {
  const CpuCompileBackend backend;
  const Target name{"cpu", std::string(target.name)};
  ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  ASSERT_TRUE(backend.claims(spec, name).ok()) << backend.claims(spec, name).to_string();
  const std::string what = fmt::format("{} on {}: {}", kernel_name(spec), target.name, schedule.description);
  const auto image = backend.compile(spec, schedule, name);
  ASSERT_TRUE(image.ok()) << what << ": " << image.status().to_string();

  const std::vector<GuardedBuffer>& reference = reference_of(spec, ours);
  ranges = std::min<uint64_t>(ranges, image->tasks);
  const LoadedImage loaded(*image);
  const std::vector<GuardedBuffer> fresh = ours;
  run_in_ranges(loaded.executable(), pointers(ours), ranges);
  check_in_place(spec, loaded.executable(), fresh, ours, ranges);

  for (size_t b = 0; b < ours.size(); ++b) {
    ASSERT_TRUE(ours[b].zones_are_whole()) << what << ": buffer " << b << " was written beyond its end";
    for (int64_t i = 0; i < ours[b].elements(); ++i) {
      const double expected = reference[b].at(i), got = ours[b].at(i);
      if (std::isnan(expected) && std::isnan(got)) continue;
      if (expected == got) continue;
      ASSERT_LE(std::abs(got - expected), tolerance * (1 + std::abs(expected)))
          << what << ": buffer " << b << " element " << i << " is " << got << ", expected " << expected;
    }
  }
}

/// The same by a candidate.
inline void check_kernel_on(const KernelSpec& spec, std::vector<GuardedBuffer> ours, const CpuTarget& target,
                            double tolerance, size_t candidate = 0, uint64_t ranges = 1) {
  const std::vector<Schedule>& candidates = candidates_of(spec, target);
  ASSERT_LT(candidate, candidates.size());
  check_schedule_on(spec, std::move(ours), target, tolerance, candidates[candidate], ranges);
}

/// The same on random inputs in [-spread, spread].
inline void check_kernel(const KernelSpec& spec, const CpuTarget& target, double tolerance, size_t candidate = 0,
                         uint64_t ranges = 1, double spread = 1) {
  check_kernel_on(spec, make_buffers(spec, 7, spread), target, tolerance, candidate, ranges);
}

/// The targets this host can run.
inline std::vector<const CpuTarget*> runnable_targets() {
  std::vector<const CpuTarget*> targets;
  for (const CpuTarget& target : ladder()) {
    if (host_runs(target)) targets.push_back(&target);
  }
  return targets;
}

/// Expects no code by `choices`, for the reason that `why` is part of.
template <typename Choices>
void expect_refused(const KernelSpec& spec, const CpuTarget& target, const Choices& choices, std::string_view why) {
  const Schedule schedule{encode_choices(choices), std::string(why)};
  const Status status = CpuCompileBackend().compile(spec, schedule, {"cpu", std::string(target.name)}).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << why;
  EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
}

/// Expects every candidate's bytes to give its choices back, and no code by bytes that are cut off, of another version or
/// of an implementation that there is not. The implementation's choices are one of `Choices`.
template <typename... Choices>
void expect_bytes_are_trusted_with_nothing(const KernelSpec& spec, const CpuTarget& target) {
  const CpuCompileBackend backend;
  const Target name{"cpu", std::string(target.name)};
  for (const Schedule& schedule : default_candidates(backend, spec, name)) {
    const auto gives_back = [&]<typename One>(const One&) {
      const auto parsed = parse_choices<One>(schedule.bytes);
      return parsed.ok() && encode_choices(*parsed) == schedule.bytes;
    };
    EXPECT_TRUE((gives_back(Choices()) || ...)) << schedule.description;
    const auto refused = [&](std::vector<uint8_t> bytes) {
      return backend.compile(spec, {std::move(bytes), "damaged"}, name).status().code() == StatusCode::invalid_argument;
    };
    for (size_t size = 0; size < schedule.bytes.size(); ++size) {
      EXPECT_TRUE(refused({schedule.bytes.begin(), schedule.bytes.begin() + static_cast<ptrdiff_t>(size)})) << size;
    }
    std::vector<uint8_t> renamed = schedule.bytes, newer = schedule.bytes;
    renamed[sizeof(uint32_t)] = 'x';
    ++newer[sizeof(uint32_t) + open_schedule(schedule.bytes)->implementation.size()];
    EXPECT_TRUE(refused(renamed) && refused(newer)) << schedule.description;
  }
}

/// How much kernels of a spec round.
class Rounding {
 public:
  explicit Rounding(const KernelSpec& spec) : m_spec(spec), m_inputs(make_buffers(spec, 7)), m_exact(m_inputs) {
    EXPECT_TRUE(run_reference(spec, pointers(m_exact)).ok());
  }

  /// Root mean square of the errors of all outputs against the f64 reference, over that of the reference's values.
  double error(const CpuTarget& target, const Schedule& schedule, std::span<const int64_t> extents = {}) const {
    const auto image = CpuCompileBackend().compile(m_spec, schedule, {"cpu", std::string(target.name)});
    EXPECT_TRUE(image.ok()) << image.status().to_string();
    std::vector<GuardedBuffer> ours = m_inputs;
    run_in_ranges(LoadedImage(*image).executable(), pointers(ours), 1, extents);
    double errors = 0, values = 0;
    for (size_t b = 0; b < ours.size(); ++b) {
      if (m_spec.buffers[b].role != BufferRole::output) continue;
      for (int64_t i = 0; i < ours[b].elements(); ++i) {
        const double exact = m_exact[b].at(i), error = ours[b].at(i) - exact;
        errors += error * error;
        values += exact * exact;
      }
    }
    return std::sqrt(errors / values);
  }

 private:
  KernelSpec m_spec;
  std::vector<GuardedBuffer> m_inputs, m_exact;
};

/// What Rounding::error of sums of `terms` f32 terms of random signs is about when they are added `run` at a time, and
/// then those sums: an addition errs by up to half a unit in the last place of a partial sum, 0.4 times that in root mean
/// square, and partial sums grow as the root of their terms.
inline double expected_rounding_error(int64_t terms, int64_t run) {
  const auto n = static_cast<double>(terms), longest = static_cast<double>(std::min(terms, run));
  return 0.4 * std::numeric_limits<float>::epsilon() / 2 * std::sqrt(longest / 2 + n / longest / 2);
}

/// Expects all candidates on all targets, and code that takes sizes from its launches, to round as sums by runs do; a factor of
/// 2 is for what is random and for further levels of blocks.
inline void expect_runs(const KernelSpec& spec, int64_t terms, int64_t run) {
  const Rounding rounding(spec);
  for (const CpuTarget* target : runnable_targets()) {
    const Target name{"cpu", std::string(target->name)};
    const auto expect_of = [&](const std::vector<Schedule>& schedules, std::span<const int64_t> extents) {
      for (const Schedule& schedule : schedules) {
        EXPECT_LE(rounding.error(*target, schedule, extents), 2 * expected_rounding_error(terms, run))
            << kernel_name(spec) << " of " << terms << " terms on " << target->name << ": " << schedule.description;
      }
    };
    expect_of(default_candidates(CpuCompileBackend(), spec, name), {});
    if (const auto sized = CpuCompileBackend().sized(spec, name)) expect_of(sized->candidates, sized->extents);
  }
}

}  // namespace kiln::cpu
