#include "service/session.h"

#include <poll.h>
#include <unistd.h>

#include <boost/asio.hpp>
#include <deque>
#include <optional>

#include "base/limits.h"
#include "service/protocol/server_connection.h"

namespace kiln {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::use_awaitable;
using boost::system::error_code;

class SocketSession final : public Session, public std::enable_shared_from_this<SocketSession> {
 public:
  SocketSession(asio::io_context& io, UniqueFd socket, uint64_t id, SessionHost& host)
      : m_socket(io, asio::local::stream_protocol(), socket.release()),
        m_something_to_write(io, asio::steady_timer::time_point::max()),
        m_patience(io),
        m_id(id),
        m_host(host),
        m_connection(static_cast<uint32_t>(getpid())) {}

  void begin() {
    act(m_connection.start());
    const auto self = shared_from_this();  // each coroutine keeps the session alive
    asio::co_spawn(m_socket.get_executor(), [self] { return self->read_all(); }, asio::detached);
    asio::co_spawn(m_socket.get_executor(), [self] { return self->write_all(); }, asio::detached);
  }

  void answer(const protocol::Message& message) override {
    constexpr size_t k_progress_backlog_bytes = size_t{64} << 10;
    if (std::holds_alternative<protocol::Progress>(message) && m_queued_bytes > k_progress_backlog_bytes) return;
    act(m_connection.answer(message));
  }

  void heartbeat(bool anyway) override {
    if (m_queued_bytes == 0 && (anyway || m_connection.requests_in_flight() > 0)) act(m_connection.heartbeat());
  }

  size_t bytes_held() const override { return m_connection.bytes_held(); }

  void refuse(const Status& why) override { act(m_connection.refuse(why)); }

  void stop() override { end({}); }

 private:
  awaitable<void> read_all() {
    std::vector<uint8_t> buffer(size_t{64} << 10);
    while (!m_ended && !m_connection.closed()) {
      error_code failure;
      const size_t got =
          co_await m_socket.async_read_some(asio::buffer(buffer), asio::redirect_error(use_awaitable, failure));
      if (m_ended) co_return;
      if (failure == asio::error::eof && !peer_is_gone()) {
        act(m_connection.receive_end());
        co_return;
      }
      if (failure) {
        end({});
        co_return;
      }
      act(m_connection.receive({buffer.data(), got}));
      if (!m_ended && m_connection.bytes_held() > 0) m_host.on_partial(m_id);
    }
  }

  awaitable<void> write_all() {
    while (!m_ended) {
      error_code failure;
      if (!m_queue.empty()) {
        co_await asio::async_write(m_socket, asio::buffer(m_queue.front()),
                                   asio::redirect_error(use_awaitable, failure));
        if (m_ended) co_return;
        m_queued_bytes -= m_queue.front().size();
        m_queue.pop_front();
        if (failure) end({});
      } else if (m_closing) {
        end(m_reason);
      } else {
        co_await m_something_to_write.async_wait(asio::redirect_error(use_awaitable, failure));
        m_something_to_write.expires_at(asio::steady_timer::time_point::max());
      }
    }
  }

  /// Does what the connection decided. The host may answer or stop from within.
  void act(std::vector<protocol::Action> actions) {
    bool request_came = false;
    for (protocol::Action& action : actions) {
      if (m_ended) return;
      if (auto* send = std::get_if<protocol::SendBytes>(&action)) {
        queue(std::move(send->bytes));
      } else if (auto* build = std::get_if<protocol::StartBuild>(&action)) {
        request_came = true;
        m_host.on_build(m_id, std::move(build->build));
      } else if (auto* command = std::get_if<protocol::RunCommand>(&action)) {
        request_came = true;
        m_host.on_command(m_id, std::move(command->command));
      } else if (auto* close = std::get_if<protocol::Close>(&action)) {
        m_closing = true;
        m_reason = std::move(close->reason);
        m_something_to_write.cancel();
      }
    }
    watch_the_clock(request_came);
  }

  void queue(std::vector<uint8_t> bytes) {
    m_queued_bytes += bytes.size();
    if (m_queued_bytes > limits::k_connection_output_bytes) {
      return end(error(StatusCode::resource_exhausted, "{} bytes wait for a peer that does not read", m_queued_bytes));
    }
    m_queue.push_back(std::move(bytes));
    m_something_to_write.cancel();
  }

  /// Arms the timer while the peer owes us bytes; each frame has its own time. A closing session gets the
  /// same time to read what is left.
  void watch_the_clock(bool restart) {
    if (m_ended) return;
    const auto timeout_ms = m_closing ? std::optional(limits::k_greeting_timeout_ms) : m_connection.timeout_ms();
    const bool same = m_watched_ms == timeout_ms && !restart && !m_closing;
    m_watched_ms = timeout_ms;
    if (!timeout_ms) m_patience.cancel();
    if (!timeout_ms || same) return;
    m_patience.expires_after(std::chrono::milliseconds(*timeout_ms));
    m_patience.async_wait([self = shared_from_this()](error_code failure) {
      if (failure || self->m_ended) return;
      self->m_watched_ms.reset();
      if (self->m_closing) return self->end(self->m_reason);
      self->act(self->m_connection.timeout());
    });
  }

  /// After end-of-file: has the peer closed both ways (or died), or only its sending side?
  bool peer_is_gone() {
    pollfd entry{m_socket.native_handle(), 0, 0};
    return poll(&entry, 1, 0) > 0 && (entry.revents & POLLHUP) != 0;
  }

  void end(const Status& reason) {
    if (m_ended) return;
    m_ended = true;
    error_code ignored;
    m_socket.close(ignored);
    m_something_to_write.cancel();
    m_patience.cancel();
    m_host.on_closed(m_id, reason);
  }

  asio::local::stream_protocol::socket m_socket;
  asio::steady_timer m_something_to_write;  // never expires: cancelled to wake the writer
  asio::steady_timer m_patience;
  const uint64_t m_id;
  SessionHost& m_host;
  protocol::ServerConnection m_connection;
  std::deque<std::vector<uint8_t>> m_queue;
  size_t m_queued_bytes = 0;
  bool m_closing = false;  // when the queue is empty
  bool m_ended = false;
  std::optional<uint64_t> m_watched_ms;  // what the peer was given when the timer was armed
  Status m_reason;
};

}  // namespace

std::shared_ptr<Session> Session::start(asio::io_context& io, UniqueFd socket, uint64_t id, SessionHost& host) {
  auto session = std::make_shared<SocketSession>(io, std::move(socket), id, host);
  session->begin();
  return session;
}

}  // namespace kiln
