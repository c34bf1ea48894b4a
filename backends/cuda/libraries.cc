#include "backends/cuda/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

#include "base/split.h"

namespace kiln::cuda {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
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
void add_python(SearchPath& search, const std::string& program) {
  const fs::path prefix = fs::path(program).parent_path().parent_path();
  add_packages(search, prefix, "python " + program);
  if (prefix == "/usr") add_packages(search, "/usr/local", "python " + program);
}

void add_first_python_in_path(SearchPath& search) {
  std::error_code failure;
  for (const std::string& folder : split(environment("PATH"), ':')) {
    for (const char* name : {"/python3", "/python"}) {
      if (fs::exists(folder + name, failure)) return add_python(search, folder + name);
    }
  }
}

/// The file of a library that this process has; empty where it has none of that name.
fs::path loaded_file(const std::string& name) {
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return {};
  link_map* map = nullptr;
  const bool is_known = dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr;
  const fs::path file = is_known ? map->l_name : "";
  dlclose(handle);
  return file;
}

}  // namespace

SearchPath search_path() {
  SearchPath search = SearchPath::configured();
  const std::string python = library_hints().python;
  if (!python.empty()) add_python(search, python);
  if (const std::string root = environment("VIRTUAL_ENV"); !root.empty()) add_packages(search, root, "python " + root);
  if (python.empty()) add_first_python_in_path(search);
  std::error_code failure;
  for (const std::string& root : {environment("CUDA_HOME"), environment("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    for (const char* folder : {"/lib64", "/lib"}) {
      if (!root.empty() && fs::is_directory(root + folder, failure))
        search.folders.push_back({root + folder, "cuda folder"});
    }
  }
  return search;
}

std::string version_text(uint64_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

SearchPath search_path_of_process(const std::vector<std::string>& names) {
  SearchPath search;
  for (const std::string& name : names) {
    const fs::path file = loaded_file(name);
    if (!file.empty()) search.folders.push_back({file.parent_path(), "this process"});
  }
  for (SearchPath::Folder& folder : search_path().folders) search.folders.push_back(std::move(folder));
  return search;
}

}  // namespace kiln::cuda
