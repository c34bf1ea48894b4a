// kiln key: the keys that packs are signed with.

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "cache/pack/signing_key.h"
#include "cli/command.h"

namespace kiln::cli {
namespace {

Expected<PublicKey> create(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return error(StatusCode::unknown, "{}: {}", directory, std::strerror(errno));
  }
  KILN_ASSIGN_OR_RETURN(const SigningKey key, SigningKey::create());
  KILN_RETURN_IF_ERROR(key.write(directory + "/kiln.key", directory + "/kiln.pub"));
  return key.public_key();
}

ExitCode create_key(const Session& session, const std::string& directory) {
  KILN_CLI_ASSIGN(session, const PublicKey key, create(directory));
  if (session.out().json) {
    session.out().print_json(
        {{"key", directory + "/kiln.key"}, {"public", directory + "/kiln.pub"}, {"signer", key.to_short()}});
  } else {
    session.out().print_pairs(
        {{"signer", key.to_short()}, {"key", directory + "/kiln.key"}, {"public", directory + "/kiln.pub"}});
    session.out().note(
        "the key signs (kiln pack create --sign) and stays secret; the .pub goes into packs.trust of others");
  }
  return ExitCode::ok;
}

}  // namespace

Action add_key(CommandLine& line) {
  auto directory = std::make_shared<std::string>();
  CommandLine create_line = line.command("create", "Make kiln.key and kiln.pub");
  create_line.option("DIR", *directory, "Where to", {.is_required = true});
  return [directory](Session& session) { return create_key(session, *directory); };
}

}  // namespace kiln::cli
