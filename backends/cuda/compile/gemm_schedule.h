#pragma once

#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/compile/gemm_problem.h"
#include "backends/cuda/targets.h"

namespace kiln::cuda {

/// Which template (gemm_<kind>.cuh) with which tile.
struct GemmSchedule {
  static constexpr uint32_t k_version = 1;
  enum class Kind : uint8_t { simple = 0, mma = 1, wgmma = 2, packed_wgmma = 3 };

  Kind kind = Kind::simple;
  uint32_t tile_m = 64, tile_n = 64;
  uint32_t warps_m = 0, warps_n = 0;  // mma
  uint32_t stages = 2;
  uint32_t cluster = 1;  // wgmma, packed or not

  bool operator==(const GemmSchedule&) const = default;
  static auto fields(auto& s) { return std::tie(s.tile_m, s.tile_n, s.warps_m, s.warps_n, s.stages, s.cluster); }

  bool uses_wgmma() const { return kind == Kind::wgmma || kind == Kind::packed_wgmma; }
  uint32_t threads() const;
  uint32_t shared_bytes(DType accumulator) const;
  uint32_t blocks_of_sm() const;  // that the registers should leave room for
  /// "wgmma tile 128x256 stages 4 cluster 2"
  std::string describe() const;
};

/// A way to make a gemm's code: a row in the list of gemm_schedule.cc. Its name is in schedules' bytes; the
/// kind follows from it.
struct GemmImplementation {
  /// A schedule, and how much of the peak its inner loop reaches where tiles are many: the weights of the analytic model,
  /// from published measurements of such tiles, to be replaced by measuring.
  struct Row {
    GemmSchedule schedule;
    double efficiency;
  };
  std::string_view name;
  const std::string_view* text = nullptr;  // the template
  bool takes_any_address = true;
  bool (*claims)(const GemmProblem&, const CudaTarget&) = nullptr;
  /// Whether what it claims should come before what other rows do.
  bool (*pays)(const GemmProblem&) = nullptr;
  /// Whether the template makes such a tile, whatever the problem.
  bool (*makes)(const GemmSchedule&) = nullptr;
  std::span<const Row> rows;
};
const GemmImplementation& implementation_of(const GemmSchedule& schedule);

/// Best first, implementation by implementation, by waves of tiles over the machine's multiprocessors; at least one.
std::vector<GemmSchedule> ranked_schedules(const GemmProblem& problem, const CudaTarget& target,
                                           const Machine& machine);
/// The best of an implementation that takes any address, on a usual machine of the target.
GemmSchedule schedule_for_any_address(const GemmProblem& problem, const CudaTarget& target);

Schedule to_schedule(const GemmSchedule& schedule);
/// Errors: invalid_argument for bytes that are none, or a schedule that no kernel of the problem can be made with.
Expected<GemmSchedule> gemm_schedule_of(std::span<const uint8_t> bytes, const GemmProblem& problem,
                                        const CudaTarget& target);

}  // namespace kiln::cuda
