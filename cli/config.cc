#include <unistd.h>

#include "base/config/directories.h"
#include "cli/command.h"

namespace kiln::cli {
namespace {

std::string origin_text(const ConfigOrigin& origin) {
  return origin.where.empty() ? std::string(to_string(origin.layer))
                              : std::string(to_string(origin.layer)) + ", " + origin.where;
}

Json typed_value(const Config& config, const ConfigKey& key) {
  return std::visit([&](auto member) { return Json(config.*member); }, key.member);
}

ExitCode show(const Session& session, bool with_origin) {
  const LoadedConfig& loaded = session.loaded();
  Json values = Json::object();
  Table table(with_origin ? std::vector<std::string>{"KEY", "VALUE", "ORIGIN"}
                          : std::vector<std::string>{"KEY", "VALUE"});
  for (const ConfigKey& key : config_keys()) {
    const std::string name(key.name);
    const std::string text = value_text(loaded.values, key);
    const ConfigOrigin& origin = loaded.origins.at(name);
    Json value = typed_value(loaded.values, key);
    values[name] = with_origin ? Json{{"value", value}, {"layer", to_string(origin.layer)}, {"where", origin.where}}
                               : std::move(value);
    std::vector<std::string> row = {name, text.empty() ? "\"\"" : text};
    if (with_origin) row.push_back(origin_text(origin));
    table.add(std::move(row));
  }
  if (session.out().json) {
    session.out().print_json({{"values", values}});
  } else {
    session.out().print_table(table);
  }
  return ExitCode::ok;
}

/// The files that are read, in order; a later one wins.
ExitCode path(const Session& session) {
  const std::string& given = session.config_file();
  const ConfigSources sources = ConfigSources::from_process({}, given.empty() ? std::nullopt : std::optional(given));
  Json files = Json::array();
  Table table({"LAYER", "FILE", "EXISTS"});
  for (const auto& [layer, file] : {std::pair(ConfigLayer::system_file, sources.system_file),
                                    std::pair(ConfigLayer::user_file, sources.user_file)}) {
    const bool exists = !file.empty() && access(file.c_str(), R_OK) == 0;
    files.push_back({{"layer", to_string(layer)}, {"file", file}, {"exists", exists}});
    table.add({std::string(to_string(layer)), file, exists ? "yes" : "no"});
  }
  if (session.out().json) {
    session.out().print_json({{"files", files}});
  } else {
    session.out().print_table(table);
  }
  return ExitCode::ok;
}

}  // namespace

Action add_config(CommandLine& line) {
  CommandLine show_line = line.command("show", "Every key with its value");
  auto with_origin = std::make_shared<bool>(false);
  show_line.flag("--origin", *with_origin, "Also where each value came from");
  line.command("path", "The files that are read");
  return [show_line, with_origin](Session& session) {
    return show_line.is_chosen() ? show(session, *with_origin) : path(session);
  };
}

}  // namespace kiln::cli
