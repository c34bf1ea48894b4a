#include "autotune/verdict.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/digest.h"
#include "base/expected.h"
#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

// Of what the elements of an output may cost: what is wrong in harsh situations is wrong in many places.
constexpr double k_harsh_share = 0x1p-5;
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

/// Calls `visit` with the first place and the elements of each part of the buffer that the output fills without gaps.
template <typename Visit>
void for_each_run(const OutputReference& output, const Visit& visit) {
  const int64_t count = count_of(output.dims);
  const bool has_rows = !output.dims.empty() && output.strides.back() == 1;
  const int64_t run = is_packed(output) ? count : has_rows ? output.dims.back() : 1;
  for (int64_t flat = 0; flat < count; flat += run) {
    if (!visit(place_of(output, flat), run)) return;
  }
}

/// Where in the buffer an element still is poisoned; -1 when none is. At memory speed where elements lie side by side.
int64_t first_unwritten(const OutputReference& output, DType dtype, std::span<const uint8_t> bytes, Poison which) {
  int64_t found = -1;
  for_each_run(output, [&](int64_t place, int64_t run) {
    const size_t size = size_of(dtype);
    const auto part = bytes.subspan(static_cast<size_t>(place) * size, static_cast<size_t>(run) * size);
    if (const int64_t at = find_poison(dtype, part, which); at >= 0) found = place + at;
    return found < 0;
  });
  return found;
}

/// Where both runs left their poison; -1 where nowhere. Either run may have written what looks like it.
int64_t first_unwritten_twice(const OutputReference& output, DType dtype, std::span<const uint8_t> first,
                              std::span<const uint8_t> second) {
  int64_t found = -1;
  for_each_run(output, [&](int64_t place, int64_t run) {
    const size_t size = size_of(dtype);
    for (int64_t each = place; each < place + run && found < 0; ++each) {
      const auto element = [&](std::span<const uint8_t> bytes) {
        return bytes.subspan(static_cast<size_t>(each) * size, size);
      };
      const bool poisoned = find_poison(dtype, element(first), Poison::first) == 0 &&
                            find_poison(dtype, element(second), Poison::second) == 0;
      if (poisoned) found = each;
    }
    return found < 0;
  });
  return found;
}

/// What the reference's value is once stored: infinity where the dtype ends, for which no kernel can be blamed.
double beyond_range(DType dtype, double value) {
  double limit = HUGE_VAL;  // the least that rounds to infinity
  if (dtype == DType::f32) limit = 0x1.ffffffp127;
  if (dtype == DType::bf16) limit = 0x1.ffp127;
  if (dtype == DType::f16) limit = 65520;
  return std::abs(value) >= limit ? std::copysign(HUGE_VAL, value) : value;
}

/// The error of what has no room for all its bits: the least normal number, or what is computed in f32.
double lost_below(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-23;
    case DType::f32:
    case DType::bf16:
      return 0x1p-126;
    case DType::f64:
      return 0x1p-1022;
    default:
      return 0;
  }
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

namespace {

/// Of what is finite.
class RootMeanSquare {
 public:
  void add(std::span<const double> values) {
    for (const double value : values) {
      if (std::isfinite(value)) m_square_sum += value * value, ++m_finite;
    }
  }
  double value() const { return m_finite ? std::sqrt(m_square_sum / static_cast<double>(m_finite)) : 0; }

 private:
  double m_square_sum = 0;
  size_t m_finite = 0;
};

/// The comparison of one output with its reference.
class OutputCheck {
 public:
  OutputCheck(const OutputReference& output, DType dtype, bool harsh)
      : m_output(output), m_dtype(dtype), m_harsh(harsh), m_columns(output.dims.empty() ? 1 : output.dims.back()) {
    Demand demand = output.demand;
    if (demand.dims.empty()) demand.dims = output.dims;
    if (!demand.dims.empty()) m_columns = demand.dims.back();
    m_demanded = demanded_blocks(demand, harsh ? k_harsh_share : 1);
  }
  const DemandedBlocks& demanded() const { return m_demanded; }

  /// `got` and `skip` take an element's place in the buffer.
  template <typename Got, typename Skip>
  Status compare(const Got& got, const Skip& skip, Verdict& verdict) const {
    const auto expected = expected_blocks();
    RootMeanSquare whole;
    for (const std::vector<double>& block : expected) whole.add(block);
    for (size_t b = 0; b < expected.size(); ++b) {
      const DemandedBlock& block = m_demanded.blocks[b];
      const size_t width = block.columns.size();
      for (size_t r = 0; r < block.rows.size(); ++r) {
        const auto row = std::span(expected[b]).subspan(r * width, width);
        RootMeanSquare of_row;  // in harsh situations magnitudes differ from row to row
        if (m_harsh) of_row.add(row);
        const double scale = (m_harsh ? of_row : whole).value();
        for (size_t c = 0; c < width; ++c) {
          const int64_t flat = block.rows[r] * m_columns + block.columns[c], place = place_of(m_output, flat);
          if (skip(place)) continue;
          ++verdict.checked;
          KILN_RETURN_IF_ERROR(compare_element(flat, got(place), row[c], scale, verdict));
        }
      }
    }
    return {};
  }

 private:
  std::vector<std::vector<double>> expected_blocks() const {
    std::vector<std::vector<double>> expected;
    std::vector<int64_t> flats;
    for (const DemandedBlock& block : m_demanded.blocks) {
      flats.clear();
      for (const int64_t row : block.rows) {
        for (const int64_t column : block.columns) flats.push_back(row * m_columns + column);
      }
      std::vector<double>& values = expected.emplace_back(flats.size());
      if (m_output.many) {
        m_output.many(flats, values);
      } else {
        std::ranges::transform(flats, values.begin(), m_output.expected);
      }
    }
    return expected;
  }

  Status compare_element(int64_t flat, double got, double exact, double scale, Verdict& verdict) const {
    if (agrees(flat, got, exact, scale, verdict)) return {};
    if (m_harsh && m_output.within_range && agrees(flat, got, m_output.within_range(flat), scale, verdict)) return {};
    return error(StatusCode::internal, "output {}: element {} is {:.9g}, expected {:.9g}", m_output.buffer, flat, got,
                 beyond_range(m_dtype, exact));
  }

  bool agrees(int64_t flat, double got, double exact, double scale, Verdict& verdict) const {
    const double want = beyond_range(m_dtype, exact);
    if (!std::isfinite(want) || !std::isfinite(got)) return (std::isnan(got) && std::isnan(want)) || got == want;
    double allowed = tolerance(m_dtype, m_output.reduction_length, want, scale);
    if (m_harsh) allowed += lost_below(m_dtype);
    const double difference = std::abs(got - want);
    if (difference > allowed && m_output.sensitivity) allowed += k_sensitivity_factor * m_output.sensitivity(flat);
    if (!(difference <= allowed)) return false;
    if (allowed > 0) verdict.max_error = std::max(verdict.max_error, difference / allowed);
    return true;
  }

  const OutputReference& m_output;
  const DType m_dtype;
  const bool m_harsh;
  int64_t m_columns;
  DemandedBlocks m_demanded;
};

}  // namespace

CandidateTrial::CandidateTrial(const KernelSpec& spec, CandidateRunner& runner, Situation situation)
    : m_spec(&spec), m_runner(&runner), m_situation(situation), m_data(spec, k_seed, situation) {}

Expected<CandidateTrial> CandidateTrial::prepare(const KernelSpec& spec, CandidateRunner& runner, Situation situation) {
  CandidateTrial trial(spec, runner, situation);
  const SampleData& data = trial.m_data;
  std::vector<CandidateBuffer> requested;
  for (uint32_t i = 0; i < spec.buffers.size(); ++i) {
    const BufferSpec& buffer = spec.buffers[i];
    requested.push_back({static_cast<uint64_t>(buffer.elements) * size_of(buffer.dtype), {}, data.misalignment(i)});
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

void CandidateTrial::set_outputs(Poison which) {
  for (uint32_t i = 0; i < m_spec->buffers.size(); ++i) {
    const BufferSpec& buffer = m_spec->buffers[i];
    if (buffer.role == BufferRole::output) poison(buffer.dtype, m_buffers[i], which);
    if (buffer.role == BufferRole::inout) std::ranges::copy(initial_bytes(i), m_buffers[i].begin());
  }
}

Expected<CandidateRun> CandidateTrial::run(const Image& image, uint32_t timeout_ms, uint32_t task_step) {
  auto run = m_runner->run(image, timeout_ms, 1, task_step);
  const Status inputs = restore_inputs();
  KILN_RETURN_IF_ERROR(run.status());
  if (!run->red_zones_intact) return error(StatusCode::internal, "candidate wrote outside its buffers");
  KILN_RETURN_IF_ERROR(inputs);
  return run;
}

Verdict CandidateTrial::judge(const Image& image, const std::vector<OutputReference>& outputs, uint32_t timeout_ms,
                              uint32_t task_step) {
  Verdict verdict;
  set_outputs(Poison::first);
  const auto ran = run(image, timeout_ms, task_step);
  if (!ran.ok()) {
    verdict.status = ran.status();
    return verdict;
  }
  verdict.seconds = ran->seconds.empty() ? 0 : ran->seconds.front();
  if (ran->status != LaunchStatus::ok) {
    verdict.status = error(StatusCode::internal, "candidate reported an index out of range on valid indices");
    return verdict;
  }
  if (task_step == 1) verdict.status = check_written(image, outputs, timeout_ms);
  if (verdict.status.ok()) verdict.status = check_outputs(outputs, task_step == 1, verdict);
  return verdict;
}

Status CandidateTrial::judge_refusal(const Image& image, bool must_report, uint32_t timeout_ms) {
  set_outputs(Poison::first);
  KILN_ASSIGN_OR_RETURN(const CandidateRun ran, run(image, timeout_ms, 1));
  if (must_report && ran.status != LaunchStatus::index_out_of_range) {
    return error(StatusCode::internal, "candidate did not report an index out of range");
  }
  return {};
}

Status CandidateTrial::check_outputs(const std::vector<OutputReference>& outputs, bool is_whole,
                                     Verdict& verdict) const {
  for (const OutputReference& output : outputs) KILN_RETURN_IF_ERROR(check_output(output, is_whole, verdict));
  return {};
}

/// Every element was written: none is poisoned, or none of those that are is when the poison is another.
Status CandidateTrial::check_written(const Image& image, const std::vector<OutputReference>& outputs,
                                     uint32_t timeout_ms) {
  std::vector<std::vector<uint8_t>> first(outputs.size());  // what is poisoned in part
  bool is_doubtful = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const BufferSpec& buffer = m_spec->buffers[outputs[i].buffer];
    if (buffer.role != BufferRole::output) continue;
    const std::span<const uint8_t> bytes = m_buffers[outputs[i].buffer];
    const int64_t place = first_unwritten(outputs[i], buffer.dtype, bytes, Poison::first);
    if (place < 0) continue;
    first[i].assign(bytes.begin(), bytes.end());
    is_doubtful = true;
  }
  if (!is_doubtful) return {};
  set_outputs(Poison::second);
  KILN_RETURN_IF_ERROR(run(image, timeout_ms, 1).status());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (first[i].empty()) continue;
    const uint32_t index = outputs[i].buffer;
    const int64_t place = first_unwritten_twice(outputs[i], m_spec->buffers[index].dtype, first[i], m_buffers[index]);
    if (place >= 0) {
      return error(StatusCode::internal, "output {}: the element at offset {} was not written", index, place);
    }
  }
  return {};
}

/// Names the input that was changed; the next candidate and the reference find all as they were.
Status CandidateTrial::restore_inputs() {
  Status status;
  for (uint32_t i = 0; i < m_buffers.size(); ++i) {
    if (!is_filled_input(m_spec->buffers[i])) continue;
    if (checksum_of(m_buffers[i]) == m_input_checksums[i]) continue;
    KILN_RETURN_IF_ERROR(m_data.fill(i, m_buffers[i]));
    status = error(StatusCode::internal, "candidate changed its input {}", i);
  }
  return status;
}

bool CandidateTrial::is_untouched(uint32_t index, int64_t place) const {
  const BufferSpec& buffer = m_spec->buffers[index];
  const size_t size = size_of(buffer.dtype), begin = static_cast<size_t>(place) * size;
  const auto element = m_buffers[index].subspan(begin, size);
  if (buffer.role == BufferRole::output) return find_poison(buffer.dtype, element) == 0;
  return std::ranges::equal(element, initial_bytes(index).subspan(begin, size));
}

Status CandidateTrial::check_output(const OutputReference& output, bool is_whole, Verdict& verdict) const {
  const DType dtype = m_spec->buffers[output.buffer].dtype;
  const auto* bytes = reinterpret_cast<const std::byte*>(m_buffers[output.buffer].data());
  const bool harsh = m_situation == Situation::harsh;
  const OutputCheck check(output, dtype, harsh);
  verdict.tiles += check.demanded().tiles;
  verdict.tiles_met += check.demanded().tiles_met;
  return check.compare([&](int64_t place) { return load_element(dtype, bytes, place); },
                       [&](int64_t place) { return !is_whole && is_untouched(output.buffer, place); }, verdict);
}

}  // namespace kiln
