#include "cache/store/publisher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <unordered_set>

#include "base/fault.h"
#include "cache/format/touch.h"
#include "cache/store/files.h"
#include "cache/store/sst_scan.h"

namespace kiln {
namespace {

constexpr uint64_t k_slots_min = 4096;
constexpr uint32_t k_files_min = 1024;
/// A new index has room for this many times what it starts with, so that growth is rare.
constexpr uint64_t k_headroom = 3;

constexpr std::string_view k_link_suffix = ".sst";
constexpr std::string_view k_sidecar_suffix = ".kidx";
constexpr std::string_view k_index_prefix = "index.";

std::string file_name(uint64_t number, std::string_view suffix) { return fmt::format("{:06}{}", number, suffix); }

/// The number in "000123.sst" or "index.7"; nothing for other names.
std::optional<uint64_t> number_in(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) {
    return std::nullopt;
  }
  name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  uint64_t number = 0;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (code != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

Digest digest_in(const SidecarEntry& entry) {
  Digest digest;
  std::memcpy(digest.bytes.data(), entry.digest, digest.bytes.size());
  return digest;
}

kiln_index_slot slot_of(const Digest& digest, const Catalog::ArtifactState& artifact, uint32_t place) {
  const Location& location = *artifact.location;
  kiln_index_slot slot{.slot_kind = KILN_SLOT_ARTIFACT,
                       .artifact_kind = static_cast<uint16_t>(artifact.kind),
                       .offset = location.offset,
                       .length = location.length,
                       .checksum = location.checksum,
                       .file = place};
  std::memcpy(slot.key, digest.bytes.data(), sizeof slot.key);
  std::memcpy(slot.digest, digest.bytes.data(), sizeof slot.digest);
  return slot;
}

}  // namespace

Expected<std::unique_ptr<Publisher>> Publisher::open(const StoreOptions& options, const std::string& directory) {
  const std::string folder = directory + "/" KILN_PUBLISHED_FOLDER;
  KILN_RETURN_IF_ERROR(files::ensure_private_directory(folder));
  // Only a hint: without it eviction goes by age.
  static_cast<void>(files::ensure_sized(folder + "/" KILN_TOUCH_FILE, KILN_TOUCH_BYTES));
  std::unique_ptr<Publisher> publisher(new Publisher(options, folder));
  // Above every index that was ever begun: a reader may still have an old one mapped under its name.
  for (const std::string& name : files::list(folder)) {
    const auto generation = number_in(name, k_index_prefix, "");
    if (generation) publisher->m_next_generation = std::max(publisher->m_next_generation, *generation + 1);
  }
  return publisher;
}

std::string Publisher::link_path(uint64_t number) const { return m_folder + "/" + file_name(number, k_link_suffix); }

Expected<std::vector<Digest>> Publisher::sync(const std::vector<LiveFile>& live, Catalog& catalog) {
  for (const LiveFile& file : live) {
    if (!m_files.contains(file.number)) KILN_RETURN_IF_ERROR(adopt(file, catalog));
  }
  std::unordered_set<uint64_t> numbers;
  for (const LiveFile& file : live) numbers.insert(file.number);
  std::vector<uint64_t> gone;
  for (const auto& [number, file] : m_files) {
    if (!numbers.contains(number)) gone.push_back(number);
  }
  std::vector<Digest> lost;
  for (uint64_t number : gone) {
    const std::vector<Digest> only_here = retire(number, catalog);
    lost.insert(lost.end(), only_here.begin(), only_here.end());
  }
  if (!lost.empty()) return lost;  // their slots go first, then their links

  KILN_RETURN_IF_ERROR(show_changes(catalog));
  KILN_FAULT_POINT("cache.index.shown");
  reap(live);
  return lost;
}

Status Publisher::adopt(const LiveFile& file, Catalog& catalog) {
  const std::string link = link_path(file.number);
  const bool linked_before = files::same(file.path, link);
  if (!linked_before) {
    KILN_RETURN_IF_ERROR(files::link_or_copy(file.path, link));
  }
  KILN_FAULT_POINT("cache.adopt.linked");
  // Clients refuse what others could have written, whatever the umask was.
  if (::chmod(link.c_str(), 0600) != 0) return error(StatusCode::unavailable, "{}: {}", link, std::strerror(errno));
  KILN_ASSIGN_OR_RETURN(Sidecar sidecar, sidecar_of(file, linked_before, catalog));
  KILN_FAULT_POINT("cache.adopt.sidecar");
  locate(file.number, sidecar, catalog);
  PublishedFile published{std::move(sidecar), file.size, 0};
  if (m_index) {
    const auto place = m_index->add_file(file_name(file.number, k_link_suffix), file.size, published.sidecar.identity);
    if (!place) m_index = nullptr;  // full: show_changes begins a new one
    if (place) published.place = *place;
  }
  m_files.emplace(file.number, std::move(published));
  return {};
}

/// A sidecar is believed only beside the very file it was written for.
Expected<Sidecar> Publisher::sidecar_of(const LiveFile& file, bool linked_before, const Catalog& catalog) {
  const std::string path = m_folder + "/" + file_name(file.number, k_sidecar_suffix);
  if (linked_before) {
    if (const auto bytes = files::read(path); bytes.ok()) {
      if (auto sidecar = decode_sidecar(*bytes, file.size); sidecar.ok()) return sidecar;
    }
  }
  std::vector<Digest> wanted;
  for (const auto& [digest, artifact] : catalog.artifacts()) wanted.push_back(digest);
  KILN_ASSIGN_OR_RETURN(const auto entries, scan_sst(m_options, link_path(file.number), wanted));
  ++m_files_scanned;
  const std::vector<uint8_t> bytes = encode_sidecar(entries, file.size);
  KILN_RETURN_IF_ERROR(files::replace(path, bytes));
  return decode_sidecar(bytes, file.size);
}

void Publisher::locate(uint64_t number, const Sidecar& sidecar, Catalog& catalog) {
  for (const SidecarEntry& entry : sidecar.entries) {
    const Digest digest = digest_in(entry);
    // Erased artifacts stay in their file until it goes; the catalog decides what there is.
    if (catalog.artifact(digest) == nullptr) continue;
    catalog.set_location(digest, {number, entry.offset, entry.length, entry.checksum});
  }
}

/// Forgets the file's places. Returns the artifacts that had no other.
std::vector<Digest> Publisher::retire(uint64_t number, Catalog& catalog) {
  std::vector<Digest> lost;
  for (const SidecarEntry& entry : m_files.at(number).sidecar.entries) {
    const Digest digest = digest_in(entry);
    const auto* artifact = catalog.artifact(digest);
    if (artifact != nullptr && artifact->location && artifact->location->file == number) lost.push_back(digest);
  }
  m_files.erase(number);
  return lost;
}

/// False when the index must grow.
bool Publisher::show_artifact(const Digest& digest, const Catalog& catalog) {
  const auto* artifact = catalog.artifact(digest);
  if (artifact == nullptr || !artifact->location) return true;
  kiln_index_slot slot = slot_of(digest, *artifact, m_files.at(artifact->location->file).place);
  if (!m_index->put(slot)) return false;
  for (const Digest& key : artifact->keys) {
    slot.slot_kind = KILN_SLOT_HEAD;
    slot.generation = catalog.head(key)->generation;
    std::memcpy(slot.key, key.bytes.data(), sizeof slot.key);
    if (!m_index->put(slot)) return false;
  }
  return true;
}

Status Publisher::show_changes(Catalog& catalog) {
  const Catalog::Changes changes = catalog.take_changes();
  if (!m_index) return rebuild_index(catalog);
  // Removals first: a key or digest that came back is among the changed ones.
  for (const Digest& key : changes.removed_keys) m_index->remove(KILN_SLOT_HEAD, key.bytes.data());
  for (const Digest& digest : changes.removed_artifacts) {
    m_index->remove(KILN_SLOT_ARTIFACT, digest.bytes.data());
  }
  for (const Digest& digest : changes.artifacts) {
    if (!show_artifact(digest, catalog)) return rebuild_index(catalog);
  }
  return {};
}

/// A new index with everything in it: at start, when the old one is full, and when it gathered too many
/// removed slots.
Status Publisher::rebuild_index(const Catalog& catalog) {
  m_index = nullptr;  // should this fail, the next sync tries again
  uint64_t capacity =
      std::bit_ceil(std::max(k_slots_min, k_headroom * (catalog.artifacts().size() + catalog.heads().size())));
  const uint64_t file_capacity = std::max<uint64_t>(k_files_min, k_headroom * m_files.size());
  for (;; capacity *= 2) {
    const uint64_t generation = m_next_generation++;
    const std::string path = fmt::format("{}/{}{}", m_folder, k_index_prefix, generation);
    KILN_ASSIGN_OR_RETURN(m_index,
                          IndexWriter::create(path, generation, capacity, static_cast<uint32_t>(file_capacity)));
    for (auto& [number, file] : m_files) {
      const auto place = m_index->add_file(file_name(number, k_link_suffix), file.size, file.sidecar.identity);
      assert(place && "the table was made large enough");
      file.place = *place;
    }
    const bool fits = std::all_of(catalog.artifacts().begin(), catalog.artifacts().end(),
                                  [&](const auto& entry) { return show_artifact(entry.first, catalog); });
    if (!fits) continue;  // a cluster longer than a probe may be; reap removes the attempt
    KILN_RETURN_IF_ERROR(m_index->begin());
    KILN_FAULT_POINT("cache.index.filled");
    const std::string current = fmt::format("{}{}\n", k_index_prefix, generation);
    return files::replace(m_folder + "/" KILN_CURRENT_FILE,
                          {reinterpret_cast<const uint8_t*>(current.data()), current.size()});
  }
}

/// Removes what is published no more: links, sidecars and indexes of files that went, and remains of a killed
/// store.
void Publisher::reap(const std::vector<LiveFile>& live) {
  std::unordered_set<std::string> keep = {KILN_CURRENT_FILE, KILN_TOUCH_FILE,
                                          fmt::format("{}{}", k_index_prefix, m_index->generation())};
  for (const LiveFile& file : live) {
    keep.insert(file_name(file.number, k_link_suffix));
    keep.insert(file_name(file.number, k_sidecar_suffix));
  }
  for (const std::string& name : files::list(m_folder)) {
    if (!keep.contains(name)) ::unlink((m_folder + "/" + name).c_str());
  }
}

}  // namespace kiln
