#pragma once

#include <memory>
#include <optional>

#include "base/config/config.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "client/connection/connection.h"

namespace kiln::cli {

/// Whether `text` can be the first digits of a key or digest: 1 to 64 hexadecimal digits.
bool is_entry_name(std::string_view text);

/// What every command works with: the configuration, the daemon, and where to write.
class Session {
 public:
  /// `config_file`: the one that the command line names instead of the user's; may be empty.
  Session(LoadedConfig config, std::string config_file, Output output)
      : m_config(std::move(config)), m_config_file(std::move(config_file)), m_output(output) {}

  const LoadedConfig& loaded() const { return m_config; }
  const Config& config() const { return m_config.values; }
  const std::string& config_file() const { return m_config_file; }
  const Output& out() const { return m_output; }

  enum class Start : uint8_t { may, never };
  /// Asks the daemon. unavailable when it cannot be reached: exit 3. `start` says whether one is started.
  Expected<Json> ask(protocol::Command command, Start start = Start::may);

  /// The entry that `name` (first digits of a key or digest) means. not_found names the nearest.
  Expected<Json> find_entry(std::string_view name);

  /// Says what went wrong and what to do next; the exit code that goes with it.
  ExitCode fail(const Status& status) const;

 private:
  Status connect(Start start);

  LoadedConfig m_config;
  std::string m_config_file;
  Output m_output;
  std::unique_ptr<Connection> m_connection;
};

/// Returns from the enclosing command, with the error printed and its exit code, when `expression` is one.
#define KILN_CLI_ASSIGN(session, target, expression) \
  KILN_CLI_ASSIGN_INNER(session, KILN_CONCAT(kiln_cli_expected_, __LINE__), target, expression)
#define KILN_CLI_ASSIGN_INNER(session, temporary, target, expression) \
  auto temporary = (expression);                                      \
  if (!temporary.ok()) return (session).fail(temporary.status());     \
  target = std::move(temporary).value()

}  // namespace kiln::cli
