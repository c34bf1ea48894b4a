#include "jit/resolve/sourced_kernels.h"

#include "backends/backend.h"
#include "base/process_mutex.h"

namespace kiln {

Expected<std::span<const uint8_t>> SourcedKernels::plan(const Digest& digest) {
  kiln_view view;
  if (const kiln_miss miss = m_source.find_digest(digest, KILN_ARTIFACT_PLAN, view)) {
    return error(StatusCode::not_found, "plan {}: {}", digest.to_short(), kiln_miss_name(miss));
  }
  return payload_of(view);
}

Expected<std::shared_ptr<const Executable>> SourcedKernels::executable(const Digest& digest) {
  {
    const std::scoped_lock lock(process_mutex());
    if (auto it = m_executables.find(digest); it != m_executables.end()) return it->second;
  }
  kiln_view view;
  auto miss = m_source.find_digest(digest, KILN_ARTIFACT_CODE, view);
  const uint8_t* code = miss == KILN_HIT ? view.payload : nullptr;
  if (miss == KILN_HIT && m_device.is_host()) miss = m_source.map_code(view, code);
  if (miss != KILN_HIT) {
    return error(StatusCode::not_found, "kernel {}: {}", digest.to_short(), kiln_miss_name(miss));
  }
  const kiln_artifact_header& header = view.header;
  Image launch_data{{}, header.entry, header.tasks, header.workspace_bytes, header.features};
  KILN_ASSIGN_OR_RETURN(auto loaded, m_device.load(launch_data, std::span(code, header.payload_size)));
  const std::scoped_lock lock(process_mutex());
  auto [it, is_new] = m_executables.try_emplace(digest, std::move(loaded));
  return it->second;
}

}  // namespace kiln
