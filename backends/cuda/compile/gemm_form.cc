#include "backends/cuda/compile/gemm_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/bytes.h"

namespace kiln::cuda {
namespace {

using Kind = GemmForm::Kind;

constexpr uint32_t k_alignment_bytes = 1024;  // shared_memory() rounds its start up
constexpr uint32_t k_simple_step = 16;        // gemm_simple.cuh's k_tile_k
constexpr uint32_t k_row_bytes = 128;

/// A form, and how much of the peak its inner loop reaches where tiles are many: the weights of the analytic model, from
/// published measurements of such tiles, to be replaced by measuring.
struct Row {
  GemmForm form;
  double efficiency;
};

constexpr std::array k_wgmma_rows{
    Row{{Kind::wgmma, 128, 256, 0, 0, 4, 2}, 1.0},  Row{{Kind::wgmma, 128, 256, 0, 0, 4, 1}, 0.97},
    Row{{Kind::wgmma, 128, 128, 0, 0, 6, 2}, 0.88}, Row{{Kind::wgmma, 128, 128, 0, 0, 6, 1}, 0.86},
    Row{{Kind::wgmma, 128, 64, 0, 0, 8, 1}, 0.65},  Row{{Kind::wgmma, 64, 128, 0, 0, 8, 1}, 0.6},
    Row{{Kind::wgmma, 64, 64, 0, 0, 8, 1}, 0.42},
};
constexpr std::array k_mma_rows{
    Row{{Kind::mma, 128, 128, 2, 4, 3, 1}, 0.6},
    Row{{Kind::mma, 128, 64, 2, 2, 3, 1}, 0.5},
    Row{{Kind::mma, 64, 128, 2, 2, 3, 1}, 0.5},
    Row{{Kind::mma, 64, 64, 2, 2, 4, 1}, 0.4},
};
constexpr std::array k_simple_rows{
    Row{{Kind::simple, 128, 128, 0, 0, 2, 1}, 1.0},
    Row{{Kind::simple, 128, 64, 0, 0, 2, 1}, 0.85},
    Row{{Kind::simple, 64, 64, 0, 0, 2, 1}, 0.7},
};

int64_t blocks_across(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }

/// Time in units of an element of C at peak: whole waves of tiles.
double cost(const GemmProblem& problem, const CudaTarget& target, const Row& row) {
  const double multiprocessors = target.capability >= 90 ? 132 : 108;  // H100, H200 and A100
  const auto tiles =
      static_cast<double>(problem.batches * blocks_across(problem.gemm->m, row.form.tile_m * row.form.cluster) *
                          row.form.cluster * blocks_across(problem.gemm->n, row.form.tile_n));
  const double waves = std::max(1.0, std::ceil(tiles / multiprocessors));
  return waves * row.form.tile_m * row.form.tile_n / row.efficiency;
}

template <size_t count>
void add_best_first(std::vector<GemmForm>& forms, const GemmProblem& problem, const CudaTarget& target,
                    const std::array<Row, count>& rows) {
  std::array<Row, count> sorted = rows;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Row& a, const Row& b) { return cost(problem, target, a) < cost(problem, target, b); });
  const DType accumulator = accumulator_of(problem.gemm->dtype);
  for (const Row& row : sorted) {
    // Accumulators of eight bytes take twice the registers.
    if (size_of(accumulator) > 4 && row.form.tile_m * row.form.tile_n > 64 * 64) continue;
    if (row.form.shared_bytes(accumulator) <= target.shared_bytes) forms.push_back(row.form);
  }
}

bool takes_tensors(const GemmProblem& problem, const CudaTarget& target) {
  return target.has_tma && problem.a.is_tensor && problem.b.is_tensor && problem.gemm->k > 0;
}

}  // namespace

uint32_t GemmForm::threads() const {
  if (kind == Kind::mma) return warps_m * warps_n * 32;
  return kind == Kind::wgmma ? 128 * (1 + tile_m / 64) : 256;
}

uint32_t GemmForm::shared_bytes(DType accumulator) const {
  const uint32_t ring = stages * (tile_m + tile_n) * k_row_bytes;
  switch (kind) {
    case Kind::simple:
      return 2 * k_simple_step * (tile_m + tile_n + 8) * static_cast<uint32_t>(size_of(accumulator)) +
             k_alignment_bytes;
    case Kind::mma:
      return std::max(ring, tile_m * tile_n * 4) + k_alignment_bytes;
    case Kind::wgmma:
      return ring + tile_m / 64 * 64 * 64 * 4 + 16 * stages + k_alignment_bytes;
  }
  return 0;
}

uint32_t GemmForm::blocks_of_sm() const { return kind != Kind::wgmma && tile_m * tile_n <= 64 * 64 ? 2 : 1; }

std::vector<GemmForm> gemm_forms(const GemmProblem& problem, const CudaTarget& target) {
  std::vector<GemmForm> forms;
  if (!problem.uses_tensor_cores()) {
    add_best_first(forms, problem, target, k_simple_rows);
    return forms;
  }
  if (takes_tensors(problem, target)) add_best_first(forms, problem, target, k_wgmma_rows);
  add_best_first(forms, problem, target, k_mma_rows);
  return forms;
}

GemmForm form_for_any_address(const GemmProblem& problem, const CudaTarget& target) {
  const std::vector<GemmForm> forms = gemm_forms(problem, target);
  return *std::find_if(forms.begin(), forms.end(), [](const GemmForm& form) { return form.kind != Kind::wgmma; });
}

Schedule to_schedule(const GemmForm& form) {
  constexpr std::string_view k_names[] = {"simple", "mma", "wgmma"};
  ByteWriter writer;
  writer.write(static_cast<uint32_t>(form.kind));
  for (const uint32_t value : {form.tile_m, form.tile_n, form.warps_m, form.warps_n, form.stages, form.cluster}) {
    writer.write(value);
  }
  std::string text = fmt::format("{} tile {}x{} stages {}", k_names[static_cast<size_t>(form.kind)], form.tile_m,
                                 form.tile_n, form.stages);
  if (form.cluster > 1) text += fmt::format(" cluster {}", form.cluster);
  return {writer.take(), text};
}

Expected<GemmForm> gemm_form_of(const Schedule& schedule) {
  uint32_t words[7] = {};
  if (schedule.bytes.size() != sizeof words) {
    return invalid_argument("cuda gemm: a schedule of {} bytes, expected {}", schedule.bytes.size(), sizeof words);
  }
  std::memcpy(words, schedule.bytes.data(), sizeof words);
  const GemmForm form{static_cast<Kind>(words[0]), words[1], words[2], words[3], words[4], words[5], words[6]};
  const auto is_known = [&](const auto& rows) {
    return std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return row.form == form; });
  };
  if (!is_known(k_simple_rows) && !is_known(k_mma_rows) && !is_known(k_wgmma_rows)) {
    return invalid_argument("cuda gemm: no such form: kind {}, tile {}x{}", words[0], words[1], words[2]);
  }
  return form;
}

}  // namespace kiln::cuda
