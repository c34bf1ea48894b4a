#include "cache/fleet/redis_store.h"

#include <deque>
#include <utility>

namespace kiln {
namespace {

constexpr uint16_t k_default_port = 6379;

constexpr std::string_view k_lease_script = R"(
local taken = {}
for i, name in ipairs(KEYS) do
  local owner = redis.call('GET', name)
  taken[i] = 0
  if not owner or owner == ARGV[1] then
    redis.call('SET', name, ARGV[1], 'PX', ARGV[2])
    taken[i] = 1
  end
end
return taken)";

}  // namespace

Expected<std::unique_ptr<FleetStore>> RedisStore::create(const UrlParts& url, std::string password) {
  const std::string database = url.path.size() > 1 ? url.path.substr(1) : "0";
  if (database.size() > 4 || database.find_first_not_of("0123456789") != std::string::npos) {
    return invalid_argument("'{}' is no number of a database of Redis", database.substr(0, 32));
  }
  const uint16_t port = url.port == 0 ? k_default_port : url.port;
  return std::unique_ptr<FleetStore>(
      new RedisStore({url.host, port, url.scheme == "rediss", database, std::move(password)}));
}

Status RedisStore::nonsense() {
  m_servers.close();
  return error(StatusCode::data_loss, "redis: an answer that is none to what was asked");
}

Status RedisStore::ask(std::span<const std::string> names, const std::function<Words(const Words&)>& command,
                       const std::function<bool(size_t, const redisReply&)>& take, Deadline until) {
  const bool was_cluster = m_servers.is_cluster();
  const auto groups = m_servers.groups_of(names);
  std::vector<RedisCluster::Command> commands;
  for (const std::vector<size_t>& group : groups) {
    Words words;
    for (const size_t index : group) words.push_back(names[index]);
    commands.push_back({words.front(), command(words)});
  }
  const auto replies = m_servers.ask(commands, until);
  if (!replies.ok()) {
    const bool has_just_said_so = m_servers.is_cluster() && !was_cluster;
    return has_just_said_so ? ask(names, command, take, until) : replies.status();
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const redisReply& reply = *(*replies)[g];
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != groups[g].size()) return nonsense();
    for (size_t i = 0; i < reply.elements; ++i) {
      if (!take(groups[g][i], *reply.element[i])) return nonsense();
    }
  }
  return {};
}

Expected<std::vector<std::optional<FleetStore::Bytes>>> RedisStore::get(std::span<const std::string> names,
                                                                        Deadline until) {
  std::vector<std::optional<Bytes>> values(names.size());
  const auto mget = [](const Words& group) {
    Words words = {"MGET"};
    words.insert(words.end(), group.begin(), group.end());
    return words;
  };
  const auto take = [&](size_t index, const redisReply& answer) {
    if (answer.type == REDIS_REPLY_STRING) values[index].emplace(answer.str, answer.str + answer.len);
    return answer.type == REDIS_REPLY_STRING || answer.type == REDIS_REPLY_NIL;
  };
  KILN_RETURN_IF_ERROR(ask(names, mget, take, until));
  return values;
}

/// Many hosts have the same to give at once: what is there already is not sent.
Status RedisStore::put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) {
  RedisCluster::Command command{name, {"EXISTS", name}};
  if (!replaces) {
    KILN_ASSIGN_OR_RETURN(const auto looked, m_servers.ask({&command, 1}, until));
    if (looked[0]->type != REDIS_REPLY_INTEGER) return nonsense();
    if (looked[0]->integer != 0) return {};
  }
  command.words = {"SET", name, {reinterpret_cast<const char*>(value.data()), value.size()}};
  if (!replaces) command.words.emplace_back("NX");
  KILN_ASSIGN_OR_RETURN(const auto replies, m_servers.ask({&command, 1}, until));
  // nil: somebody else was faster.
  if (replies[0]->type == REDIS_REPLY_STATUS || replies[0]->type == REDIS_REPLY_NIL) return {};
  return nonsense();
}

Expected<std::vector<bool>> RedisStore::lease(std::span<const std::string> names, const std::string& owner,
                                              std::chrono::milliseconds term, Deadline until) {
  std::vector<bool> taken(names.size());
  const std::string term_ms = std::to_string(term.count());
  std::deque<std::string> counts;  // which words look at
  const auto eval = [&](const Words& group) {
    Words words = {"EVAL", k_lease_script, counts.emplace_back(std::to_string(group.size()))};
    words.insert(words.end(), group.begin(), group.end());
    words.insert(words.end(), {owner, term_ms});
    return words;
  };
  const auto take = [&](size_t index, const redisReply& answer) {
    taken[index] = answer.type == REDIS_REPLY_INTEGER && answer.integer == 1;
    return answer.type == REDIS_REPLY_INTEGER;
  };
  KILN_RETURN_IF_ERROR(ask(names, eval, take, until));
  return taken;
}

}  // namespace kiln
