#pragma once

#include <sys/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kiln {

/// What `kiln` did.
struct CliResult {
  int exit_status = -1;  // 128 + the signal's number for who was killed
  std::string out, err;

  /// Stdout, which must be exactly one object with a schema_version.
  nlohmann::json json() const;
};

/// A cache, a state and a runtime directory of a test's own, and the environment that goes with them. Stops the daemon
/// at the end.
class CliWorld {
 public:
  CliWorld();
  ~CliWorld();
  CliWorld(const CliWorld&) = delete;
  CliWorld& operator=(const CliWorld&) = delete;

  CliResult kiln(std::vector<std::string> arguments) const;
  /// Goes on meanwhile, writing to these files; the caller waits for the process.
  pid_t start(std::vector<std::string> arguments, const std::filesystem::path& out,
              const std::filesystem::path& err) const;
  /// For all later runs; an empty value unsets.
  void set(const std::string& variable, const std::string& value);

  std::filesystem::path directory() const { return m_directory; }
  std::filesystem::path cache() const { return m_directory / "cache"; }
  /// Writes a file and gives its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path m_directory;
  std::vector<std::pair<std::string, std::string>> m_variables;
};

}  // namespace kiln
