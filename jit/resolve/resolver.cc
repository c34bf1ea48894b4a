#include "jit/resolve/resolver.h"

#include <cstring>

#include "base/process_mutex.h"
#include "jit/resolve/size_ranges.h"
#include "jit/run/named_artifacts.h"

namespace kiln {

namespace {

/// More programs than a process has. What it meets beyond them may be of a later generation the next time.
constexpr size_t k_most_in_use = 65'536;

Digest digest_of_artifact(const kiln_view& view) {
  Digest digest;
  std::memcpy(digest.bytes.data(), view.header.digest, digest.bytes.size());
  return digest;
}

}  // namespace

Expected<std::unique_ptr<Resolver>> Resolver::create(const std::string& cache_directory, OpenDevice device,
                                                     std::string_view job, const PackFolders& packs,
                                                     const std::string& shared) {
  std::unique_ptr<DeviceStream> stream;
  if (!device.device->is_host()) {
    KILN_ASSIGN_OR_RETURN(stream, DeviceStream::create(*device.device));
  }
  return std::unique_ptr<Resolver>(
      new Resolver(cache_directory, std::move(device), std::move(stream), job, packs, shared));
}

Resolver::Resolver(const std::string& cache_directory, OpenDevice device, std::unique_ptr<DeviceStream> stream,
                   std::string_view job, const PackFolders& packs, const std::string& shared)
    : m_device(std::move(device)),
      m_stream(std::move(stream)),
      m_job(job.empty() ? std::nullopt : std::optional<JobHeads>(std::in_place, cache_directory, job)),
      m_sources(cache_directory, packs, shared),
      m_kernels(m_sources, *m_device.device, m_stream.get()) {}

Resolver::Lookup Resolver::find(const Digest& graph, uint32_t threads) {
  Lookup best;
  for (Target target : m_device.targets) {
    if (threads != 0) {
      target.threads = threads;
      Lookup lookup = look_up(program_key(graph, target));
      lookup.threads = threads;
      if (lookup.program) return lookup;
      target.threads = 0;
    }
    Lookup lookup = look_up(program_key(graph, target));
    if (lookup.program) return lookup;
    if (best.key_parts.empty()) best = std::move(lookup);
  }
  // The best target alone is asked of the daemon.
  const Digest deferred = program_key(graph, m_device.targets.front(), Proof::deferred).digest();
  kiln_view view;
  if (m_sources.find_key(deferred, KILN_ARTIFACT_PROGRAM, view) == KILN_HIT) {
    best.is_deferred = true;
    best.detail = fmt::format("program {} is there, built without a device of {} and not checked on one yet",
                              deferred.to_short(), m_device.targets.front().name);
  }
  return best;
}

Status Resolver::adopt(const std::vector<CarriedArtifact>& artifacts, const std::vector<CarriedHead>& heads) {
  return m_sources.directory().offer(artifacts, heads);
}

Resolver::Lookup Resolver::look_up(const Key& key) {
  Lookup lookup{nullptr, key.digest(), key.to_json(), KILN_HIT, {}};
  kiln_view view;
  if (const auto known = recorded(lookup.key)) {
    Lookup as_before = look_up_recorded(lookup, *known);
    if (as_before.program) return as_before;
    lookup.lost = known;
  }
  lookup.miss = m_sources.find_key(lookup.key, KILN_ARTIFACT_PROGRAM, view);
  if (lookup.miss != KILN_HIT) {
    lookup.detail = fmt::format("program {}: {}", lookup.key.to_short(), kiln_miss_name(lookup.miss));
    return lookup;
  }
  return load(std::move(lookup), view);
}

Resolver::Lookup Resolver::look_up_recorded(Lookup asked, const Digest& artifact) {
  asked.is_of_job = m_job.has_value();
  asked.program = nullptr;
  kiln_view view;
  asked.miss = m_sources.find_digest(artifact, KILN_ARTIFACT_PROGRAM, view);
  return asked.miss == KILN_HIT ? load(std::move(asked), view) : asked;
}

std::optional<Digest> Resolver::recorded(const Digest& key) const {
  if (m_job) return m_job->find(key);
  const std::scoped_lock lock(process_mutex());
  const auto found = m_in_use.find(key);
  return found == m_in_use.end() ? std::nullopt : std::optional(found->second);
}

Digest Resolver::record(const Digest& key, const Digest& artifact, const std::optional<Digest>& missing) {
  if (m_job) return m_job->record(key, artifact, missing);
  const std::scoped_lock lock(process_mutex());
  const auto found = m_in_use.find(key);
  if (found != m_in_use.end()) return found->second == missing ? found->second = artifact : found->second;
  if (m_in_use.size() < k_most_in_use) m_in_use.emplace(key, artifact);
  return artifact;
}

void Resolver::let_go(const Digest& key) {
  const std::scoped_lock lock(process_mutex());
  m_in_use.erase(key);
}

Resolver::Lookup Resolver::agree(Lookup hit) {
  if (hit.is_of_job) return hit;
  const Digest in_force = record(hit.key, hit.artifact, hit.lost);
  if (in_force == hit.artifact) return hit;
  Lookup as_recorded = look_up_recorded(hit, in_force);
  return as_recorded.program ? as_recorded : hit;
}

Resolver::Lookup Resolver::load(Lookup lookup, const kiln_view& view) {
  auto program = Program::load(payload_of(view), m_kernels);
  if (program.ok()) {
    lookup.program = std::move(program).value();
    lookup.artifact = digest_of_artifact(view);
    return lookup;
  }
  lookup.miss = program.status().code() == StatusCode::not_found ? KILN_MISS_EVICTED : KILN_MISS_CORRUPT;
  lookup.detail = program.status().message();
  return lookup;
}

std::optional<Resolver::ForSizes> Resolver::find_for_sizes(const Digest& graph, std::span<const int64_t> sizes) {
  std::vector<SizeRange> tried;
  for (const uint32_t doublings : k_range_doublings) {
    std::vector<SizeRange> ranges = ranges_around(sizes, doublings);
    if (ranges == tried) continue;
    kiln_view view;
    const Digest key = sized_program_key(graph, ranges, m_device.targets.front()).digest();
    if (m_sources.find_key(key, KILN_ARTIFACT_PROGRAM, view) == KILN_HIT) {
      return ForSizes{key, std::move(ranges), payload_of(view)};
    }
    tried = std::move(ranges);
  }
  return std::nullopt;
}

Expected<std::shared_ptr<const Program>> Resolver::load(const ForSizes& found, std::span<const int64_t> sizes) {
  return Program::load(found.bytes, m_kernels, sizes);
}

Expected<std::vector<Artifact>> Resolver::collect(const Digest& graph, const Target& target) {
  const Digest key = program_key(graph, target).digest();
  std::vector<Artifact> artifacts;
  kiln_view view;
  const auto take = [&](kiln_miss miss, std::string_view what, const Digest& name) -> Status {
    if (miss != KILN_HIT) {
      return error(StatusCode::not_found, "{} {}: {}", what, name.to_short(), kiln_miss_name(miss));
    }
    artifacts.push_back(artifact_of(view.header, payload_of(view)));
    return {};
  };
  KILN_RETURN_IF_ERROR(take(m_sources.find_key(key, KILN_ARTIFACT_PROGRAM, view), "program", key));
  for (const Digest& plan : plans_named_by(payload_of(view))) {
    KILN_RETURN_IF_ERROR(take(m_sources.find_digest(plan, KILN_ARTIFACT_PLAN, view), "plan", plan));
    for (const Digest& code : codes_named_by(payload_of(view))) {
      KILN_RETURN_IF_ERROR(take(m_sources.find_digest(code, KILN_ARTIFACT_CODE, view), "kernel", code));
    }
  }
  return artifacts;
}

std::optional<std::span<const uint8_t>> Resolver::find_capture(const Key& key) {
  kiln_view view;
  if (m_sources.find_key(key.digest(), KILN_ARTIFACT_CAPTURE, view) != KILN_HIT) {
    return std::nullopt;
  }
  return payload_of(view);
}

}  // namespace kiln
