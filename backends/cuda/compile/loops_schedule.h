#pragma once

#include <optional>
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
///
/// Reduced points that must be met in order are not for members; `shares` threads of a point, anywhere in the grid, may
/// each meet all of them and make the stores at its share of the places (`place_of_stores`).
struct LoopsSchedule {
  static constexpr std::string_view k_implementation = "loops";
  static constexpr uint32_t k_version = 2;

  uint32_t members = 1;  // a power of two, as all of these
  uint32_t columns = 256;
  uint32_t run = 1;
  /// Steps of a thread's loop of which the loads are under way together; without reduced dims, its points.
  uint32_t ahead = 1;
  uint32_t shares = 1;
  bool members_are_neighbours = false;

  uint32_t threads() const { return members * columns; }
  bool operator==(const LoopsSchedule&) const = default;
  static auto fields(auto& s) {
    return std::tie(s.members, s.columns, s.run, s.ahead, s.shares, s.members_are_neighbours);
  }
  /// Errors: invalid_argument when the (simplified) kernel cannot lie so.
  Status validate(const KernelSpec& spec, const LoopsSpec& loops) const;
  std::string describe() const;
};

/// Best first by what bytes, latency and instructions are estimated to take on the machine; at least one.
std::vector<LoopsSchedule> ranked_schedules(const KernelSpec& spec, const LoopsSpec& loops, const Machine& machine);

/// The index from data that says, alone, which stores of the kernel meet in memory: stores at different values of it never
/// do, so that only those at equal ones must keep their order. None where there is no such index.
std::optional<ExprId> place_of_stores(const LoopsSpec& loops);

/// Whether the access may be made in runs of `length` along `dim`: adjacent there, all else a multiple of the length,
/// nothing indirect.
bool is_run_of(const Access& access, size_t dim, int64_t length);

/// The longest run along `dim` that some access of the body can be made in, by the widest of them.
uint32_t longest_run(const KernelSpec& spec, const Body& body, size_t dim);

}  // namespace kiln::cuda
