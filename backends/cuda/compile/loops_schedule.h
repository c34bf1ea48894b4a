#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "backends/backend.h"

namespace kiln::cuda {

/// How a (simplified) loops kernel lies over threads. Each parallel point has `members` threads, which share out the
/// reduced points; a block has `columns` points.
///
///     members = 1             a thread a point; with `run` > 1 a thread makes a run of points along the last parallel dim
///     members are neighbours  a warp's or block's threads read a row together, `run` elements each
///     columns are neighbours  reduced points are far apart and parallel ones adjacent: sums over rows of a matrix
struct LoopsSchedule {
  static constexpr std::string_view k_implementation = "loops";
  static constexpr uint32_t k_version = 1;

  uint32_t members = 1;  // a power of two
  uint32_t columns = 256;
  uint32_t run = 1;
  bool members_are_neighbours = false;

  uint32_t threads() const { return members * columns; }
  bool operator==(const LoopsSchedule&) const = default;
  static auto fields(auto& s) { return std::tie(s.members, s.columns, s.run, s.members_are_neighbours); }
  /// Errors: invalid_argument when the (simplified) kernel cannot lie so.
  Status validate(const KernelSpec& spec, const LoopsSpec& loops) const;
  std::string describe() const;
};

/// Best first, at least one.
std::vector<LoopsSchedule> ranked_schedules(const KernelSpec& spec, const LoopsSpec& loops);

/// Whether the access may be made in runs of `length` along `dim`: adjacent there, all else a multiple of the length,
/// nothing indirect.
bool is_run_of(const Access& access, size_t dim, int64_t length);

/// The longest run along `dim` that some access of the body can be made in, by the widest of them.
uint32_t longest_run(const KernelSpec& spec, const Body& body, size_t dim);

}  // namespace kiln::cuda
