#include "autotune/race.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "autotune/host_watch.h"
#include "autotune/machine_lock.h"
#include "autotune/quantile.h"

namespace kiln {

namespace {

class Race {
 public:
  Race(std::vector<Entrant>& entrants, const TakeSample& take_sample, const RaceRules& rules)
      : m_entrants(entrants),
        m_take_sample(take_sample),
        m_rules(rules),
        m_field(entrants.size()),
        m_expected(entrants.size()),
        m_least(entrants.size(), HUGE_VAL),
        m_cost(entrants.size()),
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
    return m_field.size() < 2 ? 0 : run_final();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  bool is_out_of_time() const { return seconds_since(m_begin) > m_rules.most_seconds; }

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
      sample->was_disturbed = sample->was_disturbed || sample->spread > m_rules.wide_spread;
      const bool is_in_vain = sample->was_disturbed && retries >= m_patience;
      if (is_in_vain && m_patience > 0) --m_patience;
      if (!sample->was_disturbed && m_patience < m_rules.retries) ++m_patience;
      if (is_in_vain || !sample->was_disturbed) return sample;
      ++m_entrants[index].disturbed;
    }
  }

  Status take(size_t index) {
    const auto begin = Clock::now();
    const auto sample = undisturbed(index);
    if (!sample.ok()) return m_entrants[index].status = sample.status();
    m_cost[index] = seconds_since(begin);
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
      Entrant& entrant = m_entrants[index];
      if (index == 0) return false;
      const bool is_slower = entrant.status.ok() && m_least[index] > best * (1 + margin);
      if (is_slower) entrant.slowness = m_least[index] / best;
      return is_slower || !entrant.status.ok();
    });
  }

  /// A challenger against the incumbent, turn by turn.
  struct Duel {
    size_t challenger = 0;
    std::vector<double> ratios;  // its time over the incumbent's
    int lead = 0;                // turns that it won, less the others
    int lag = 0;                 // turns without the least gain, less the others
  };

  /// Of the fastest challengers, as many as time allows turns for.
  std::vector<Duel> duels() const {
    std::vector<size_t> order(m_field.begin() + 1, m_field.end());
    std::ranges::sort(order, {}, [&](size_t i) { return m_least[i]; });
    const double slowest = m_least[order.front()] * (1 + m_rules.final_margin);
    std::vector<Duel> result;
    double turn = m_cost[0];
    for (const size_t index : order) {
      turn += m_cost[index];
      const bool has_time = turn * m_rules.winning_lead <= m_rules.most_final_seconds;
      const bool is_wanted = result.size() < m_rules.most_challengers && m_least[index] <= slowest && has_time;
      if (is_wanted || result.empty()) result.push_back({index});
    }
    return result;
  }

  void judge(Duel& duel) const {
    if (!m_entrants[duel.challenger].status.ok()) return;
    duel.ratios.push_back(m_entrants[duel.challenger].seconds.back() / m_entrants.front().seconds.back());
    duel.lead += duel.ratios.back() <= 1 - m_rules.least_gain / 2 ? 1 : -1;
    duel.lag += duel.ratios.back() > 1 - m_rules.least_gain ? 1 : -1;
  }

  bool is_clear(const Duel& duel) const { return m_least[duel.challenger] < m_least[0] / (1 + m_rules.margin); }
  bool is_decided(const Duel& duel) const {
    return !m_entrants[duel.challenger].status.ok() || duel.lead >= m_rules.winning_lead ||
           (duel.lag >= m_rules.losing_lead && !is_clear(duel));
  }

  /// Without time for a lead, who was ahead so far; and where turns decide nothing the least samples do, if they are far
  /// apart, since nothing makes a kernel faster than it is.
  bool is_won(const Duel& duel, bool is_cut_short) const {
    if (!m_entrants[duel.challenger].status.ok()) return false;
    const bool is_ahead = duel.lead >= m_rules.winning_lead || (is_cut_short && duel.lead >= m_rules.losing_lead);
    const bool wins_by_turns = is_ahead && quantile(duel.ratios, 0.5) <= 1 - m_rules.least_gain;
    return wins_by_turns || (!is_decided(duel) && is_clear(duel));
  }

  Expected<size_t> run_final() {
    std::vector<Duel> all = duels();
    m_entrants.front().is_finalist = true;
    for (const Duel& duel : all) m_entrants[duel.challenger].is_finalist = true;
    const auto begin = Clock::now();
    const auto is_over = [&] { return seconds_since(begin) > m_rules.most_final_seconds; };
    for (uint32_t turn = 0; turn < m_rules.most_final_turns && !is_over(); ++turn) {
      m_field = {0};
      for (const Duel& duel : all) {
        if (!is_decided(duel)) m_field.push_back(duel.challenger);
      }
      if (m_field.size() == 1) break;
      KILN_RETURN_IF_ERROR(run_turn());
      for (Duel& duel : all) {
        if (std::ranges::find(m_field, duel.challenger) != m_field.end()) judge(duel);
      }
    }
    const bool is_cut_short = is_over();
    std::erase_if(all, [&](const Duel& duel) { return !is_won(duel, is_cut_short); });
    const auto gain = [](const Duel& duel) { return quantile(duel.ratios, 0.5); };
    return all.empty() ? 0 : std::ranges::min_element(all, {}, gain)->challenger;
  }

  std::vector<Entrant>& m_entrants;
  const TakeSample& m_take_sample;
  const RaceRules& m_rules;
  std::vector<size_t> m_field;     // who still runs; the incumbent first
  std::vector<double> m_expected;  // seconds of a repetition, by the last sample
  std::vector<double> m_least;     // by any
  std::vector<double> m_cost;      // seconds that the last sample took
  uint32_t m_patience;             // how often a disturbed sample is taken again
  uint32_t m_turn = 0;
  Clock::time_point m_begin = Clock::now();
};

}  // namespace

double Entrant::median() const { return quantile(seconds, 0.5); }

double Entrant::spread() const { return spread_of(seconds); }

std::string Entrant::why_dropped() const {
  if (!status.ok()) return status.message();
  return slowness > 0 ? fmt::format("it took {:.2f} times as long as the fastest so far", slowness) : "";
}

Expected<size_t> race(std::vector<Entrant>& entrants, const TakeSample& take_sample, const RaceRules& rules) {
  if (entrants.empty()) return invalid_argument("a race without entrants");
  return Race(entrants, take_sample, rules).run();
}

Expected<size_t> race_alone(std::vector<Entrant>& entrants, const TakeSample& take_sample, const BestSoFar& note_best,
                            HostState& host) {
  std::vector<size_t> numbers;
  std::vector<Entrant> field;
  for (size_t i = 0; i < entrants.size(); ++i) {
    if (!entrants[i].status.ok()) continue;
    numbers.push_back(i);
    field.emplace_back().description = entrants[i].description;
  }
  HostWatch watch;
  double best = HUGE_VAL;
  const auto winner = race(field, [&](size_t index, double expected_seconds) {
    const auto alone = MachineLock::exclusive();
    auto sample = take_sample(numbers[index], expected_seconds);
    if (sample.ok()) watch.note(*sample);
    if (sample.ok() && sample->seconds < best) note_best(best = sample->seconds);
    return sample;
  });
  host = watch.state();
  for (size_t i = 0; i < numbers.size(); ++i) entrants[numbers[i]] = std::move(field[i]);
  return winner.ok() ? Expected<size_t>(numbers[*winner]) : winner;
}

}  // namespace kiln
