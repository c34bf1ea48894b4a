// kiln pack: entries carried to other machines in one file.

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <vector>

#include "base/printable.h"
#include "cache/pack/trusted_keys.h"
#include "cli/command.h"
#include "cli/pack_create.h"
#include "cli/pack_expect.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

/// What the configuration says of a pack's signer.
Expected<std::string> trust_in(const Config& config, const Pack& pack) {
  if (!pack.signer()) return std::string("unsigned");
  KILN_ASSIGN_OR_RETURN(const TrustedKeys capture_keys, TrustedKeys::read(config.packs_trust_captures));
  if (capture_keys.contains(*pack.signer())) return std::string("trusted, for captures too");
  KILN_ASSIGN_OR_RETURN(const TrustedKeys keys, TrustedKeys::read(config.packs_trust));
  return std::string(keys.contains(*pack.signer()) ? "trusted" : "not trusted");
}

std::string signer_of(const Pack& pack) { return pack.signer() ? pack.signer()->to_short() : "nobody"; }

ExitCode create(Session& session, const PackCreation& creation) {
  KILN_CLI_ASSIGN(session, const PackContents written, create_pack(session, creation));
  if (session.out().json) {
    session.out().print_json({{"file", creation.file},
                              {"artifacts", written.artifacts},
                              {"keys", written.keys},
                              {"bytes", written.bytes},
                              {"signer", written.signer}});
  } else {
    session.out().print_pairs({{"pack", creation.file},
                               {"artifacts", std::to_string(written.artifacts)},
                               {"keys", std::to_string(written.keys)},
                               {"size", human_bytes(written.bytes)},
                               {"signer", written.signer.empty() ? "nobody" : written.signer}});
    if (written.signer.empty()) session.out().note("nobody uses a pack that nobody signed: --sign names a key");
  }
  return ExitCode::ok;
}

/// How many artifacts of each kind there are, and how many keys for each target.
struct Tally {
  std::map<std::string, size_t> kinds, targets;

  static Expected<Tally> of(const Pack& pack) {
    Tally tally;
    for (const PackedArtifact& each : pack.artifacts()) {
      ++tally.kinds[std::string(to_string(static_cast<ArtifactKind>(each.kind)))];
    }
    for (const PackedHead& each : pack.heads()) {
      KILN_ASSIGN_OR_RETURN(const KeyDescription description, pack.describe(each));
      const Json parts = Json::parse(description.canonical_key, nullptr, false);
      const std::string target = parts.is_object() ? parts.value("target", "") : "";
      if (!target.empty()) ++tally.targets[target];
    }
    return tally;
  }
};

ExitCode show(Session& session, const std::string& file) {
  KILN_CLI_ASSIGN(session, const Pack pack, Pack::open(file));
  KILN_CLI_ASSIGN(session, const std::string trust, trust_in(session.config(), pack));
  KILN_CLI_ASSIGN(session, const Tally tally, Tally::of(pack));
  if (session.out().json) {
    session.out().print_json({{"file", file},
                              {"signer", signer_of(pack)},
                              {"trust", trust},
                              {"bytes", pack.size()},
                              {"kinds", tally.kinds},
                              {"keys", pack.heads().size()},
                              {"targets", tally.targets}});
    return ExitCode::ok;
  }
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"signer", signer_of(pack)}, {"trust", trust}, {"size", human_bytes(pack.size())}};
  for (const auto& [kind, count] : tally.kinds) pairs.emplace_back(kind, std::to_string(count));
  pairs.emplace_back("keys", std::to_string(pack.heads().size()));
  for (const auto& [target, count] : tally.targets) {
    pairs.emplace_back("keys for " + escaped(target), std::to_string(count));
  }
  session.out().print_pairs(pairs);
  return ExitCode::ok;
}

ExitCode verify(Session& session, const std::string& file, const WarmTorch& module) {
  KILN_CLI_ASSIGN(session, const Pack pack, Pack::open(file));
  if (const Status status = pack.check_all(); !status.ok()) return session.fail(status);
  if (!module.source.empty()) return expect_hits(session, pack, module);
  KILN_CLI_ASSIGN(session, const std::string trust, trust_in(session.config(), pack));
  if (session.out().json) {
    session.out().print_json({{"file", file},
                              {"checked", pack.artifacts().size()},
                              {"keys", pack.heads().size()},
                              {"signer", signer_of(pack)},
                              {"trust", trust}});
  } else {
    session.out().line(fmt::format("{} artifacts and {} keys checked, as {} signed them ({})", pack.artifacts().size(),
                                   pack.heads().size(), signer_of(pack), trust));
  }
  return ExitCode::ok;
}

ExitCode install(Session& session, const std::string& file) {
  std::error_code failure;
  const Json request = {{"path", std::filesystem::absolute(file, failure).string()},
                        {"trust", session.config().packs_trust},
                        {"trust_captures", session.config().packs_trust_captures}};
  KILN_CLI_ASSIGN(session, Json answer,
                  session.ask({.verb = protocol::Verb::install,
                               .text = request.dump(-1, ' ', false, Json::error_handler_t::replace)}));
  if (session.out().json) {
    session.out().print_json(std::move(answer));
    return ExitCode::ok;
  }
  std::vector<std::string> kinds;
  for (const auto& [kind, count] : answer.value("kinds", std::map<std::string, size_t>())) {
    kinds.push_back(fmt::format("{} {}", kind, count));
  }
  session.out().line(fmt::format("{} artifacts ({}) and {} keys are in the cache", answer.value("artifacts", 0),
                                 fmt::join(kinds, ", "), answer.value("keys", 0)));
  if (const auto kept = answer.value("keys_kept", 0); kept != 0) {
    session.out().note(fmt::format("{} of the keys lead elsewhere already, and keep that", kept));
  }
  if (const auto left = answer.value("captures_left_out", 0); left != 0) {
    session.out().note(fmt::format("{} captures are left out: packs.trust_captures does not name the signer", left));
  }
  return ExitCode::ok;
}

}  // namespace

Action add_pack(CommandLine& line) {
  auto creation = std::make_shared<PackCreation>();
  auto file = std::make_shared<std::string>();
  auto module = std::make_shared<WarmTorch>();
  CommandLine create_line = line.command("create", "Write what the cache has into a pack");
  create_line.option("FILE", creation->file, "The pack", {.is_required = true});
  create_line.option("--target", creation->targets, "Only what was made for these targets",
                     {.name = "NAME,…", .delimiter = ','});
  create_line.option("--sign", creation->sign, "The key that signs it", {.name = "FILE"});
  const auto with_file = [&](const char* name, const char* help) {
    CommandLine below = line.command(name, help);
    below.option("FILE", *file, "The pack", {.is_required = true});
    return below;
  };
  CommandLine show_line = with_file("show", "Signer and contents of a pack");
  CommandLine install_line = with_file("install", "Take a pack's entries into the cache");
  CommandLine verify_line = with_file("verify", "Read everything in a pack back");
  verify_line.option("--expect", module->source,
                     "A function that gives a torch module and example inputs: is it all there?",
                     {.name = "MODULE:FUNCTION"});
  verify_line.flag("--train", module->train, "With --expect: the backward too");
  verify_line.flag("--whole", module->whole, "With --expect: torch.compile(backend=\"kiln\") instead of kiln.compile");
  return [=](Session& session) {
    if (create_line.is_chosen()) return create(session, *creation);
    if (show_line.is_chosen()) return show(session, *file);
    if (install_line.is_chosen()) return install(session, *file);
    return verify(session, *file, *module);
  };
}

}  // namespace kiln::cli
