#include "backends/cuda/compile/loops_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "backends/loops_stages.h"
#include "base/bytes.h"
#include "frontend/fuse/affine.h"

namespace kiln::cuda {
namespace {

constexpr int64_t k_widest_access_bytes = 16;
constexpr uint32_t k_longest_run = 8;
constexpr uint32_t k_threads = 256;
constexpr uint32_t k_widest_group = 512;

/// Weighs what is adjacent along a dim, by the bytes that move through it.
int64_t adjacent_bytes(const KernelSpec& spec, const LoopsSpec& loops, size_t dim) {
  int64_t bytes = 0;
  for (const Access& access : loops.body.accesses) {
    if (access.strides[dim] == 1) bytes += static_cast<int64_t>(size_of(spec.buffers[access.buffer].dtype));
  }
  return bytes;
}

/// The longest run that divides the dim.
uint32_t longest_whole_run(const KernelSpec& spec, const LoopsSpec& loops, size_t dim) {
  uint32_t run = longest_run(spec, loops.body, dim);
  while (loops.extents[dim] % run != 0) run /= 2;
  return run;
}

void add(std::vector<LoopsForm>& forms, LoopsForm form) {
  if (std::find(forms.begin(), forms.end(), form) == forms.end()) forms.push_back(form);
}

void add_threads(std::vector<LoopsForm>& forms, uint32_t run) {
  for (; run >= 1; run /= 2) add(forms, {.members = 1, .columns = k_threads, .run = run});
}

void add_rows(std::vector<LoopsForm>& forms, int64_t points, int64_t rows, uint32_t run) {
  const auto wanted = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(points / (4 * run), 1)));
  uint32_t members = static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 8, k_widest_group));
  // Few long rows: as many threads as there are.
  if (rows < 512)
    members = static_cast<uint32_t>(std::min<uint64_t>(std::bit_ceil(static_cast<uint64_t>(points)), k_widest_group));
  members = std::max(members, 2u);
  for (const uint32_t count : {members, std::min(members * 2, k_widest_group), std::max(members / 2, 2u)}) {
    for (const uint32_t length : {run, 1u}) {
      add(forms, {.members = count,
                  .columns = std::max(k_threads / count, 1u),
                  .run = length,
                  .members_are_neighbours = true});
    }
  }
}

}  // namespace

bool is_run_of(const Access& access, size_t dim, int64_t length) {
  if (access.strides[dim] != 1 || !access.indirect.empty() || access.offset % length != 0) return false;
  for (size_t d = 0; d < access.strides.size(); ++d) {
    if (d != dim && access.strides[d] % length != 0) return false;
  }
  return true;
}

uint32_t longest_run(const KernelSpec& spec, const Body& body, size_t dim) {
  int64_t widest = 0;
  for (const Access& access : body.accesses) {
    if (access.strides[dim] != 1) continue;
    widest = std::max(widest, static_cast<int64_t>(size_of(spec.buffers[access.buffer].dtype)));
  }
  if (widest == 0) return 1;
  auto run = static_cast<uint32_t>(std::min<int64_t>(k_widest_access_bytes / widest, k_longest_run));
  const auto helps = [&] {
    return std::any_of(body.accesses.begin(), body.accesses.end(),
                       [&](const Access& access) { return is_run_of(access, dim, run); });
  };
  while (run > 1 && !helps()) run /= 2;
  return run;
}

std::vector<LoopsForm> loops_forms(const KernelSpec& spec, const LoopsSpec& loops) {
  std::vector<LoopsForm> forms;
  const size_t rank = loops.extents.size();
  const auto parallel = std::span(loops.extents).first(loops.parallel_rank);
  const auto reduced = std::span(loops.extents).subspan(loops.parallel_rank);
  const bool ordered = std::any_of(loops.stages.begin(), loops.stages.end(),
                                   [&](const Stage& stage) { return is_ordered(loops, stage); });
  if (reduced.empty()) {
    const bool in_runs =
        !parallel.empty() && !ordered && loops.reductions.empty() &&
        std::none_of(loops.stages.begin(), loops.stages.end(), [](const Stage& s) { return s.per_row; });
    add_threads(forms, in_runs ? longest_whole_run(spec, loops, rank - 1) : 1);
    return forms;
  }
  const int64_t points = product(reduced), rows = product(parallel);
  if (!ordered && points > 1) {
    const int64_t along_rows = adjacent_bytes(spec, loops, rank - 1);
    const int64_t along_columns = parallel.empty() ? 0 : adjacent_bytes(spec, loops, loops.parallel_rank - 1);
    const uint32_t members =
        static_cast<uint32_t>(std::clamp<uint64_t>(std::bit_floor(static_cast<uint64_t>(points)), 2, 16));
    if (along_columns > along_rows) add(forms, {.members = members, .columns = 32});
    if (along_columns <= along_rows || rows < 4096)
      add_rows(forms, points, rows, longest_whole_run(spec, loops, rank - 1));
  }
  add_threads(forms, 1);
  return forms;
}

Schedule to_schedule(const LoopsForm& form) {
  ByteWriter writer;
  for (const uint32_t value : {form.members, form.columns, form.run, form.members_are_neighbours ? 1u : 0u}) {
    writer.write(value);
  }
  return {writer.take(), fmt::format("{} points of {} threads{}, runs of {}", form.columns, form.members,
                                     form.members > 1 && !form.members_are_neighbours ? " by columns" : "", form.run)};
}

Expected<LoopsForm> form_of(const Schedule& schedule) {
  uint32_t words[4] = {};
  if (schedule.bytes.size() != sizeof words) {
    return invalid_argument("cuda loops: a schedule of {} bytes, expected {}", schedule.bytes.size(), sizeof words);
  }
  std::memcpy(words, schedule.bytes.data(), sizeof words);
  const LoopsForm form{words[0], words[1], words[2], words[3] != 0};
  const bool is_good = std::has_single_bit(form.members) && std::has_single_bit(form.columns) &&
                       std::has_single_bit(form.run) && form.members <= 1024 && form.columns <= 1024 &&
                       form.threads() <= 1024 && form.threads() % 32 == 0 && form.run <= k_longest_run;
  if (!is_good) return invalid_argument("cuda loops: no such form: {}x{} runs of {}", words[0], words[1], words[2]);
  return form;
}

}  // namespace kiln::cuda
