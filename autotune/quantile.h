#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace kiln {

/// The value that this share of the values is not above; 0 where there are none.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

/// The width of the middle half of the values, as a share of the median.
inline double spread_of(const std::vector<double>& values) {
  const double middle = quantile(values, 0.5);
  return middle > 0 ? (quantile(values, 0.75) - quantile(values, 0.25)) / middle : 0;
}

}  // namespace kiln
