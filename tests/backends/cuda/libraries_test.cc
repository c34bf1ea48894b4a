#include "backends/cuda/libraries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace kiln::cuda {
namespace {

namespace fs = std::filesystem;

/// Pythons and CUDA folders of the test's own; nothing of the environment.
class SearchPathTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "kiln-libraries-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    m_directory = pattern;
    for (const char* name : {"VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH", "PATH"}) unsetenv(name);
    set_library_hints({});
  }
  void TearDown() override { fs::remove_all(m_directory); }

  std::string path(const std::string& name) const { return m_directory / name; }
  /// bin/python3 and the packages' folders under `prefix`; gives the program.
  std::string python(const std::string& prefix, const std::vector<std::string>& packages) const {
    const fs::path root = m_directory / prefix;
    fs::create_directories(root / "bin");
    std::ofstream(root / "bin/python3") << "";
    for (const std::string& package : packages)
      fs::create_directories(root / "lib/python3.12/site-packages/nvidia" / package / "lib");
    return root / "bin/python3";
  }
  std::string package(const std::string& prefix, const std::string& name) const {
    return m_directory / prefix / "lib/python3.12/site-packages/nvidia" / name / "lib";
  }

  fs::path m_directory;
};

/// "origin path" of each, without what the host has in /usr/local/cuda.
std::vector<std::string> lines(const SearchPath& search) {
  std::vector<std::string> result;
  for (const SearchPath::Folder& folder : search.folders) {
    if (!folder.path.starts_with("/usr/local/cuda")) result.push_back(folder.origin + ": " + folder.path);
  }
  return result;
}

TEST_F(SearchPathTest, configured_folders_then_pythons_packages_then_the_toolkits) {
  const std::string chosen = python("chosen", {"cu13", "cublas"});
  python("other", {"cu12"});
  python("venv", {"cu11"});
  fs::create_directories(path("toolkit/lib64"));
  setenv("VIRTUAL_ENV", path("venv").c_str(), 1);
  setenv("PATH", path("other/bin").c_str(), 1);
  setenv("CUDA_HOME", path("toolkit").c_str(), 1);
  set_library_hints({"/b:/a", chosen});
  EXPECT_THAT(lines(search_path()), testing::ElementsAre("libraries.path: /b", "libraries.path: /a",
                                                         "python " + chosen + ": " + package("chosen", "cu13"),
                                                         "python " + chosen + ": " + package("chosen", "cublas"),
                                                         "python " + path("venv") + ": " + package("venv", "cu11"),
                                                         "cuda folder: " + path("toolkit/lib64")));
}

TEST_F(SearchPathTest, where_no_python_is_configured_the_first_in_path_is_searched) {
  const std::string first = python("first", {"cu13"}), second = python("second", {"cu12"});
  setenv("PATH", ("/nonexistent::" + path("first/bin") + ":" + path("second/bin")).c_str(), 1);
  EXPECT_THAT(lines(search_path()), testing::ElementsAre("python " + first + ": " + package("first", "cu13")));
  set_library_hints({"", second});
  EXPECT_THAT(lines(search_path()), testing::ElementsAre("python " + second + ": " + package("second", "cu12")));
}

}  // namespace
}  // namespace kiln::cuda
