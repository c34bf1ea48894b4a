#include "backends/libraries.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <mutex>

#include "base/split.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

struct KeptHints {
  std::mutex mutex;
  std::optional<LibraryHints> hints;
};

KeptHints& kept_hints() {
  static KeptHints kept;
  return kept;
}

struct BuildIdSearch {
  std::string path;
  std::string id;
};

int read_build_id(dl_phdr_info* info, size_t, void* argument) {
  auto& search = *static_cast<BuildIdSearch*>(argument);
  std::error_code failure;
  if (info->dlpi_name == nullptr || !fs::equivalent(info->dlpi_name, search.path, failure)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader says addresses as integers
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    const char* end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* name = at + sizeof note;
      const char* content = name + (note.n_namesz + 3) / 4 * 4;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        for (uint32_t b = 0; b < note.n_descsz; ++b)
          search.id += fmt::format("{:02x}", static_cast<uint8_t>(content[b]));
        return 1;
      }
      at = content + (note.n_descsz + 3) / 4 * 4;
    }
  }
  return 0;
}

}  // namespace

void set_library_hints(LibraryHints hints) {
  KeptHints& kept = kept_hints();
  const std::scoped_lock lock(kept.mutex);
  kept.hints = std::move(hints);
}

LibraryHints library_hints() {
  KeptHints& kept = kept_hints();
  const std::scoped_lock lock(kept.mutex);
  if (kept.hints) return *kept.hints;
  return {environment("KILN_LIBRARIES_PATH"), environment("KILN_PYTHON_PATH")};
}

SearchPath SearchPath::configured() {
  SearchPath search;
  for (std::string& folder : split(library_hints().folders, ':'))
    search.folders.push_back({std::move(folder), "libraries.path"});
  return search;
}

std::optional<FoundFile> find_file(const SearchPath& search, const std::vector<std::string>& names) {
  std::error_code failure;
  for (const SearchPath::Folder& folder : search.folders) {
    for (const std::string& name : names) {
      const std::string path = folder.path + "/" + name;
      if (fs::exists(path, failure)) return FoundFile{path, folder.origin};
    }
  }
  return std::nullopt;
}

Expected<Library> Library::open(const SearchPath& search, const std::vector<std::string>& names) {
  std::string complaint = "no such file";
  const auto attempt = [&](const std::string& path, const std::string& origin) {
    Library library;
    library.m_handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.m_handle == nullptr) {
      complaint = dlerror();
      return library;
    }
    link_map* map = nullptr;
    dlinfo(library.m_handle, RTLD_DI_LINKMAP, static_cast<void*>(&map));
    library.m_path = map != nullptr && map->l_name[0] != '\0' ? map->l_name : path;
    library.m_origin = origin;
    return library;
  };
  std::error_code failure;
  for (const SearchPath::Folder& folder : search.folders) {
    for (const std::string& name : names) {
      const std::string path = folder.path + "/" + name;
      if (!fs::exists(path, failure)) continue;
      Library library = attempt(path, folder.origin);
      if (library.m_handle != nullptr) return library;
    }
  }
  for (const std::string& name : names) {
    Library library = attempt(name, "loader");
    if (library.m_handle != nullptr) return library;
  }
  return error(StatusCode::not_found, "{} was found neither in {} folders nor by the loader: {}",
               fmt::join(names, " or "), search.folders.size(), complaint);
}

std::string Library::build_id() const {
  BuildIdSearch search{m_path, ""};
  dl_iterate_phdr(read_build_id, &search);
  return search.id;
}

Status Library::find(const char* name, void*& symbol) const {
  symbol = dlsym(m_handle, name);
  if (symbol != nullptr) return {};
  return error(StatusCode::failed_precondition, "{} has no {}: it is of another version, or half installed", m_path,
               name);
}

void open_beside(const std::string& library_path, std::string_view prefix) {
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(fs::path(library_path).parent_path(), failure)) {
    if (entry.path().filename().string().starts_with(prefix)) dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

}  // namespace kiln
