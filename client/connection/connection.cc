#include "client/connection/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "base/config/directories.h"
#include "base/limits.h"
#include "client/connection/start_daemon.h"

namespace kiln {
namespace {

constexpr int k_reconnects = 3;  // a daemon that idled out or was restarted; more is a daemon that dies of the request
constexpr auto k_poll_interval = std::chrono::milliseconds(5);  // a daemon is up in about 20 ms

/// Connects to the socket of `path`; not_found when nobody listens there.
Expected<UniqueFd> connect_once(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return error(StatusCode::unavailable, "socket: {}", std::strerror(errno));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  int result = -1;
  do {
    result = connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return fd;
  if (errno == EAGAIN) return error(StatusCode::resource_exhausted, "{}: too many are connecting", path);
  if (errno == ENOENT || errno == ECONNREFUSED) return error(StatusCode::not_found, "nobody listens at {}", path);
  return error(StatusCode::unavailable, "connect {}: {}", path, std::strerror(errno));
}

}  // namespace

/// One greeted socket. Belongs to the process that made it: a forked child must not speak on it.
struct Connection::Socket {
  UniqueFd fd;
  pid_t owner = getpid();
  uint32_t next_id = 1;
  FrameReader reader{limits::k_frame_bytes};
  std::vector<uint8_t> buffer = std::vector<uint8_t>(size_t{64} << 10);
  std::span<const uint8_t> unread;

  Status send(const protocol::Message& message, Deadline deadline) {
    return send_all(fd.get(), protocol::encode(message), deadline);
  }

  /// The next message. unavailable when the daemon has gone.
  Expected<protocol::Message> receive(Deadline deadline) {
    for (;;) {
      bool whole = false;
      Frame frame;
      if (!unread.empty()) KILN_RETURN_IF_ERROR(reader.feed(unread, whole, frame));
      if (whole) return protocol::decode(frame);
      if (!unread.empty()) continue;
      KILN_ASSIGN_OR_RETURN(const size_t got, receive_some(fd.get(), buffer, deadline));
      if (got == 0) return error(StatusCode::unavailable, "the daemon closed the connection");
      unread = std::span<const uint8_t>(buffer).first(got);
    }
  }

  /// Both sides say who they are. unavailable when the daemon left before its greeting: try again.
  /// With `replace`, a daemon of another build is asked to leave, since its programs have other keys than ours: it
  /// would build what this process never finds.
  Status greet(bool replace, Deadline deadline) {
    KILN_ASSIGN_OR_RETURN(const protocol::Message message, receive(deadline));
    if (const auto* failure = std::get_if<protocol::Failure>(&message)) return failure->status;
    const auto* hello = std::get_if<protocol::Hello>(&message);
    if (hello == nullptr) return error(StatusCode::failed_precondition, "the daemon did not greet");
    if (hello->protocol_version != protocol::k_protocol_version) {
      return error(StatusCode::failed_precondition, "the daemon ({}) speaks protocol {}, expected {}; kiln daemon stop",
                   hello->build_id, hello->protocol_version, protocol::k_protocol_version);
    }
    KILN_RETURN_IF_ERROR(send(protocol::Hello{protocol::k_protocol_version, std::string(protocol::build_id()),
                                              static_cast<uint32_t>(getpid())},
                              deadline));
    if (!replace || hello->build_id == protocol::build_id()) return {};
    protocol::Command leave;
    leave.id = 1;
    leave.verb = protocol::Verb::shutdown;
    KILN_RETURN_IF_ERROR(send(leave, deadline));
    static_cast<void>(receive(deadline));
    return error(StatusCode::unavailable, "the daemon is {}, this is {}", hello->build_id, protocol::build_id());
  }
};

Connection::Connection(Config config) : m_config(std::move(config)) {}
Connection::~Connection() = default;

Status Connection::open(bool may_start) {
  const Deadline deadline = deadline_in(m_config.daemon_start_timeout_ms);
  KILN_ASSIGN_OR_RETURN(auto socket, take_socket(may_start, deadline));
  give_back(std::move(socket));
  return {};
}

Expected<protocol::Built> Connection::build(protocol::Build request, Deadline deadline,
                                            const ProgressCallback& progress) {
  KILN_ASSIGN_OR_RETURN(protocol::Message answer, ask(std::move(request), true, deadline, progress));
  if (auto* built = std::get_if<protocol::Built>(&answer)) return std::move(*built);
  return error(StatusCode::internal, "the daemon answered a build with kind {}", answer.index());
}

Expected<std::string> Connection::command(protocol::Command request, Deadline deadline, bool may_start) {
  KILN_ASSIGN_OR_RETURN(protocol::Message answer, ask(std::move(request), may_start, deadline, {}));
  if (auto* text = std::get_if<protocol::Answer>(&answer)) return std::move(text->json);
  return error(StatusCode::internal, "the daemon answered a command with kind {}", answer.index());
}

/// One request on a socket of its own. A daemon that leaves before it answers is not an error yet: requests
/// can be repeated (builds are idempotent, commands too), so the next daemon is asked.
Expected<protocol::Message> Connection::ask(const protocol::Message& request, bool may_start, Deadline deadline,
                                            const ProgressCallback& progress) {
  Status last;
  for (int attempt = 0; attempt <= k_reconnects; ++attempt) {
    KILN_ASSIGN_OR_RETURN(auto socket, take_socket(may_start, deadline));
    protocol::Message numbered = request;
    const uint32_t id = socket->next_id++;
    std::visit(
        [&](auto& each) {
          if constexpr (requires { each.id; }) each.id = id;
        },
        numbered);
    last = socket->send(numbered, deadline);
    while (last.ok()) {
      Expected<protocol::Message> message = socket->receive(deadline);
      if (!message) {
        last = message.status();
      } else if (const auto* step = std::get_if<protocol::Progress>(&*message)) {
        if (progress && step->id == id) progress(*step);
      } else if (const auto* failure = std::get_if<protocol::Failure>(&*message)) {
        if (failure->id != 0) give_back(std::move(socket));
        return failure->status;
      } else {
        give_back(std::move(socket));
        return message;
      }
    }
    if (last.code() != StatusCode::unavailable) return last;  // a deadline: the socket is dropped with its request
  }
  return last.with_context(fmt::format("after {} attempts", k_reconnects + 1));
}

Expected<std::unique_ptr<Connection::Socket>> Connection::take_socket(bool may_start, Deadline deadline) {
  if (m_config.disable) return error(StatusCode::unavailable, "kiln is turned off (disable)");
  if (!m_config.daemon_use) return error(StatusCode::unavailable, "the daemon is turned off (daemon.use)");
  if (std::unique_lock lock(m_idle_mutex, std::try_to_lock); lock.owns_lock()) {
    while (!m_idle.empty()) {
      auto socket = std::move(m_idle.back());
      m_idle.pop_back();
      if (socket->owner == getpid()) return socket;  // an inherited one only closes here: the parent keeps its own
    }
  }
  return connect_or_start(may_start, std::min(deadline, deadline_in(m_config.daemon_start_timeout_ms)));
}

void Connection::give_back(std::unique_ptr<Socket> socket) {
  constexpr size_t k_idle_max = 8;
  std::unique_lock lock(m_idle_mutex, std::try_to_lock);
  if (lock.owns_lock() && m_idle.size() < k_idle_max) m_idle.push_back(std::move(socket));
}

/// Connects until it works or time is up. When nobody listens, one of all waiting clients (who holds the
/// start lock) launches the daemon; the others keep trying to connect. A daemon that is just leaving looks
/// like none: its lock on the cache directory makes the next one wait for it.
Expected<std::unique_ptr<Connection::Socket>> Connection::connect_or_start(bool may_start, Deadline deadline) {
  KILN_ASSIGN_OR_RETURN(const std::string path, socket_path(m_config.cache_directory));
  UniqueFd start_lock;
  std::optional<DaemonLaunch> launch;
  Status last;
  do {
    Expected<UniqueFd> fd = connect_once(path);
    if (fd) {
      auto socket = std::make_unique<Socket>();
      socket->fd = std::move(*fd);
      last = socket->greet(may_start, deadline);
      if (last.ok()) return socket;
      if (last.code() != StatusCode::unavailable) return last;
    } else {
      last = fd.status();
      if (last.code() == StatusCode::unavailable) return last;
      if (last.code() == StatusCode::not_found) {
        if (!may_start) return error(StatusCode::unavailable, "no daemon runs for {}", m_config.cache_directory);
        if (!start_lock) {
          KILN_RETURN_IF_ERROR(make_private_directory(path.substr(0, path.rfind('/'))));
          UniqueFd file(::open((path + ".start").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
          if (file && flock(file.get(), LOCK_EX | LOCK_NB) == 0) start_lock = std::move(file);
        }
        if (start_lock && (!launch || launch->finished())) {
          KILN_ASSIGN_OR_RETURN(DaemonLaunch started, DaemonLaunch::start(m_config));
          launch.reset();
          launch.emplace(std::move(started));
        }
      }
    }
    if (launch) KILN_RETURN_IF_ERROR(launch->check());
    std::this_thread::sleep_for(k_poll_interval);
  } while (Clock::now() < deadline);
  return error(StatusCode::unavailable, "no daemon answered at {} in {} ms: {}", path, m_config.daemon_start_timeout_ms,
               last.message());
}

}  // namespace kiln
