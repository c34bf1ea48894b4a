#pragma once

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

namespace kiln {

/// CPU time of the calling thread.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// An element that misses its tolerance. Whether rounding excuses that takes long to find out.
struct Doubt {
  size_t index = 0;  // the asker's
  double got = 0, exact = 0, allowed = 0;

  double difference() const { return std::abs(got - exact); }
  /// By how many times it misses.
  double excess() const { return std::isfinite(difference()) ? difference() / allowed : HUGE_VAL; }
};

/// Whether an element need not be known to be more uncertain than so: to know more may take long.
using IsEnough = std::function<bool(double uncertainty)>;

inline void sort_worst_first(std::vector<Doubt>& doubts) {
  std::ranges::stable_sort(doubts, std::greater(), &Doubt::excess);
}

/// The CPU time that comparisons may spend on doubts. Once it is spent, only the worst of each value is looked into, where
/// it misses by as much as a wrong operand makes it, and rounding seldom.
class DoubtTime {
 public:
  /// `seconds`: what it takes at least to look into it.
  bool allows(const Doubt& doubt, bool is_worst, double seconds = 0) const {
    return m_spent + seconds < k_most_seconds || (is_worst && is_plainly_wrong(doubt));
  }
  /// Whether to leave a doubt that has been looked into since thread_seconds() was `start`.
  bool is_over(const Doubt& doubt, double start) const {
    return m_spent + thread_seconds() - start > k_most_seconds && !is_plainly_wrong(doubt);
  }
  void spend(double start) { m_spent += thread_seconds() - start; }

 private:
  static constexpr double k_most_seconds = 1, k_plainly_wrong = 16;
  static bool is_plainly_wrong(const Doubt& doubt) { return doubt.excess() > k_plainly_wrong; }

  double m_spent = 0;
};

}  // namespace kiln
