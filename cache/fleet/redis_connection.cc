#include "cache/fleet/redis_connection.h"

#include <algorithm>
#include <chrono>

namespace kiln {
namespace {

/// What is left until then, at least a millisecond: zeros would be no limit at all.
timeval time_until(Deadline until) {
  const auto left = std::max(std::chrono::duration_cast<std::chrono::microseconds>(until - Clock::now()),
                             std::chrono::microseconds(1'000));
  return {left.count() / 1'000'000, left.count() % 1'000'000};
}

}  // namespace

void RedisConnection::ContextFree::operator()(redisContext* context) const { redisFree(context); }
void RedisReplyFree::operator()(redisReply* reply) const { freeReplyObject(reply); }

std::string_view text_in(const redisReply& reply) {
  return reply.str == nullptr ? std::string_view() : std::string_view(reply.str, reply.len);
}

Status redis_refusal(const redisReply& reply) {
  const std::string_view text = text_in(reply);
  const bool is_full = text.starts_with("OOM");
  const bool is_closed = text.starts_with("NOAUTH") || text.starts_with("WRONGPASS") || text.starts_with("NOPERM");
  const StatusCode code = is_full     ? StatusCode::resource_exhausted
                          : is_closed ? StatusCode::permission_denied
                                      : StatusCode::unavailable;
  return error(code, "redis: {}", text.substr(0, 200));
}

Status RedisConnection::failed(const char* what, Deadline until) {
  const bool is_late = Clock::now() >= until;
  const StatusCode code = is_late                                ? StatusCode::deadline_exceeded
                          : m_context->err == REDIS_ERR_PROTOCOL ? StatusCode::data_loss
                                                                 : StatusCode::unavailable;
  const Status status = error(code, "redis at {}:{}: {}: {}", m_address.host, m_address.port, what,
                              is_late ? "too slow" : m_context->errstr);
  m_context.reset();
  return status;
}

Status RedisConnection::connect(Deadline until) {
  if (m_context) return {};
  m_context.reset(redisConnectWithTimeout(m_address.host.c_str(), m_address.port, time_until(until)));
  if (!m_context) return error(StatusCode::resource_exhausted, "redis: no memory");
  if (m_context->err != 0) return failed("connect", until);
  std::vector<Words> entering;
  if (!m_address.password.empty()) entering.push_back({"AUTH", m_address.password});
  if (m_address.database != "0") entering.push_back({"SELECT", m_address.database});
  if (entering.empty()) return {};
  KILN_RETURN_IF_ERROR(flush(entering, until));
  for (size_t i = 0; i < entering.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(const RedisReply reply, receive(until));
    if (reply->type != REDIS_REPLY_ERROR) continue;
    m_context.reset();
    return redis_refusal(*reply);
  }
  return {};
}

/// hiredis' own limit is one for each write: a server that reads byte after byte is held to `until` here.
Status RedisConnection::flush(const std::vector<Words>& commands, Deadline until) {
  std::vector<const char*> arguments;
  std::vector<size_t> lengths;
  for (const Words& words : commands) {
    arguments.clear();
    lengths.clear();
    for (const std::string_view word : words) {
      arguments.push_back(word.data());
      lengths.push_back(word.size());
    }
    if (redisAppendCommandArgv(m_context.get(), static_cast<int>(words.size()), arguments.data(), lengths.data()) !=
        REDIS_OK) {
      return failed("ask", until);
    }
  }
  for (int done = 0; done == 0;) {
    if (Clock::now() >= until || redisSetTimeout(m_context.get(), time_until(until)) != REDIS_OK ||
        redisBufferWrite(m_context.get(), &done) != REDIS_OK) {
      return failed("send", until);
    }
  }
  return {};
}

Status RedisConnection::send(const std::vector<Words>& commands, Deadline until) {
  KILN_RETURN_IF_ERROR(connect(until));
  return flush(commands, until);
}

Expected<RedisReply> RedisConnection::receive(Deadline until) {
  for (;;) {
    void* reply = nullptr;
    if (redisGetReplyFromReader(m_context.get(), &reply) != REDIS_OK) return failed("receive", until);
    if (reply != nullptr) return RedisReply(static_cast<redisReply*>(reply));
    if (Clock::now() >= until || redisSetTimeout(m_context.get(), time_until(until)) != REDIS_OK ||
        redisBufferRead(m_context.get()) != REDIS_OK) {
      return failed("receive", until);
    }
  }
}

Expected<RedisReply> RedisConnection::ask(const Words& command, Deadline until) {
  KILN_RETURN_IF_ERROR(send({command}, until));
  return receive(until);
}

}  // namespace kiln
