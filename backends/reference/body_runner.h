#pragma once

#include <span>
#include <vector>

#include "backends/reference/number.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// Evaluates the expressions of one body at one point at a time. The spec is valid and outlives the runner.
/// Threading: one runner, one thread.
class BodyRunner {
 public:
  BodyRunner(const KernelSpec& spec, const Body& body, std::span<void* const> buffers);

  /// All that `roots` need, in the order of evaluation.
  std::vector<ExprId> order_for(std::span<const ExprId> roots) const { return needed_by(m_body, roots); }

  /// Evaluates `order` at `point`, one coordinate per iteration dim.
  void evaluate(std::span<const ExprId> order, std::span<const int64_t> point);
  Number value(ExprId id) const { return m_values[id]; }

  /// Needs the expressions of the store (value and indirect indices) evaluated at `point`.
  void store(const Store& store, std::span<const int64_t> point);

  void set_accumulator(Number value) { m_accumulator = value; }
  void set_reduced(size_t reduction, Number value);

  /// Whether an indirect index was out of range; such loads gave 0, such stores did nothing.
  bool index_out_of_range() const { return m_index_out_of_range; }

 private:
  /// Negative when an indirect index is out of range, which is noted.
  int64_t address(const Access& access, std::span<const int64_t> point);
  Number evaluate_node(const ScalarNode& node, std::span<const int64_t> point);

  const KernelSpec& m_spec;
  const Body& m_body;
  std::span<void* const> m_buffers;
  std::vector<Number> m_values;
  std::vector<Number> m_reduced;
  Number m_accumulator;
  bool m_index_out_of_range = false;
};

/// The element an access without indirect terms names at `point`.
int64_t plain_address(const Access& access, std::span<const int64_t> point);

/// Steps `point` through `extents` in row-major order; false after the last one (then it is all zeros again).
bool next_point(std::span<int64_t> point, std::span<const int64_t> extents);

}  // namespace kiln
