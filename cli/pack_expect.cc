#include "cli/pack_expect.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/hex.h"
#include "cli/process.h"
#include "client/nearest/nearest.h"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

/// A folder with the pack in it, and room for a cache; removed at the end.
class EmptyPlace {
 public:
  static Expected<EmptyPlace> make(const Pack& pack) {
    std::error_code failure;
    std::string name = (fs::temp_directory_path(failure) / "kiln-expect-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return error(StatusCode::unknown, "{} cannot be made", name);
    EmptyPlace place(name);
    fs::create_directory(place.packs(), failure);
    if (!failure) fs::create_symlink(fs::absolute(pack.path()), place.packs() + "/expected.kpack", failure);
    if (failure) return error(StatusCode::unknown, "{}: {}", name, failure.message());
    return place;
  }
  EmptyPlace(EmptyPlace&& other) noexcept : m_path(std::exchange(other.m_path, {})) {}
  EmptyPlace& operator=(EmptyPlace&&) = delete;
  ~EmptyPlace() {
    std::error_code ignored;
    if (!m_path.empty()) fs::remove_all(m_path, ignored);
  }
  std::string packs() const { return m_path + "/packs"; }
  std::string cache() const { return m_path + "/cache"; }

 private:
  explicit EmptyPlace(std::string path) : m_path(std::move(path)) {}
  std::string m_path;
};

/// Answers for the pack as the daemon does for a cache.
Expected<Json> answer_of(const Pack& pack, const protocol::Command& command) {
  if (command.verb == protocol::Verb::content) {
    const PackedHead* head = pack.head(command.key);
    if (head == nullptr) return error(StatusCode::not_found, "no key {}", command.key.to_short());
    KILN_ASSIGN_OR_RETURN(const KeyDescription description, pack.describe(*head));
    return Json{{"content", to_hex(description.content)}};
  }
  Json heads = Json::array();
  for (const PackedHead& head : pack.heads()) {
    KILN_ASSIGN_OR_RETURN(const KeyDescription description, pack.describe(head));
    heads.push_back(
        {{"key", digest_in(head.key).to_hex()}, {"key_parts", Json::parse(description.canonical_key, nullptr, false)}});
  }
  return Json{{"entries", Json::array({Json{{"heads", heads}}})}};
}

/// Adds to each miss what the nearest key of the pack has otherwise.
Status explain(const Pack& pack, Json& missed) {
  KILN_ASSIGN_OR_RETURN(KnownKeys keys,
                        KnownKeys::list([&](const protocol::Command& command) { return answer_of(pack, command); }));
  for (Json& miss : missed) {
    const KnownKey key{.key = miss.value("key", ""), .parts = parts_of({{"key_parts", miss["parts"]}})};
    if (const auto nearest = keys.nearest(key)) miss["nearest"] = nearest->to_json();
  }
  return {};
}

void print_missed(const Output& out, const Json& missed) {
  Table table({"MISSING", "DIFFERS", "WANTED", "IN THE PACK", "WHICH MEANS"});
  for (const Json& miss : missed) {
    const std::string key = miss.value("key", "").substr(0, 16);
    const Json differs = miss.contains("nearest") ? miss["nearest"]["differs"] : Json::array();
    if (differs.empty()) table.add({key, "-", "-", "-", "the pack has no such key"});
    for (const Json& part : differs) {
      table.add({key, part.value("part", ""), part.value("ours", "").substr(0, 24),
                 part.value("theirs", "").substr(0, 24), part.value("meaning", "")});
    }
  }
  out.print_table(table);
}

}  // namespace

ExitCode expect_hits(Session& session, const Pack& pack, const WarmTorch& module) {
  KILN_CLI_ASSIGN(session, const EmptyPlace place, EmptyPlace::make(pack));
  auto variables = configuration_variables(session.loaded());
  const Config& config = session.config();
  variables.insert(variables.end(), {{"KILN_CACHE_DIRECTORY", place.cache()},
                                     {"KILN_DAEMON_USE", "false"},
                                     {"KILN_PACKS_PATH", place.packs()},
                                     {"KILN_PACKS_TRUST", config.packs_trust},
                                     {"KILN_PACKS_TRUST_CAPTURES", config.packs_trust_captures}});
  KILN_CLI_ASSIGN(session, Json stats, run_module(session, module, variables));
  Json missed = stats.value("missed", Json::array());
  if (const Status status = explain(pack, missed); !status.ok()) return session.fail(status);
  const auto got = stats.value("hits_mapped", uint64_t{0}), expected = got + stats.value("misses", uint64_t{0});
  if (session.out().json) {
    session.out().print_json({{"file", pack.path()}, {"expected", expected}, {"got", got}, {"missed", missed}});
  } else {
    session.out().line(fmt::format("{} of {} hits", got, expected));
    if (!missed.empty()) print_missed(session.out(), missed);
  }
  return got == expected && expected != 0 ? ExitCode::ok : ExitCode::short_of_hits;
}

}  // namespace kiln::cli
