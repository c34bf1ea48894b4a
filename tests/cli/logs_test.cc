// kiln daemon logs -f: a daemon's log as it grows.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli_fixture.h"

namespace kiln {
namespace {

using testing::HasSubstr;

/// A log that no daemon writes to any more, and what `kiln daemon logs -f` prints of it from its last line on.
class FollowedLogs : public Cli {
 protected:
  void SetUp() override {
    ASSERT_EQ(kiln({"daemon", "start"}).exit_status, 0);
    m_log = kiln({"daemon", "logs", "--json"}).json()["file"];
    ASSERT_EQ(kiln({"daemon", "stop"}).exit_status, 0);
  }
  void TearDown() override {
    if (m_follower < 0) return;
    ::kill(m_follower, SIGTERM);
    int status = 0;
    EXPECT_EQ(waitpid(m_follower, &status, 0), m_follower);
  }

  void write(const std::string& text) const { std::ofstream(m_log, std::ios::app) << text; }
  void follow() {
    m_follower = m_world.start({"daemon", "logs", "-f", "-n", "1"}, m_out, m_world.directory() / "errors");
  }
  /// What was printed once it ends so, or when ten seconds have passed.
  std::string followed(const std::string& end) const {
    std::string text;
    for (int i = 0; i < 1'000 && !text.ends_with(end); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::ostringstream read;
      read << std::ifstream(m_out).rdbuf();
      text = read.str();
    }
    return text;
  }

  std::string m_log;

 private:
  const std::filesystem::path m_out = m_world.directory() / "followed";
  pid_t m_follower = -1;
};

TEST_F(FollowedLogs, GoOnInTheFileThatTakesTheirPlace) {
  write("begun, ");
  follow();
  const std::string first = followed("\n");
  EXPECT_EQ(std::ranges::count(first, '\n'), 1) << first;
  write("and ended\n");
  EXPECT_EQ(followed("ended\n"), first + "begun, and ended\n");

  // Rotated away, with words that were still written to the old file, for a new one that is no shorter.
  std::ofstream old(m_log, std::ios::app);
  std::filesystem::rename(m_log, m_log + ".1");
  old << "last words\n" << std::flush;
  std::ofstream(m_log + ".new") << std::string(std::filesystem::file_size(m_log + ".1"), 'x') << "\nnew\n";
  std::filesystem::rename(m_log + ".new", m_log);
  const std::string all = followed("\nnew\n");
  EXPECT_THAT(all, HasSubstr("begun, and ended\nlast words\nxxx"));
  EXPECT_THAT(all, testing::EndsWith("x\nnew\n"));
}

TEST_F(FollowedLogs, WriteOutWhatSteersATerminal) {
  write("\x1b[31mbefore\n");
  follow();
  EXPECT_EQ(followed("before\n"), "\\x1b[31mbefore\n");
  write("\x1b]0;title\x07 \r after\n");
  EXPECT_EQ(followed("after\n"), "\\x1b[31mbefore\n\\x1b]0;title\\x07 \\x0d after\n");
}

}  // namespace
}  // namespace kiln
