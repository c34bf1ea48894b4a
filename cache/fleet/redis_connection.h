#pragma once

#include <hiredis/hiredis.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.h"
#include "base/fd.h"
#include "cache/fleet/curl_handle.h"

namespace kiln {

/// Where a server is, and with what words it is entered.
struct RedisServerAddress {
  std::string host;
  uint16_t port = 0;
  bool has_tls = false;
  std::string database = "0", password = {};
};

struct RedisReplyFree {
  void operator()(redisReply* reply) const;
};
using RedisReply = std::unique_ptr<redisReply, RedisReplyFree>;

/// A connection to one server of Redis: commands are sent together, and their replies read in their order. It connects when
/// it is first sent something, and anew after an error. libcurl makes the stream, inside TLS or not; hiredis reads the
/// replies, and its types are for this folder's sources alone.
/// Threading: one thread at a time.
class RedisConnection {
 public:
  using Words = std::vector<std::string_view>;

  explicit RedisConnection(RedisServerAddress address) : m_address(std::move(address)) {}

  const RedisServerAddress& address() const { return m_address; }
  /// Errors: unavailable, deadline_exceeded, permission_denied, as are the next one's.
  Status send(const std::vector<Words>& commands, Deadline until);
  /// The server's own "no" is a reply (REDIS_REPLY_ERROR), too. Errors: data_loss for what is no reply at all, besides.
  Expected<RedisReply> receive(Deadline until);
  /// One command's reply.
  Expected<RedisReply> ask(const Words& command, Deadline until);
  /// What was sent is not waited for.
  void close() { m_stream.reset(); }

 private:
  struct ReaderFree {
    void operator()(redisReader* reader) const;
  };
  Status connect(Deadline until);
  Status open_stream(Deadline until);
  Status write(std::string_view bytes, Deadline until);
  /// Has the reader read what came.
  Status read_some(Deadline until);
  Status wait(short events, Deadline until);
  /// Closes it.
  Status failed(StatusCode code, std::string_view what, std::string_view why);

  const RedisServerAddress m_address;
  CurlHandle m_stream;
  std::unique_ptr<redisReader, ReaderFree> m_reader;  // of this stream's replies
};

/// The server's own "no", as a status.
Status redis_refusal(const redisReply& reply);

/// What a reply's text or status says; empty for others.
std::string_view text_in(const redisReply& reply);

}  // namespace kiln
