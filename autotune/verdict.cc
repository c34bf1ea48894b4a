#include "autotune/verdict.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autotune/demanded_elements.h"
#include "autotune/sample_data.h"
#include "base/digest.h"
#include "base/expected.h"
#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

// Every 6x64 tile of a 512x3072 result holds one of them.
constexpr size_t k_element_budget = 12'288;
// One candidate's share of a cold start, in CPU time: a busy machine checks no less. An element of a wide reduction costs
// more: stop when this is spent, but never before k_minimum_elements, which the corners and the first and last row are
// among.
constexpr double k_seconds_budget = 0.03;
constexpr size_t k_minimum_elements = 128;
constexpr uint64_t k_seed = 17;

double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::f32:
      return 0x1p-24;
    case DType::f64:
      return 0x1p-53;
    default:
      return 0;  // integers and booleans are exact
  }
}

/// CPU time of this thread.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

int64_t count_of(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  return count;
}

int64_t place_of(const OutputReference& output, int64_t flat) {
  int64_t place = 0;
  for (size_t d = output.dims.size(); d-- > 0;) {
    place += flat % output.dims[d] * output.strides[d];
    flat /= output.dims[d];
  }
  return place;
}

/// Whether the elements fill their part of the buffer without gaps, in whatever order of dims.
bool is_packed(const OutputReference& output) {
  std::vector<size_t> order(output.dims.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t d) { return output.strides[d]; });
  int64_t stride = 1;
  for (size_t d : order) {
    if (output.dims[d] == 1) continue;
    if (output.strides[d] != stride) return false;
    stride *= output.dims[d];
  }
  return true;
}

/// Where in the buffer an element still is poisoned; -1 when none is. At memory speed where elements lie side by side.
int64_t first_unwritten(const OutputReference& output, DType dtype, std::span<const uint8_t> bytes) {
  const size_t size = size_of(dtype);
  const int64_t count = count_of(output.dims);
  const bool has_rows = !output.dims.empty() && output.strides.back() == 1;
  const int64_t run = is_packed(output) ? count : has_rows ? output.dims.back() : 1;
  for (int64_t flat = 0; flat < count; flat += run) {
    const int64_t place = place_of(output, flat);
    const auto part = bytes.subspan(static_cast<size_t>(place) * size, static_cast<size_t>(run) * size);
    if (const int64_t found = find_poison(dtype, part); found >= 0) return place + found;
  }
  return -1;
}

/// What the reference's value is once stored: infinity where the dtype ends, for which no kernel can be blamed.
double beyond_range(DType dtype, double value) {
  double limit = HUGE_VAL;  // the least that rounds to infinity
  if (dtype == DType::f32) limit = 0x1.ffffffp127;
  if (dtype == DType::bf16) limit = 0x1.ffp127;
  if (dtype == DType::f16) limit = 65520;
  return std::abs(value) >= limit ? std::copysign(HUGE_VAL, value) : value;
}

/// Whether the buffer is the candidate's to read and yet could be written: floats come from a pool that cannot.
bool is_filled_input(const BufferSpec& buffer) {
  return buffer.role == BufferRole::input && !is_floating(buffer.dtype);
}

}  // namespace

double tolerance(DType dtype, int64_t reduction_length, double expected, double scale) {
  const double growth = 8 + 4 * std::sqrt(static_cast<double>(std::max<int64_t>(reduction_length, 1)));
  return epsilon_of(dtype) * growth * (std::abs(expected) + scale);
}

Expected<CandidateTrial> CandidateTrial::prepare(const KernelSpec& spec, CandidateRunner& runner) {
  CandidateTrial trial(spec, runner);
  const SampleData data(spec, k_seed);
  std::vector<CandidateBuffer> requested;
  for (uint32_t i = 0; i < spec.buffers.size(); ++i) {
    const BufferSpec& buffer = spec.buffers[i];
    requested.push_back({static_cast<uint64_t>(buffer.elements) * size_of(buffer.dtype), {}});
    if (buffer.role == BufferRole::input && is_floating(buffer.dtype)) {
      KILN_ASSIGN_OR_RETURN(requested.back().source, data.source(i));
    }
  }
  KILN_ASSIGN_OR_RETURN(trial.m_buffers, runner.prepare(requested));
  trial.m_input_checksums.resize(spec.buffers.size(), 0);
  trial.m_initial.resize(spec.buffers.size());
  trial.m_initial_floats.resize(spec.buffers.size());
  for (uint32_t i = 0; i < spec.buffers.size(); ++i) {
    const BufferSpec& buffer = spec.buffers[i];
    const std::span<uint8_t> bytes = trial.m_buffers[i];
    if (is_filled_input(buffer)) {
      KILN_RETURN_IF_ERROR(data.fill(i, bytes));
      trial.m_input_checksums[i] = checksum_of(bytes);
    } else if (buffer.role == BufferRole::inout && is_floating(buffer.dtype)) {
      KILN_ASSIGN_OR_RETURN(const SampleSource source, data.source(i));
      KILN_ASSIGN_OR_RETURN(trial.m_initial_floats[i], SampleMapping::create(source, bytes.size()));
    } else if (buffer.role == BufferRole::inout) {
      trial.m_initial[i].resize(bytes.size());
      KILN_RETURN_IF_ERROR(data.fill(i, trial.m_initial[i]));
    }
  }
  return trial;
}

std::span<const uint8_t> CandidateTrial::initial_bytes(size_t index) const {
  const BufferSpec& buffer = m_spec->buffers[index];
  if (buffer.role != BufferRole::inout) return m_buffers[index];
  return is_floating(buffer.dtype) ? m_initial_floats[index].bytes() : std::span<const uint8_t>(m_initial[index]);
}

Verdict CandidateTrial::judge(const Image& image, const std::vector<OutputReference>& outputs, uint32_t timeout_ms) {
  Verdict verdict;
  for (uint32_t i = 0; i < m_spec->buffers.size(); ++i) {
    const BufferSpec& buffer = m_spec->buffers[i];
    if (buffer.role == BufferRole::output) poison(buffer.dtype, m_buffers[i]);
    if (buffer.role == BufferRole::inout) std::ranges::copy(initial_bytes(i), m_buffers[i].begin());
  }
  auto run = m_runner->run(image, timeout_ms, 1);
  const Status inputs = restore_inputs();
  if (!run.ok()) {
    verdict.status = run.status();
    return verdict;
  }
  verdict.seconds = run->seconds.empty() ? 0 : run->seconds.front();
  if (!run->red_zones_intact) {
    verdict.status = error(StatusCode::internal, "candidate wrote outside its buffers");
  } else if (run->status != LaunchStatus::ok) {
    verdict.status = error(StatusCode::internal, "candidate reported an index out of range on valid indices");
  } else {
    verdict.status = inputs;
  }
  for (const OutputReference& output : outputs) {
    if (!verdict.status.ok()) break;
    verdict.status = check_output(output, verdict);
  }
  return verdict;
}

/// Names the input that was changed; the next candidate and the reference find all as they were.
Status CandidateTrial::restore_inputs() {
  Status status;
  for (uint32_t i = 0; i < m_buffers.size(); ++i) {
    if (!is_filled_input(m_spec->buffers[i])) continue;
    if (checksum_of(m_buffers[i]) == m_input_checksums[i]) continue;
    KILN_RETURN_IF_ERROR(SampleData(*m_spec, k_seed).fill(i, m_buffers[i]));
    status = error(StatusCode::internal, "candidate changed its input {}", i);
  }
  return status;
}

Status CandidateTrial::check_output(const OutputReference& output, Verdict& verdict) const {
  const BufferSpec& buffer = m_spec->buffers[output.buffer];
  const uint8_t* bytes = m_buffers[output.buffer].data();

  if (buffer.role == BufferRole::output) {
    if (const int64_t place = first_unwritten(output, buffer.dtype, m_buffers[output.buffer]); place >= 0) {
      return error(StatusCode::internal, "output {}: the element at offset {} was not written", output.buffer, place);
    }
  }

  const auto elements = demanded_elements(output.dims, k_element_budget, k_seed);
  std::vector<double> expected;
  const double start = thread_seconds();
  for (int64_t flat : elements) {
    expected.push_back(output.expected(flat));
    if (expected.size() < k_minimum_elements || expected.size() % 16 != 0) continue;
    if (thread_seconds() - start > k_seconds_budget) break;
  }
  double square_sum = 0;
  size_t finite = 0;
  for (double value : expected) {
    if (std::isfinite(value)) square_sum += value * value, ++finite;
  }
  const double scale = finite ? std::sqrt(square_sum / static_cast<double>(finite)) : 0;

  for (size_t i = 0; i < expected.size(); ++i) {
    const double got =
        load_element(buffer.dtype, reinterpret_cast<const std::byte*>(bytes), place_of(output, elements[i]));
    const double want = beyond_range(buffer.dtype, expected[i]);
    ++verdict.checked;
    if (std::isfinite(want) && std::isfinite(got)) {
      double allowed = tolerance(buffer.dtype, output.reduction_length, want, scale);
      const double difference = std::abs(got - want);
      if (difference > allowed && output.sensitivity) allowed += k_sensitivity_factor * output.sensitivity(elements[i]);
      if (difference <= allowed) {
        if (allowed > 0) verdict.max_error = std::max(verdict.max_error, difference / allowed);
        continue;
      }
    } else if ((std::isnan(got) && std::isnan(want)) || got == want) {
      continue;
    }
    return error(StatusCode::internal, "output {}: element {} is {:.9g}, expected {:.9g}", output.buffer, elements[i],
                 got, want);
  }
  return {};
}

}  // namespace kiln
