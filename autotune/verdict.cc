#include "autotune/verdict.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "autotune/sample_data.h"
#include "base/digest.h"
#include "base/expected.h"
#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

// One candidate's share of a cold start. 4,096 elements cover every 6x64 tile of a 512x3072 result.
constexpr size_t k_element_budget = 4'096;
// An element of a wide reduction costs more: stop when this is spent, but never before k_minimum_elements.
constexpr double k_seconds_budget = 0.08;
constexpr size_t k_minimum_elements = 96;
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

int64_t count_of(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  return count;
}

/// Walks all elements row-major, giving each one's place in the buffer.
template <typename Visit>
void for_each_place(const OutputReference& output, Visit visit) {
  const size_t rank = output.dims.size();
  const int64_t count = count_of(output.dims);
  std::vector<int64_t> index(rank, 0);
  int64_t place = 0;
  for (int64_t flat = 0; flat < count; ++flat) {
    if (!visit(flat, place)) return;
    for (size_t d = rank; d-- > 0;) {
      place += output.strides[d];
      if (++index[d] < output.dims[d]) break;
      place -= output.strides[d] * output.dims[d];
      index[d] = 0;
    }
  }
}

int64_t place_of(const OutputReference& output, int64_t flat) {
  int64_t place = 0;
  for (size_t d = output.dims.size(); d-- > 0;) {
    place += flat % output.dims[d] * output.strides[d];
    flat /= output.dims[d];
  }
  return place;
}

/// A cheap generator for choosing elements; its quality does not matter.
uint64_t scramble(uint64_t value) {
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccdull;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return value ^ (value >> 33);
}

/// What the reference's value is once stored: infinity where the dtype ends, for which no kernel can be blamed.
double beyond_range(DType dtype, double value) {
  double limit = HUGE_VAL;  // the least that rounds to infinity
  if (dtype == DType::f32) limit = 0x1.ffffffp127;
  if (dtype == DType::bf16) limit = 0x1.ffp127;
  if (dtype == DType::f16) limit = 65520;
  return std::abs(value) >= limit ? std::copysign(HUGE_VAL, value) : value;
}

}  // namespace

double tolerance(DType dtype, int64_t reduction_length, double expected, double scale) {
  const double growth = 8 + 4 * std::sqrt(static_cast<double>(std::max<int64_t>(reduction_length, 1)));
  return epsilon_of(dtype) * growth * (std::abs(expected) + scale);
}

std::vector<int64_t> demanded_elements(const std::vector<int64_t>& dims, size_t budget, uint64_t seed) {
  const int64_t count = count_of(dims);
  std::vector<int64_t> elements;
  if (count == 0) return elements;
  if (static_cast<uint64_t>(count) <= budget) {
    for (int64_t i = 0; i < count; ++i) elements.push_back(i);
  } else {
    const int64_t columns = dims.empty() ? 1 : dims.back();
    const int64_t rows = count / columns;
    auto add = [&](int64_t row, int64_t column) { elements.push_back(row * columns + column); };
    for (int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
      for (int64_t column : {int64_t{0}, columns / 2, columns - 1}) add(row, column);
    }
    // Cells as square as the budget allows, in elements: rows are cheap to cross, so cells are four times as
    // wide.
    const double cells = static_cast<double>(budget) * 0.85;
    int64_t cell_rows = std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(count) / cells / 4)));
    cell_rows = std::min(cell_rows, rows);
    const int64_t row_cells = (rows + cell_rows - 1) / cell_rows;
    const int64_t column_cells = std::clamp<int64_t>(static_cast<int64_t>(cells) / row_cells, 1, columns);
    for (int64_t r = 0; r < row_cells && elements.size() < budget; ++r) {
      for (int64_t c = 0; c < column_cells && elements.size() < budget; ++c) {
        const uint64_t random = scramble(seed + static_cast<uint64_t>(r * column_cells + c));
        const int64_t first = columns * c / column_cells, last = columns * (c + 1) / column_cells;
        add(std::min(r * cell_rows + static_cast<int64_t>(random % static_cast<uint64_t>(cell_rows)), rows - 1),
            first + static_cast<int64_t>((random >> 32) % static_cast<uint64_t>(last - first)));
      }
    }
    for (uint64_t i = 0; elements.size() < budget; ++i) {
      elements.push_back(static_cast<int64_t>(scramble(~seed - i) % static_cast<uint64_t>(count)));
    }
  }
  // Spread out any prefix; the corners stay first.
  const size_t fixed = std::min<size_t>(elements.size(), 9);
  for (size_t i = elements.size(); i > fixed + 1; --i) {
    std::swap(elements[i - 1], elements[fixed + scramble(seed ^ i) % (i - fixed)]);
  }
  return elements;
}

Expected<CandidateTrial> CandidateTrial::prepare(const KernelSpec& spec, CandidateRunner& runner) {
  CandidateTrial trial(spec, runner);
  std::vector<uint64_t> sizes;
  for (const BufferSpec& buffer : spec.buffers) {
    sizes.push_back(static_cast<uint64_t>(buffer.elements) * size_of(buffer.dtype));
  }
  KILN_ASSIGN_OR_RETURN(trial.m_buffers, runner.prepare(sizes));
  const SampleData data(spec, k_seed);
  trial.m_input_checksums.resize(spec.buffers.size(), 0);
  trial.m_initial.resize(spec.buffers.size());
  for (uint32_t i = 0; i < spec.buffers.size(); ++i) {
    const std::span<uint8_t> bytes = trial.m_buffers[i];
    if (spec.buffers[i].role == BufferRole::output) continue;
    data.fill(i, bytes);
    if (spec.buffers[i].role == BufferRole::input) {
      trial.m_input_checksums[i] = checksum_of(bytes);
    } else {
      trial.m_initial[i].assign(bytes.begin(), bytes.end());
    }
  }
  return trial;
}

std::span<const std::byte> CandidateTrial::initial(size_t index) const {
  if (m_spec->buffers[index].role == BufferRole::inout) return std::as_bytes(std::span(m_initial[index]));
  return std::as_bytes(m_buffers[index]);
}

Verdict CandidateTrial::judge(const Image& image, const std::vector<OutputReference>& outputs, uint32_t timeout_ms) {
  Verdict verdict;
  for (uint32_t i = 0; i < m_spec->buffers.size(); ++i) {
    const BufferSpec& buffer = m_spec->buffers[i];
    if (buffer.role == BufferRole::output) poison(buffer.dtype, m_buffers[i]);
    if (buffer.role == BufferRole::inout) std::copy(m_initial[i].begin(), m_initial[i].end(), m_buffers[i].begin());
  }
  auto run = m_runner->run(image, timeout_ms, 1);
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
    verdict.status = check_inputs();
  }
  for (const OutputReference& output : outputs) {
    if (!verdict.status.ok()) break;
    verdict.status = check_output(output, verdict);
  }
  return verdict;
}

Status CandidateTrial::check_inputs() const {
  for (size_t i = 0; i < m_buffers.size(); ++i) {
    if (m_spec->buffers[i].role == BufferRole::input && checksum_of(m_buffers[i]) != m_input_checksums[i]) {
      return error(StatusCode::internal, "candidate changed its input {}", i);
    }
  }
  return {};
}

Status CandidateTrial::check_output(const OutputReference& output, Verdict& verdict) const {
  const BufferSpec& buffer = m_spec->buffers[output.buffer];
  const uint8_t* bytes = m_buffers[output.buffer].data();
  const size_t size = size_of(buffer.dtype);

  if (buffer.role == BufferRole::output) {
    int64_t unwritten = -1;
    for_each_place(output, [&](int64_t flat, int64_t place) {
      if (is_poisoned(buffer.dtype, bytes + static_cast<size_t>(place) * size)) unwritten = flat;
      return unwritten < 0;
    });
    if (unwritten >= 0) {
      return error(StatusCode::internal, "output {}: element {} was not written", output.buffer, unwritten);
    }
  }

  const auto elements = demanded_elements(output.dims, k_element_budget, k_seed);
  std::vector<double> expected;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t flat : elements) {
    expected.push_back(output.expected(flat));
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (expected.size() >= k_minimum_elements && spent.count() > k_seconds_budget) break;
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
