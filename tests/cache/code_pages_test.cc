// The memory that code of the cache runs in.

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <fstream>
#include <string>

#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

class CodePages : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = open_store(m_directory.path());
    ASSERT_TRUE(store->publish(code_batch(77, 9000)).ok());
    ASSERT_TRUE(store->flush().ok());
  }
  /// Finds and maps the code, and calls it; 0 where one of these fails.
  uint32_t answer() const {
    kiln_view view;
    const uint8_t* code = nullptr;
    if (kiln_reader_find_key(m_reader.get(), key_of(77).bytes.data(), KILN_ARTIFACT_CODE, &view) != KILN_HIT) return 0;
    if (kiln_reader_map_code(m_reader.get(), &view, &code) != KILN_HIT) return 0;
    return reinterpret_cast<uint32_t (*)()>(const_cast<uint8_t*>(code))();
  }

  TemporaryDirectory m_directory;
  const Reader m_reader = open_reader(m_directory.path());
};

/// No mprotect() of this process makes memory executable any more, as on hardened hosts.
bool forbid_executable_pages() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(CodePages, are_of_a_file_where_the_host_lets_no_written_page_be_executed) {
  EXPECT_TRUE(in_other_process([&] { return forbid_executable_pages() && answer() == 77; }));
}

TEST_F(CodePages, are_never_writable_and_executable) {
  ASSERT_EQ(answer(), 77U);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) EXPECT_EQ(line.find(" rwx"), std::string::npos) << line;
}

}  // namespace
}  // namespace kiln::testing
