#include "verdict/output_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "frontend/ops/precision.h"

namespace kiln {

namespace {

// Of what the elements of an output may cost: what is wrong in harsh situations is wrong in many places.
constexpr double k_harsh_share = 0x1p-5;

int64_t count_of(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  return count;
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

/// The error of what has no room for all its bits: the least normal number, or what is computed in f32.
double lost_below(DType dtype) {
  if (dtype == DType::f16) return 0x1p-23;
  return is_floating(dtype) ? least_normal(dtype) : 0;
}

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

}  // namespace

double tolerance(DType dtype, int64_t reduction_length, double expected, double scale) {
  const double growth = 4 * std::sqrt(static_cast<double>(std::max<int64_t>(reduction_length, 1)));
  return (8 * step_of(dtype) + growth * step_of(accumulator_of(dtype))) / 2 * (std::abs(expected) + scale);
}

double beyond_range(DType dtype, double value) {
  double limit = HUGE_VAL;  // the least that rounds to infinity
  if (dtype == DType::f32) limit = 0x1.ffffffp127;
  if (dtype == DType::bf16) limit = 0x1.ffp127;
  if (dtype == DType::f16) limit = 65520;
  return std::abs(value) >= limit ? std::copysign(HUGE_VAL, value) : value;
}

bool is_within(DType dtype, double got, double exact, double allowed) {
  if (std::isnan(got) || std::isnan(exact)) return std::isnan(got) && std::isnan(exact);
  if (std::isinf(exact)) return got == exact;
  return beyond_range(dtype, exact - allowed) <= got && got <= beyond_range(dtype, exact + allowed);
}

int64_t place_of(const OutputReference& output, int64_t flat) {
  int64_t place = 0;
  for (size_t d = output.dims.size(); d-- > 0;) {
    place += flat % output.dims[d] * output.strides[d];
    flat /= output.dims[d];
  }
  return place;
}

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

void foresee(OutputReference& output) {
  const OutputCheck check(output, DType::f64, Situation::plain);  // the dtype counts where elements are compared
  output.foreseen = std::make_shared<const ExpectedBlocks>(check.demanded(), check.expected_blocks());
}

OutputCheck::OutputCheck(const OutputReference& output, DType dtype, Situation situation)
    : m_output(output), m_dtype(dtype), m_harsh(is_harsh(situation)) {
  Demand demand = output.demand;
  if (demand.dims.empty()) demand.dims = output.dims;
  if (!demand.dims.empty()) m_columns = demand.dims.back();
  m_demanded = demanded_blocks(demand, m_harsh ? k_harsh_share : 1);
}

Status OutputCheck::compare(const std::function<double(int64_t)>& got, const std::function<bool(int64_t)>& skip,
                            Verdict& verdict) const {
  const auto expected = expected_blocks();
  RootMeanSquare whole;
  for (const std::vector<double>& block : expected) whole.add(block);
  std::vector<Doubt> doubts;
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
        const Doubt element{static_cast<size_t>(flat), got(place), row[c], allowed(row[c], scale)};
        if (!agrees(element.got, element.exact, element.allowed, verdict)) doubts.push_back(element);
      }
    }
  }
  return look_into(std::move(doubts), verdict);
}

/// Where so many are in doubt that there is no time for all, those that miss by less than what was excused are, too.
Status OutputCheck::look_into(std::vector<Doubt> doubts, Verdict& verdict) const {
  sort_worst_first(doubts);
  DoubtTime time;
  for (const Doubt& doubt : doubts) {
    if (!time.allows(doubt, &doubt == doubts.data())) return {};
    const double start = thread_seconds();
    const bool is_excused = is_excused_by_rounding(doubt, verdict);
    time.spend(start);
    if (is_excused) continue;
    return error(StatusCode::internal, "output {}: element {} is {:.9g}, expected {:.9g}", m_output.buffer, doubt.index,
                 doubt.got, beyond_range(m_dtype, doubt.exact));
  }
  return {};
}

bool OutputCheck::is_excused_by_rounding(const Doubt& doubt, Verdict& verdict) const {
  const auto flat = static_cast<int64_t>(doubt.index);
  const bool may_overflow = m_harsh && m_output.within_range;
  // The tolerance is of the exact value: scales are not known here.
  const auto agrees_with = [&](double exact, double uncertain) {
    return std::isinf(uncertain) || agrees(doubt.got, exact, doubt.allowed + uncertain, verdict);
  };
  if (may_overflow && agrees_with(m_output.within_range(flat), 0)) return true;
  if (!m_output.uncertainty) return false;
  const auto excuses = [&](double uncertain) {
    return agrees_with(doubt.exact, uncertain) || (may_overflow && agrees_with(m_output.within_range(flat), uncertain));
  };
  return excuses(m_output.uncertainty(flat, excuses));
}

std::vector<std::vector<double>> OutputCheck::expected_blocks() const {
  if (m_output.foreseen && m_output.foreseen->demanded.blocks == m_demanded.blocks) return m_output.foreseen->values;
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

double OutputCheck::allowed(double exact, double scale) const {
  return tolerance(m_dtype, m_output.reduction_length, exact, scale) + (m_harsh ? lost_below(m_dtype) : 0);
}

bool OutputCheck::agrees(double got, double exact, double allowed, Verdict& verdict) const {
  if (!is_within(m_dtype, got, exact, allowed)) return false;
  const double difference = std::abs(got - exact);
  if (allowed > 0 && std::isfinite(difference)) verdict.max_error = std::max(verdict.max_error, difference / allowed);
  return true;
}

}  // namespace kiln
