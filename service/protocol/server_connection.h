#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "base/frame.h"
#include "service/protocol/message.h"

/// One client's connection as the daemon sees it, without any I/O: bytes in, actions out. The server moves
/// the bytes and does the actions; everything that can be decided without a socket is decided here, and
/// tested so.
namespace kiln::protocol {

struct SendBytes {
  std::vector<uint8_t> bytes;
};
struct StartBuild {
  Build build;
};
struct RunCommand {
  Command command;
};
/// Flush what was sent, then close.
struct Close {
  Status reason;
};
using Action = std::variant<SendBytes, StartBuild, RunCommand, Close>;

/// awaiting_hello → open → closed. Threading: one thread at a time.
class ServerConnection {
 public:
  explicit ServerConnection(uint32_t daemon_pid) : m_daemon_pid(daemon_pid) {}

  /// The first bytes to send: the daemon greets before it is spoken to.
  std::vector<Action> start();
  /// Bytes from the peer. After Close nothing more is decided.
  std::vector<Action> receive(std::span<const uint8_t> bytes);
  /// The peer closed its sending side.
  std::vector<Action> receive_end();
  /// The time allowed for greeting or for the frame in progress is over.
  std::vector<Action> timeout();

  /// The answer to a request; Progress leaves the request in flight, anything else ends it. Answers to
  /// requests that are not in flight (the connection has closed meanwhile) give nothing.
  std::vector<Action> answer(const Message& message);

  /// Tells the peer why nothing more of it is taken, and closes.
  std::vector<Action> refuse(const Status& why);

  /// Tells the peer that the daemon lives; nothing before the greeting.
  std::vector<Action> heartbeat() const;

  /// How long the peer may take until its next byte completes something; nothing while it may be silent.
  std::optional<uint64_t> timeout_ms() const;

  bool closed() const { return m_state == State::closed; }
  size_t requests_in_flight() const { return m_requests.size(); }
  /// How much is held of the frame in progress.
  size_t bytes_held() const { return m_reader.bytes_held(); }

 private:
  enum class State : uint8_t { awaiting_hello, open, closed };

  void on_frame(const Frame& frame, std::vector<Action>& actions);
  void on_hello(const Message& message, std::vector<Action>& actions);
  void on_request(Message message, std::vector<Action>& actions);
  bool admit(uint32_t id, std::vector<Action>& actions);
  void close(Status reason, std::vector<Action>& actions);

  uint32_t m_daemon_pid;
  State m_state = State::awaiting_hello;
  bool m_peer_done = false;  // half closed: answers still go out
  FrameReader m_reader{0};
  std::set<uint32_t> m_requests;
};

}  // namespace kiln::protocol
