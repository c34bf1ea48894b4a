#include "cache/fleet/redis_store.h"

#include <utility>

namespace kiln {
namespace {

constexpr uint16_t k_default_port = 6379;

constexpr std::string_view k_lease_script = R"(
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1)";

}  // namespace

Expected<std::unique_ptr<FleetStore>> RedisStore::create(const UrlParts& url, std::string password) {
  const std::string database = url.path.size() > 1 ? url.path.substr(1) : "0";
  if (database.size() > 4 || database.find_first_not_of("0123456789") != std::string::npos) {
    return invalid_argument("'{}' is no number of a database of Redis", database.substr(0, 32));
  }
  const uint16_t port = url.port == 0 ? k_default_port : url.port;
  return std::unique_ptr<FleetStore>(new RedisStore({url.host, port, database, std::move(password)}));
}

Status RedisStore::nonsense() {
  m_servers.close();
  return error(StatusCode::data_loss, "redis: an answer that is none to what was asked");
}

/// A command a name, since a cluster's servers take no two names of different slots in one.
Expected<std::vector<std::optional<FleetStore::Bytes>>> RedisStore::get(std::span<const std::string> names,
                                                                        Deadline until) {
  std::vector<RedisCluster::Command> commands;
  for (const std::string& name : names) commands.push_back({name, {"GET", name}});
  KILN_ASSIGN_OR_RETURN(const auto replies, m_servers.ask(commands, until));
  std::vector<std::optional<Bytes>> values;
  for (const RedisReply& reply : replies) {
    values.emplace_back();
    if (reply->type == REDIS_REPLY_STRING) {
      values.back().emplace(reply->str, reply->str + reply->len);
    } else if (reply->type != REDIS_REPLY_NIL) {
      return nonsense();
    }
  }
  return values;
}

Status RedisStore::put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) {
  const std::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
  RedisCluster::Command command{name, {"SET", name, bytes}};
  if (!replaces) command.words.emplace_back("NX");
  KILN_ASSIGN_OR_RETURN(const auto replies, m_servers.ask({&command, 1}, until));
  // nil: something is there already.
  if (replies[0]->type == REDIS_REPLY_STATUS || replies[0]->type == REDIS_REPLY_NIL) return {};
  return nonsense();
}

Expected<std::vector<bool>> RedisStore::lease(std::span<const std::string> names, const std::string& owner,
                                              std::chrono::milliseconds term, Deadline until) {
  const std::string term_ms = std::to_string(term.count());
  std::vector<RedisCluster::Command> commands;
  for (const std::string& name : names) {
    commands.push_back({name, {"EVAL", k_lease_script, "1", name, owner, term_ms}});
  }
  KILN_ASSIGN_OR_RETURN(const auto replies, m_servers.ask(commands, until));
  std::vector<bool> taken;
  for (const RedisReply& reply : replies) {
    if (reply->type != REDIS_REPLY_INTEGER) return nonsense();
    taken.push_back(reply->integer == 1);
  }
  return taken;
}

}  // namespace kiln
