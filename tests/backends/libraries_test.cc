#include "backends/libraries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace kiln {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* k_library = "libm.so.6";  // any host has it

class Libraries : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "kiln-libraries-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    m_directory = pattern;
  }
  void TearDown() override { fs::remove_all(m_directory); }

  /// A folder with the system's library in it, under `name`.
  SearchPath::Folder with_library(const std::string& folder, const std::string& name) const {
    const auto library = Library::open({}, {k_library});
    EXPECT_TRUE(library.ok()) << library.status().to_string();
    fs::create_directories(m_directory / folder);
    fs::copy_file(fs::canonical(library->path()), m_directory / folder / name);
    return {m_directory / folder, folder};
  }
  /// A folder with a file in it that is no library.
  SearchPath::Folder with_text(const std::string& folder, const std::string& name) const {
    fs::create_directories(m_directory / folder);
    std::ofstream(m_directory / folder / name) << "no library";
    return {m_directory / folder, folder};
  }

  fs::path m_directory;
};

std::vector<std::string> paths(const SearchPath& search) {
  std::vector<std::string> result;
  for (const SearchPath::Folder& folder : search.folders) {
    EXPECT_EQ(folder.origin, "libraries.path");
    result.push_back(folder.path);
  }
  return result;
}

TEST_F(Libraries, hints_are_the_environments_until_they_are_set) {
  setenv("KILN_LIBRARIES_PATH", "/b:/a", 1);
  setenv("KILN_PYTHON_PATH", "/x/bin/python", 1);
  EXPECT_EQ(library_hints().python, "/x/bin/python");
  EXPECT_THAT(paths(SearchPath::configured()), testing::ElementsAre("/b", "/a"));
  set_library_hints({"/c::/b", ""});
  EXPECT_EQ(library_hints().python, "");
  EXPECT_THAT(paths(SearchPath::configured()), testing::ElementsAre("/c", "/b"));
  set_library_hints({});
  EXPECT_THAT(paths(SearchPath::configured()), testing::IsEmpty());
}

TEST_F(Libraries, the_first_folder_that_has_one_is_taken) {
  const SearchPath search{{{"/nonexistent", "none"},
                           with_library("first", "libkiln-test.so.1"),
                           with_library("second", "libkiln-test.so.2")}};
  const std::vector<std::string> names = {"libkiln-test.so.2", "libkiln-test.so.1"};
  const auto library = Library::open(search, names);
  ASSERT_TRUE(library.ok()) << library.status().to_string();
  EXPECT_EQ(library->origin(), "first");
  EXPECT_EQ(library->path(), m_directory / "first/libkiln-test.so.1");
  double (*cosine)(double) = nullptr;
  ASSERT_TRUE(library->resolve("cos", cosine).ok());
  EXPECT_EQ(cosine(0), 1);
  const auto found = find_file(search, names);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->origin, "first");
}

TEST_F(Libraries, what_does_not_open_is_passed_over_and_the_loader_comes_last) {
  const SearchPath search{{with_text("text", k_library)}};
  const auto library = Library::open(search, {k_library});
  ASSERT_TRUE(library.ok()) << library.status().to_string();
  EXPECT_EQ(library->origin(), "loader");
}

TEST_F(Libraries, a_missing_one_is_named_with_all_that_was_looked_for) {
  const auto library = Library::open({{{m_directory, "test"}}}, {"libkiln-test.so.2", "libkiln-test.so.1"});
  EXPECT_EQ(library.status().code(), StatusCode::not_found);
  EXPECT_THAT(library.status().message(), HasSubstr("libkiln-test.so.2 or libkiln-test.so.1"));
  EXPECT_THAT(library.status().message(), HasSubstr("1 folders"));
}

TEST_F(Libraries, a_missing_symbol_is_named_with_the_library) {
  const auto library = Library::open({}, {k_library});
  ASSERT_TRUE(library.ok());
  void (*function)() = nullptr;
  const Status missing = library->resolve("kiln_no_such_function", function);
  EXPECT_EQ(missing.code(), StatusCode::failed_precondition);
  EXPECT_THAT(missing.message(), HasSubstr(library->path() + " has no kiln_no_such_function"));
}

}  // namespace
}  // namespace kiln
