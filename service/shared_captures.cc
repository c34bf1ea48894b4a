#include "service/shared_captures.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_schema.h"

namespace kiln {

namespace {

using nlohmann::json;
using protocol::Verb;

Expected<std::string> find(const Digest& key, EntryStore& store, Supplies& supplies) {
  const auto found = supplies.find_capture(key);
  if (found) KILN_RETURN_IF_ERROR(store.publish(*found, {}, false));
  return json{{"schema_version", k_schema_version}, {"found", found.has_value()}}.dump();
}

void offer(const protocol::Command& put, const std::string& answer, Supplies& supplies) {
  const json said = json::parse(answer, nullptr, false);
  if (!said.is_object() || !said.value("stored", false)) return;
  const Digest digest = artifact_digest({ArtifactKind::capture, {}, put.data});
  supplies.offer_capture({put.key, digest, said.value("generation", uint32_t{0}), put.text, put.name}, put.data);
}

}  // namespace

Expected<std::string> run_on_captures(const protocol::Command& command, EntryStore& store, Supplies& supplies) {
  if (command.verb == Verb::capture_find) return find(command.key, store, supplies);
  KILN_ASSIGN_OR_RETURN(std::string answer, store.command(command));
  if (command.verb == Verb::capture_put) offer(command, answer, supplies);
  return answer;
}

}  // namespace kiln
