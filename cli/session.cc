#include "cli/session.h"

#include <algorithm>

#include "base/nearest.h"

namespace kiln::cli {
namespace {

/// Verifying and clearing a full cache reads or drops gigabytes from a slow disk.
constexpr uint64_t k_answer_timeout_ms = 600'000;

/// The whole name (key or digest) whose first digits are closest to `name`; empty when none is close.
std::string nearest_entry(std::string_view name, const Json& entries) {
  std::vector<std::string> names;
  for (const Json& entry : entries) {
    names.push_back(entry.value("digest", ""));
    for (const Json& head : entry.value("heads", Json::array())) names.push_back(head.value("key", ""));
  }
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const size_t distance = edit_distance(name, std::string_view(candidate).substr(0, name.size()));
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

}  // namespace

bool is_entry_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 &&
         text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

Status Session::connect(Start start) {
  if (m_connection) return {};
  if (config().disable) {
    return error(StatusCode::unavailable, "kiln is turned off ({})", m_config.origins.at("disable").where);
  }
  if (!config().daemon_use) {
    return error(StatusCode::unavailable, "the daemon is turned off ({})", m_config.origins.at("daemon.use").where);
  }
  auto connection = std::make_unique<Connection>(config());
  // Whatever keeps the daemon from being reached (no program, no permission, another version) is one thing to scripts.
  if (const Status status = connection->open(start == Start::may); !status.ok()) {
    return {StatusCode::unavailable, status.message()};
  }
  m_connection = std::move(connection);
  return {};
}

Expected<Json> Session::ask(protocol::Command command, Start start) {
  KILN_RETURN_IF_ERROR(connect(start));
  KILN_ASSIGN_OR_RETURN(
      const std::string answer,
      m_connection->command(std::move(command), deadline_in(k_answer_timeout_ms), start == Start::may));
  Json json = Json::parse(answer, nullptr, false);
  if (!json.is_object()) return kiln::error(StatusCode::internal, "the daemon's answer is no JSON object");
  return json;
}

Expected<Json> Session::find_entry(std::string_view name) {
  std::string digits(name);
  std::transform(digits.begin(), digits.end(), digits.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (!is_entry_name(digits)) {
    return invalid_argument("'{}' is no key: expected 1 to 64 hexadecimal digits", name.substr(0, 80));
  }
  auto answer = ask({.verb = protocol::Verb::show, .text = digits});
  if (answer.ok()) return std::move((*answer)["entry"]);
  if (answer.status().code() != StatusCode::not_found) return answer.status();
  KILN_ASSIGN_OR_RETURN(const Json listed, ask({.verb = protocol::Verb::list}));
  const std::string nearest = nearest_entry(digits, listed["entries"]);
  if (nearest.empty())
    return kiln::error(StatusCode::not_found, "no entry is called {}; kiln ls lists what there is", digits);
  return kiln::error(StatusCode::not_found, "no entry is called {}, the nearest is {}", digits, nearest.substr(0, 16));
}

ExitCode Session::fail(const Status& status) const {
  std::string_view next;
  switch (status.code()) {
    case StatusCode::unavailable:
      next = "kiln doctor says what is missing; kiln daemon logs what the daemon said last";
      break;
    case StatusCode::data_loss:
      next = "kiln verify drops damaged entries, which are built again; a damaged file has to be had anew";
      break;
    case StatusCode::deadline_exceeded:
      next = "the work goes on in the daemon: kiln status shows it; client.deadline_ms is how long is waited";
      break;
    default:
      break;
  }
  m_output.error(status, next);
  return exit_code_of(status);
}

}  // namespace kiln::cli
