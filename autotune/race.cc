#include "autotune/race.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace kiln {

namespace {

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

class Race {
 public:
  Race(std::vector<Entrant>& entrants, const TakeSample& take_sample, const RaceRules& rules)
      : m_entrants(entrants),
        m_take_sample(take_sample),
        m_rules(rules),
        m_field(entrants.size()),
        m_expected(entrants.size()),
        m_least(entrants.size(), HUGE_VAL),
        m_patience(rules.retries) {
    std::iota(m_field.begin(), m_field.end(), size_t{0});
  }

  Expected<size_t> run() {
    for (const size_t index : m_field) warm_up(index);
    KILN_RETURN_IF_ERROR(m_entrants.front().status);
    const double best = *std::ranges::min_element(m_least);
    drop_slower(m_rules.first_margin + m_rules.first_noise_seconds / best);
    for (uint32_t turn = 0; turn < m_rules.turns && m_field.size() > 2 && !is_out_of_time(); ++turn) {
      KILN_RETURN_IF_ERROR(run_turn());
      drop_slower(m_rules.margin);
    }
    return m_field.size() < 2 ? 0 : run_final(fastest_challenger());
  }

 private:
  bool is_out_of_time() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - m_begin).count() > m_rules.most_seconds;
  }

  /// How long it takes, roughly; its pages and its code are touched. That may have slowed it, never made it faster.
  void warm_up(size_t index) {
    const auto sample = undisturbed(index);
    if (!sample.ok()) m_entrants[index].status = sample.status();
    m_least[index] = m_expected[index] = sample.ok() ? sample->seconds : HUGE_VAL;
  }

  /// A sample that was disturbed is taken again, a few times; then it counts as it is. Where that was in vain it is done
  /// less the next time: on a machine that is never quiet, every sample would take four times as long and say no more.
  Expected<TimeSample> undisturbed(size_t index) {
    for (uint32_t retries = 0;; ++retries) {
      auto sample = m_take_sample(index, m_expected[index]);
      if (!sample.ok()) return sample;
      const bool is_in_vain = sample->was_disturbed && retries >= m_patience;
      if (is_in_vain && m_patience > 0) --m_patience;
      if (!sample->was_disturbed && m_patience < m_rules.retries) ++m_patience;
      if (is_in_vain || !sample->was_disturbed) return sample;
      ++m_entrants[index].disturbed;
    }
  }

  Status take(size_t index) {
    const auto sample = undisturbed(index);
    if (!sample.ok()) return m_entrants[index].status = sample.status();
    m_expected[index] = sample->seconds;
    m_least[index] = std::min(m_least[index], sample->seconds);
    m_entrants[index].seconds.push_back(sample->seconds);
    return {};
  }

  Status run_turn() {
    std::vector<size_t> order = m_field;
    std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(m_turn++ % order.size()));
    for (const size_t index : order) {
      if (const Status status = take(index); !status.ok() && index == 0) return status;
    }
    return {};
  }

  /// Who failed, and whose least time is beyond the best's by `margin`, as a share. The incumbent stays.
  void drop_slower(double margin) {
    double best = HUGE_VAL;
    for (const size_t index : m_field) {
      if (m_entrants[index].status.ok()) best = std::min(best, m_least[index]);
    }
    std::erase_if(m_field, [&](size_t index) {
      return index != 0 && (!m_entrants[index].status.ok() || m_least[index] > best * (1 + margin));
    });
  }

  size_t fastest_challenger() const {
    return *std::ranges::min_element(m_field.begin() + 1, m_field.end(), {}, [&](size_t i) { return m_least[i]; });
  }

  Expected<size_t> run_final(size_t challenger) {
    Entrant &incumbent = m_entrants.front(), &other = m_entrants[challenger];
    incumbent.is_finalist = other.is_finalist = true;
    m_field = {0, challenger};
    const size_t mine = incumbent.seconds.size(), theirs = other.seconds.size();
    std::vector<double> ratios;
    int lead = 0,
        lag = 0;  // turns that the challenger won, less the others; turns without the least gain, less the others
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(m_rules.most_final_seconds);
    const auto is_clear = [&] { return m_least[challenger] < m_least[0] / (1 + m_rules.margin); };
    const auto is_decided = [&] { return lead >= m_rules.winning_lead || (lag >= m_rules.losing_lead && !is_clear()); };
    while (!is_decided() && ratios.size() < m_rules.most_final_turns && std::chrono::steady_clock::now() < end) {
      KILN_RETURN_IF_ERROR(run_turn());
      if (!other.status.ok()) return 0;
      ratios.push_back(other.seconds[theirs + ratios.size()] / incumbent.seconds[mine + ratios.size()]);
      lead += ratios.back() <= 1 - m_rules.least_gain / 2 ? 1 : -1;
      lag += ratios.back() > 1 - m_rules.least_gain ? 1 : -1;
    }
    // Without time for a lead, who was ahead so far; and where turns decide nothing the least samples do, if they are far apart,
    // since nothing makes a kernel faster than it is.
    const bool is_ahead =
        lead >= m_rules.winning_lead || (std::chrono::steady_clock::now() >= end && lead >= m_rules.losing_lead);
    const bool wins_by_turns = is_ahead && quantile(ratios, 0.5) <= 1 - m_rules.least_gain;
    return wins_by_turns || (!is_decided() && is_clear()) ? challenger : 0;
  }

  std::vector<Entrant>& m_entrants;
  const TakeSample& m_take_sample;
  const RaceRules& m_rules;
  std::vector<size_t> m_field;     // who still runs; the incumbent first
  std::vector<double> m_expected;  // seconds of a repetition, by the last sample
  std::vector<double> m_least;     // by any
  uint32_t m_patience;             // how often a disturbed sample is taken again
  uint32_t m_turn = 0;
  std::chrono::steady_clock::time_point m_begin = std::chrono::steady_clock::now();
};

}  // namespace

double Entrant::median() const { return quantile(seconds, 0.5); }

double Entrant::spread() const {
  const double middle = median();
  return middle > 0 ? (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / middle : 0;
}

Expected<size_t> race(std::vector<Entrant>& entrants, const TakeSample& take_sample, const RaceRules& rules) {
  if (entrants.empty()) return invalid_argument("a race without entrants");
  return Race(entrants, take_sample, rules).run();
}

}  // namespace kiln
