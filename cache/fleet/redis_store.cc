#include "cache/fleet/redis_store.h"

#include <algorithm>
#include <chrono>
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

/// What is left until then, at least a millisecond: zeros would be no limit at all.
timeval time_until(Deadline until) {
  const auto left = std::max(std::chrono::duration_cast<std::chrono::microseconds>(until - Clock::now()),
                             std::chrono::microseconds(1'000));
  return {left.count() / 1'000'000, left.count() % 1'000'000};
}

/// The server's own "no".
Status refusal(const redisReply& reply) {
  const std::string_view text(reply.str, reply.len);
  const bool is_full = text.starts_with("OOM");
  const bool is_closed = text.starts_with("NOAUTH") || text.starts_with("WRONGPASS") || text.starts_with("NOPERM");
  const StatusCode code = is_full     ? StatusCode::resource_exhausted
                          : is_closed ? StatusCode::permission_denied
                                      : StatusCode::unavailable;
  return error(code, "redis: {}", text.substr(0, 200));
}

Status nonsense() { return error(StatusCode::data_loss, "redis: an answer that is none to what was asked"); }

}  // namespace

void RedisStore::ContextFree::operator()(redisContext* context) const { redisFree(context); }
void RedisStore::ReplyFree::operator()(redisReply* reply) const { freeReplyObject(reply); }

Expected<std::unique_ptr<FleetStore>> RedisStore::create(const UrlParts& url, std::string password) {
  const std::string database = url.path.size() > 1 ? url.path.substr(1) : "0";
  if (database.size() > 4 || database.find_first_not_of("0123456789") != std::string::npos) {
    return invalid_argument("'{}' is no number of a database of Redis", database.substr(0, 32));
  }
  return std::unique_ptr<FleetStore>(new RedisStore(url, database, std::move(password)));
}

RedisStore::RedisStore(const UrlParts& url, std::string database, std::string password)
    : m_host(url.host),
      m_database(std::move(database)),
      m_password(std::move(password)),
      m_port(url.port == 0 ? k_default_port : url.port) {}

Status RedisStore::connect(Deadline until) {
  if (m_context) return {};
  m_context.reset(redisConnectWithTimeout(m_host.c_str(), m_port, time_until(until)));
  if (!m_context) return error(StatusCode::resource_exhausted, "redis: no memory");
  if (m_context->err != 0) {
    const Status failed = error(StatusCode::unavailable, "redis at {}:{}: {}", m_host, m_port, m_context->errstr);
    m_context.reset();
    return failed;
  }
  Status entered;
  if (!m_password.empty()) entered = ask({"AUTH", m_password}, until).status();
  if (entered.ok() && m_database != "0") entered = ask({"SELECT", m_database}, until).status();
  if (!entered.ok()) m_context.reset();
  return entered;
}

Expected<RedisStore::Reply> RedisStore::ask(const std::vector<std::string_view>& words, Deadline until) {
  auto reply = converse(words, until);
  if (!reply.ok()) {
    m_context.reset();
    return reply;
  }
  if ((*reply)->type == REDIS_REPLY_ERROR) return refusal(**reply);
  return reply;
}

/// hiredis' own limit is one for each read: a server that sends byte after byte is held to `until` here.
Expected<RedisStore::Reply> RedisStore::converse(const std::vector<std::string_view>& words, Deadline until) {
  redisContext* context = m_context.get();
  std::vector<const char*> arguments;
  std::vector<size_t> lengths;
  for (const std::string_view word : words) {
    arguments.push_back(word.data());
    lengths.push_back(word.size());
  }
  const auto failed = [&](const char* what) {
    const bool is_late = Clock::now() >= until;
    const StatusCode code = is_late                              ? StatusCode::deadline_exceeded
                            : context->err == REDIS_ERR_PROTOCOL ? StatusCode::data_loss
                                                                 : StatusCode::unavailable;
    return error(code, "redis at {}:{}: {}: {}", m_host, m_port, what, is_late ? "too slow" : context->errstr);
  };
  if (redisAppendCommandArgv(context, static_cast<int>(words.size()), arguments.data(), lengths.data()) != REDIS_OK) {
    return failed("ask");
  }
  for (int done = 0; done == 0;) {
    if (Clock::now() >= until || redisSetTimeout(context, time_until(until)) != REDIS_OK ||
        redisBufferWrite(context, &done) != REDIS_OK) {
      return failed("send");
    }
  }
  for (;;) {
    void* reply = nullptr;
    if (redisGetReplyFromReader(context, &reply) != REDIS_OK) return failed("receive");
    if (reply != nullptr) return Reply(static_cast<redisReply*>(reply));
    if (Clock::now() >= until || redisSetTimeout(context, time_until(until)) != REDIS_OK ||
        redisBufferRead(context) != REDIS_OK) {
      return failed("receive");
    }
  }
}

Expected<std::vector<std::optional<FleetStore::Bytes>>> RedisStore::get(std::span<const std::string> names,
                                                                        Deadline until) {
  KILN_RETURN_IF_ERROR(connect(until));
  std::vector<std::string_view> words = {"MGET"};
  words.insert(words.end(), names.begin(), names.end());
  KILN_ASSIGN_OR_RETURN(const Reply reply, ask(words, until));
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements != names.size()) {
    m_context.reset();
    return nonsense();
  }
  std::vector<std::optional<Bytes>> values;
  for (const redisReply* each : std::span(reply->element, reply->elements)) {
    values.emplace_back();
    if (each->type == REDIS_REPLY_STRING) values.back().emplace(each->str, each->str + each->len);
  }
  return values;
}

Status RedisStore::put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) {
  KILN_RETURN_IF_ERROR(connect(until));
  const std::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
  std::vector<std::string_view> words = {"SET", name, bytes};
  if (!replaces) words.push_back("NX");
  KILN_ASSIGN_OR_RETURN(const Reply reply, ask(words, until));
  // nil: something is there already.
  if (reply->type == REDIS_REPLY_STATUS || reply->type == REDIS_REPLY_NIL) return {};
  m_context.reset();
  return nonsense();
}

Expected<std::vector<bool>> RedisStore::lease(std::span<const std::string> names, const std::string& owner,
                                              std::chrono::milliseconds term, Deadline until) {
  KILN_RETURN_IF_ERROR(connect(until));
  const std::string count = std::to_string(names.size()), term_ms = std::to_string(term.count());
  std::vector<std::string_view> words = {"EVAL", k_lease_script, count};
  words.insert(words.end(), names.begin(), names.end());
  words.insert(words.end(), {owner, term_ms});
  KILN_ASSIGN_OR_RETURN(const Reply reply, ask(words, until));
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements != names.size()) {
    m_context.reset();
    return nonsense();
  }
  std::vector<bool> taken;
  for (const redisReply* each : std::span(reply->element, reply->elements)) {
    taken.push_back(each->type == REDIS_REPLY_INTEGER && each->integer == 1);
  }
  return taken;
}

}  // namespace kiln
