#include <fmt/format.h>

#include "base/build_id.h"
#include "cache/format/artifact.h"
#include "cache/format/index.h"
#include "cli/command.h"
#include "frontend/wire/wire.h"

namespace kiln::cli {

Action add_version(CommandLine&) {
  return [](Session& session) {
    const Json versions{{"version", KILN_VERSION},
                        {"generator", generator_build_id()},
                        {"protocol", protocol::k_protocol_version},
                        {"wire_graph", k_wire_graph_version},
                        {"artifact_format", KILN_ARTIFACT_VERSION},
                        {"index_format", KILN_INDEX_VERSION}};
    if (session.out().json) {
      session.out().print_json(versions);
      return ExitCode::ok;
    }
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const auto& [name, value] : versions.items()) {
      std::string words = name;
      std::replace(words.begin(), words.end(), '_', ' ');
      pairs.emplace_back(words, value.is_string() ? value.get<std::string>() : value.dump());
    }
    session.out().print_pairs(pairs);
    return ExitCode::ok;
  };
}

}  // namespace kiln::cli
