#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "service/protocol/message.h"

namespace boost::asio {
class io_context;
}

namespace kiln {

/// Who does what a session's peer asks.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  virtual void on_build(uint64_t session, protocol::Build build) = 0;
  virtual void on_command(uint64_t session, protocol::Command command) = 0;
  /// Some of a frame came, and more is to come.
  virtual void on_partial(uint64_t session) = 0;
  /// Called once, last. `reason` is ok when the peer just went.
  virtual void on_closed(uint64_t session, const Status& reason) = 0;
};

/// One connection: moves bytes between a socket and a ServerConnection, which decides. A reader coroutine, a
/// writer coroutine, a timer, and stop(). Threading: the io_context's one thread.
class Session {
 public:
  virtual ~Session() = default;

  /// Greets and begins to read. The host outlives the session.
  static std::shared_ptr<Session> start(boost::asio::io_context& io, UniqueFd socket, uint64_t id, SessionHost& host);

  /// Sends the answer to a request. Progress is dropped when the peer reads slower than it comes.
  virtual void answer(const protocol::Message& message) = 0;
  /// Tells a peer that waits for something that the daemon lives; `anyway`, also one that does not.
  virtual void heartbeat(bool anyway) = 0;
  /// How much is held of a frame that the peer has begun and not finished.
  virtual size_t bytes_held() const = 0;
  /// Closes once `why` is said.
  virtual void refuse(const Status& why) = 0;
  /// Closes at once.
  virtual void stop() = 0;
};

}  // namespace kiln
