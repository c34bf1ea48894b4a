#include "cache/fleet/redis_connection.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>

namespace kiln {
namespace {

/// As commands are sent: an array of strings, each with its length.
void append_command(const RedisConnection::Words& words, std::string& bytes) {
  fmt::format_to(std::back_inserter(bytes), "*{}\r\n", words.size());
  for (const std::string_view word : words) {
    fmt::format_to(std::back_inserter(bytes), "${}\r\n", word.size());
    bytes.append(word).append("\r\n");
  }
}

using Url = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

/// Null for a host that cannot be one's name: a server of a cluster may have said it. libcurl is told of a web server, whose
/// stream it leaves to us once there is one.
Url url_of(const RedisServerAddress& address) {
  Url url(curl_url(), curl_url_cleanup);
  const bool is_ipv6 = address.host.find(':') != std::string::npos && !address.host.starts_with('[');
  const std::string host = is_ipv6 ? "[" + address.host + "]" : address.host;
  const bool is_one = url && curl_url_set(url.get(), CURLUPART_HOST, host.c_str(), 0) == CURLUE_OK &&
                      curl_url_set(url.get(), CURLUPART_PORT, std::to_string(address.port).c_str(), 0) == CURLUE_OK &&
                      curl_url_set(url.get(), CURLUPART_SCHEME, address.has_tls ? "https" : "http", 0) == CURLUE_OK;
  if (!is_one) url.reset();
  return url;
}

}  // namespace

void RedisConnection::ReaderFree::operator()(redisReader* reader) const { redisReaderFree(reader); }
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

Status RedisConnection::failed(StatusCode code, std::string_view what, std::string_view why) {
  m_stream.reset();
  return error(code, "redis at {}:{}: {}: {}", m_address.host, m_address.port, what, why);
}

Status RedisConnection::open_stream(Deadline until) {
  const Url url = url_of(m_address);
  if (!url) return failed(StatusCode::data_loss, "connect", "that is no host");
  m_reader.reset(redisReaderCreate());
  m_stream = make_curl_handle();
  if (!m_stream || !m_reader) return failed(StatusCode::unavailable, "connect", "libcurl and hiredis cannot work here");
  CURL* stream = m_stream.get();
  std::array<char, CURL_ERROR_SIZE> why{};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  curl_easy_setopt(stream, CURLOPT_CURLU, url.get());
  curl_easy_setopt(stream, CURLOPT_CONNECT_ONLY, 1L);
  curl_easy_setopt(stream, CURLOPT_PROXY, "");
  curl_easy_setopt(stream, CURLOPT_SSL_ENABLE_ALPN, 0L);  // no talk of HTTP
  curl_easy_setopt(stream, CURLOPT_TIMEOUT_MS, static_cast<long>(std::clamp<int64_t>(left, 1, INT32_MAX)));
  curl_easy_setopt(stream, CURLOPT_ERRORBUFFER, why.data());
  const CURLcode code = curl_easy_perform(stream);
  curl_easy_setopt(stream, CURLOPT_ERRORBUFFER, nullptr);
  curl_easy_setopt(stream, CURLOPT_CURLU, nullptr);
  if (code == CURLE_OK) return {};
  if (code == CURLE_OPERATION_TIMEDOUT) return failed(StatusCode::deadline_exceeded, "connect", "too slow");
  return failed(StatusCode::unavailable, "connect", why[0] != '\0' ? why.data() : curl_easy_strerror(code));
}

Status RedisConnection::connect(Deadline until) {
  if (m_stream) return {};
  KILN_RETURN_IF_ERROR(open_stream(until));
  std::vector<Words> entering;
  if (!m_address.password.empty()) entering.push_back({"AUTH", m_address.password});
  if (m_address.database != "0") entering.push_back({"SELECT", m_address.database});
  if (entering.empty()) return {};
  KILN_RETURN_IF_ERROR(send(entering, until));
  for (size_t i = 0; i < entering.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(const RedisReply reply, receive(until));
    if (reply->type != REDIS_REPLY_ERROR) continue;
    close();
    return redis_refusal(*reply);
  }
  return {};
}

Status RedisConnection::wait(short events, Deadline until) {
  curl_socket_t socket = CURL_SOCKET_BAD;
  if (curl_easy_getinfo(m_stream.get(), CURLINFO_ACTIVESOCKET, &socket) != CURLE_OK || socket == CURL_SOCKET_BAD) {
    return failed(StatusCode::unavailable, "talk", "the connection is gone");
  }
  const Status status = wait_for(socket, events, until);
  return status.ok() ? status : failed(status.code(), "talk", status.message());
}

Status RedisConnection::write(std::string_view bytes, Deadline until) {
  while (!bytes.empty()) {
    size_t sent = 0;
    const CURLcode code = curl_easy_send(m_stream.get(), bytes.data(), bytes.size(), &sent);
    if (code == CURLE_AGAIN) {
      KILN_RETURN_IF_ERROR(wait(POLLOUT, until));
    } else if (code != CURLE_OK) {
      return failed(StatusCode::unavailable, "send", curl_easy_strerror(code));
    }
    bytes.remove_prefix(sent);
  }
  return {};
}

Status RedisConnection::send(const std::vector<Words>& commands, Deadline until) {
  KILN_RETURN_IF_ERROR(connect(until));
  std::string bytes;
  for (const Words& words : commands) append_command(words, bytes);
  return write(bytes, until);
}

Status RedisConnection::read_some(Deadline until) {
  if (Clock::now() >= until) return failed(StatusCode::deadline_exceeded, "receive", "too slow");
  std::array<char, 16'384> bytes;
  size_t size = 0;
  const CURLcode code = curl_easy_recv(m_stream.get(), bytes.data(), bytes.size(), &size);
  if (code == CURLE_AGAIN) return wait(POLLIN, until);
  if (code != CURLE_OK) return failed(StatusCode::unavailable, "receive", curl_easy_strerror(code));
  if (size == 0) return failed(StatusCode::unavailable, "receive", "the server has hung up");
  if (redisReaderFeed(m_reader.get(), bytes.data(), size) == REDIS_OK) return {};
  return failed(StatusCode::resource_exhausted, "receive", m_reader->errstr);
}

Expected<RedisReply> RedisConnection::receive(Deadline until) {
  for (;;) {
    void* reply = nullptr;
    if (redisReaderGetReply(m_reader.get(), &reply) != REDIS_OK) {
      return failed(StatusCode::data_loss, "receive", m_reader->errstr);
    }
    if (reply != nullptr) return RedisReply(static_cast<redisReply*>(reply));
    KILN_RETURN_IF_ERROR(read_some(until));
  }
}

Expected<RedisReply> RedisConnection::ask(const Words& command, Deadline until) {
  KILN_RETURN_IF_ERROR(send({command}, until));
  return receive(until);
}

}  // namespace kiln
