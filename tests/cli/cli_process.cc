#include "cli_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace kiln {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

nlohmann::json CliResult::json() const {
  nlohmann::json value = nlohmann::json::parse(out, nullptr, false);
  EXPECT_TRUE(value.is_object()) << out << err;
  if (!value.is_object()) return nlohmann::json::object();
  EXPECT_EQ(value.value("schema_version", 0), 1) << out;
  return value;
}

CliWorld::CliWorld() {
  std::string pattern = fs::temp_directory_path() / "kiln-cli-XXXXXX";
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  m_directory = pattern;
  fs::create_directory(m_directory / "run");
  fs::permissions(m_directory / "run", fs::perms::owner_all);
  set("KILN_CACHE_DIR", cache());
  set("XDG_STATE_HOME", m_directory / "state");
  set("XDG_RUNTIME_DIR", m_directory / "run");
  set("XDG_CONFIG_HOME", m_directory / "config");
  set("KILN_DAEMON_IDLE_EXIT_MS", "60000");
  set("KILN_DAEMON_START_TIMEOUT_MS", "20000");  // a loaded machine is no failure
}

CliWorld::~CliWorld() {
  set("KILN_DISABLE", "");
  set("KILN_CONFIG", "");
  set("KILN_NO_DAEMON", "");
  EXPECT_EQ(kiln({"daemon", "stop"}).exit_status, 0);
  fs::remove_all(m_directory);
}

void CliWorld::set(const std::string& variable, const std::string& value) {
  std::erase_if(m_variables, [&](const auto& each) { return each.first == variable; });
  m_variables.emplace_back(variable, value);
}

std::string CliWorld::write(const std::string& name, const std::string& content) const {
  std::ofstream(m_directory / name, std::ios::binary) << content;
  return m_directory / name;
}

CliResult CliWorld::kiln(std::vector<std::string> arguments) const {
  const fs::path out = m_directory / "stdout", err = m_directory / "stderr";
  const pid_t child = start(std::move(arguments), out, err);
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), read_file(out), read_file(err)};
}

pid_t CliWorld::start(std::vector<std::string> arguments, const fs::path& out, const fs::path& err) const {
  std::vector<char*> argv;
  std::string program = KILN_CLI;
  argv.push_back(program.data());
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (const auto& [name, value] : m_variables) {
      if (value.empty()) {
        unsetenv(name.c_str());
      } else {
        setenv(name.c_str(), value.c_str(), 1);
      }
    }
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  return child;
}

}  // namespace kiln
