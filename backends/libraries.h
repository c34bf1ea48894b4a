#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.h"

/// Finding and opening vendors' libraries at run time. Nothing of them is needed to build or to start.
namespace kiln {

/// What the configuration says of where libraries are.
struct LibraryHints {
  std::string folders;  // libraries.path: with colons between
  std::string python;   // python.path: whose packages are searched
};

/// Who loads the configuration sets them before the first discover(); what was found stays as it was found.
/// Threading: any thread.
void set_library_hints(LibraryHints hints);
/// As set. Who loads none (workers and executors) has them of its environment, KILN_LIBRARIES_PATH and KILN_PYTHON_PATH,
/// which kilnd exports as it was configured.
LibraryHints library_hints();

/// Where libraries may lie, in the order of search.
struct SearchPath {
  struct Folder {
    std::string path;
    std::string origin;  // for people: "libraries.path", "python /usr/bin/python3"
  };
  std::vector<Folder> folders;  // the system's loader comes after them

  /// The folders of libraries.path: every backend's search begins with them.
  static SearchPath configured();
};

/// A file that the search path has, unopened.
struct FoundFile {
  std::string path, origin;
};
/// The first of `names` in the first folder that has one.
std::optional<FoundFile> find_file(const SearchPath& search, const std::vector<std::string>& names);

/// A shared library that stays open for good: what it made may be called at any time, by any thread.
class Library {
 public:
  /// The first that opens: each name in each folder, then each name by the loader alone.
  /// Errors: not_found, naming what was looked for, with the loader's last complaint.
  static Expected<Library> open(const SearchPath& search, const std::vector<std::string>& names);

  const std::string& path() const { return m_path; }      // what was opened, resolved
  const std::string& origin() const { return m_origin; }  // a folder's, or "loader"
  /// The GNU build id in hexadecimal: another build of the library is another one. Empty where it has none.
  std::string build_id() const;

  /// Errors: failed_precondition, naming the symbol and the library.
  template <typename Function>
  Status resolve(const char* name, Function*& function) const {
    void* found = nullptr;
    KILN_RETURN_IF_ERROR(find(name, found));
    function = reinterpret_cast<Function*>(found);
    return {};
  }

 private:
  Status find(const char* name, void*& symbol) const;

  void* m_handle = nullptr;
  std::string m_path, m_origin;
};

/// Opens what the library looks for by its bare name later on, from the same folder: libraries in Python packages are on
/// no loader's path. Nothing found is no error.
void open_beside(const std::string& library_path, std::string_view prefix);

}  // namespace kiln
