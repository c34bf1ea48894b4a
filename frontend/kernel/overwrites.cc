#include "frontend/kernel/overwrites.h"

#include <algorithm>
#include <utility>

namespace kiln {

namespace {

/// Whether the points of the iteration space and the elements of the buffer are one to one.
bool is_dense(const Access& access, const std::vector<int64_t>& extents, int64_t elements) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, extent
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] > 1) dims.emplace_back(access.strides[d], extents[d]);
  }
  std::ranges::sort(dims);
  int64_t covered = 1;
  for (const auto& [stride, extent] : dims) {
    if (stride != covered) return false;
    covered *= extent;
  }
  return access.offset == 0 && access.indirect.empty() && covered == elements;
}

bool is_only_read_as(const LoopsSpec& loops, uint32_t buffer, const Access& written) {
  return std::ranges::all_of(loops.body.accesses, [&](const Access& access) {
    return access.buffer != buffer ||
           (access.offset == written.offset && access.strides == written.strides && access.indirect.empty());
  });
}

}  // namespace

std::vector<Overwrite> overwrites(const KernelSpec& spec) {
  const auto* loops = std::get_if<LoopsSpec>(&spec.kernel);
  std::vector<Overwrite> found;
  if (loops == nullptr || loops->stages.size() != 1 || !loops->reductions.empty()) return found;
  const std::vector<Store>& stores = loops->stages.front().stores;
  for (const Store& store : stores) {
    const Access& written = loops->body.accesses[store.access];
    const BufferSpec& output = spec.buffers[written.buffer];
    const auto to_same = [&](const Store& other) {
      return loops->body.accesses[other.access].buffer == written.buffer;
    };
    if (output.role != BufferRole::output || store.mode != StoreMode::assign) continue;
    if (std::ranges::count_if(stores, to_same) != 1) continue;
    if (!is_dense(written, loops->extents, output.elements)) continue;
    for (uint32_t b = 0; b < spec.buffers.size(); ++b) {
      const BufferSpec& input = spec.buffers[b];
      const bool is_alike = input.dtype == output.dtype && input.elements == output.elements;
      if (input.role == BufferRole::input && is_alike && is_only_read_as(*loops, b, written)) {
        found.push_back({written.buffer, b});
      }
    }
  }
  return found;
}

}  // namespace kiln
