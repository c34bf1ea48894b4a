#include "backends/cuda/libraries.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace kiln::cuda {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const size_t end = std::min(list.find(':'), list.size());
    if (end > 0) parts.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return parts;
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::error_code failure;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, failure)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// nvidia/*/lib of the packages under a Python's prefix.
void add_packages(SearchPath& search, const fs::path& prefix, const std::string& origin) {
  std::error_code failure;
  for (const fs::path& version : sorted_entries(prefix / "lib")) {
    if (!version.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const fs::path& package : sorted_entries(version / packages / "nvidia")) {
        if (fs::is_directory(package / "lib", failure)) search.folders.push_back({package / "lib", origin});
      }
    }
  }
}

/// A virtual environment's python is a link: its packages are beside the link, not beside what it names.
void add_python(SearchPath& search) {
  if (const std::string root = environment("VIRTUAL_ENV"); !root.empty()) add_packages(search, root, "python " + root);
  std::vector<std::string> programs;
  if (const std::string chosen = environment("KILN_PYTHON_PATH"); !chosen.empty()) programs.push_back(chosen);
  for (const std::string& folder : split(environment("PATH"))) {
    for (const char* name : {"python3", "python"}) programs.push_back(folder + "/" + name);
  }
  std::error_code failure;
  for (const std::string& program : programs) {
    if (!fs::exists(program, failure)) continue;
    const fs::path prefix = fs::path(program).parent_path().parent_path();
    add_packages(search, prefix, "python " + program);
    if (prefix == "/usr") add_packages(search, "/usr/local", "python " + program);
    return;
  }
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

SearchPath SearchPath::of_process() {
  SearchPath search;
  for (const std::string& folder : split(environment("KILN_CUDA_PATH")))
    search.folders.push_back({folder, "KILN_CUDA_PATH"});
  add_python(search);
  std::error_code failure;
  for (const std::string& root : {environment("CUDA_HOME"), environment("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    for (const char* folder : {"/lib64", "/lib"}) {
      if (!root.empty() && fs::is_directory(root + folder, failure))
        search.folders.push_back({root + folder, "cuda folder"});
    }
  }
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
    dlinfo(library.m_handle, RTLD_DI_LINKMAP, &map);
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
  return error(StatusCode::not_found, "{} was found neither in {} folders nor by the loader: {}", names.front(),
               search.folders.size(), complaint);
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
  for (const fs::path& entry : sorted_entries(fs::path(library_path).parent_path())) {
    if (entry.filename().string().starts_with(prefix)) dlopen(entry.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

}  // namespace kiln::cuda
