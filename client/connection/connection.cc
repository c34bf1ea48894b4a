#include "client/connection/connection.h"

#include <unistd.h>

#include <algorithm>

#include "base/config/directories.h"
#include "base/limits.h"
#include "base/process_mutex.h"
#include "client/connection/start_daemon.h"

namespace kiln {
namespace {

constexpr int k_reconnects = 3;  // a daemon that idled out or was restarted; more is a daemon that dies of the request
constexpr auto k_poll_interval = std::chrono::milliseconds(5);  // a daemon is up in about 20 ms

}  // namespace

Connection::Connection(Config config, Interrupted interrupted)
    : m_config(std::move(config)), m_interrupted(std::move(interrupted)) {}
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
    const uint32_t id = socket->next_id();
    std::visit(
        [&](auto& each) {
          if constexpr (requires { each.id; }) each.id = id;
        },
        numbered);
    last = heard(socket->send(numbered, until_silence(deadline)), *socket, deadline);
    while (last.ok()) {
      Expected<protocol::Message> message = socket->receive(until_silence(deadline));
      if (!message) {
        last = heard(message.status(), *socket, deadline);
      } else if (const auto* step = std::get_if<protocol::Progress>(&*message)) {
        if (progress && step->id == id && !step->stage.empty()) progress(*step);
      } else if (const auto* failure = std::get_if<protocol::Failure>(&*message)) {
        if (failure->id != 0) give_back(std::move(socket));
        return failure->status;
      } else {
        give_back(std::move(socket));
        return message;
      }
    }
    // A deadline, or a daemon that hangs: the socket is dropped with its request.
    if (last.code() != StatusCode::unavailable || !m_failure.in_force().ok()) return last;
    drop_idle();  // they are of the daemon that left
  }
  return last.with_context(fmt::format("after {} attempts", k_reconnects + 1));
}

/// The time until which nothing may come: a daemon that lives says so every second.
Deadline Connection::until_silence(Deadline deadline) {
  return std::min(deadline, deadline_in(limits::k_daemon_silence_ms));
}

/// A wait that ended although its request still has time is a daemon that hangs: nobody here waits for it again soon.
Status Connection::heard(Status status, const DaemonSocket& socket, Deadline deadline) {
  if (status.code() != StatusCode::deadline_exceeded || Clock::now() >= deadline) return status;
  return remember(FailureMemory::Kind::silent, fmt::format("process {} says nothing for {} s; kiln daemon restart",
                                                           socket.daemon_pid(), limits::k_daemon_silence_ms / 1'000));
}

/// "no daemon: why; what to do": for the next while the answer to everybody who asks.
Status Connection::remember(FailureMemory::Kind kind, const std::string& why) {
  const Status status = error(StatusCode::unavailable, "no daemon: {}", why);
  m_failure.note(kind, status);
  return status;
}

Expected<std::unique_ptr<DaemonSocket>> Connection::take_socket(bool may_start, Deadline deadline) {
  if (m_config.disable) return error(StatusCode::unavailable, "kiln is turned off (disable)");
  if (!m_config.daemon_use) return error(StatusCode::unavailable, "the daemon is turned off (daemon.use)");
  std::vector<std::unique_ptr<DaemonSocket>> inherited;  // only closes here: the parent keeps its own
  {
    const std::scoped_lock lock(process_mutex());
    while (!m_idle.empty()) {
      auto socket = std::move(m_idle.back());
      m_idle.pop_back();
      if (socket->is_of_this_process()) return socket;
      inherited.push_back(std::move(socket));
    }
  }
  KILN_ASSIGN_OR_RETURN(auto socket, connect_or_start(may_start, deadline));
  m_failure.forget();
  return socket;
}

void Connection::drop_idle() {
  std::vector<std::unique_ptr<DaemonSocket>> dropped;  // closed after the lock
  const std::scoped_lock lock(process_mutex());
  dropped.swap(m_idle);
}

void Connection::give_back(std::unique_ptr<DaemonSocket> socket) {
  constexpr size_t k_idle_max = 8;
  const std::scoped_lock lock(process_mutex());
  if (m_idle.size() < k_idle_max) m_idle.push_back(std::move(socket));
}

/// Connects until it works or time is up, starting a daemon where nobody listens.
Expected<std::unique_ptr<DaemonSocket>> Connection::connect_or_start(bool may_start, Deadline request_deadline) {
  const Status known = may_start ? m_failure.in_force() : Status();
  if (!known.ok() && m_failure.is_silent()) return known;
  KILN_ASSIGN_OR_RETURN(const std::string path, socket_path(m_config.cache_directory));
  Starter starter(m_config, path);
  Deadline deadline = std::min(request_deadline, deadline_in(m_config.daemon_start_timeout_ms));
  Status last;
  do {
    auto socket = DaemonSocket::connect(path, m_interrupted);
    last = socket ? (*socket)->greet(deadline) : socket.status();
    if (last.ok()) {
      if (!may_start || (*socket)->is_of_this_build()) return socket;
      if (!known.ok()) return known;
      // Its programs have other keys than ours: it would build what this process never finds. It is asked to leave, and
      // finishes its builds before it does. Who was started just now is what lies there: the next one would be the same.
      if (starter.has_started()) return remember(FailureMemory::Kind::absent, (*socket)->is_not_ours());
      KILN_RETURN_IF_ERROR(heard((*socket)->see_off(until_silence, request_deadline), **socket, request_deadline));
      deadline = std::min(request_deadline, deadline_in(m_config.daemon_start_timeout_ms));
      continue;
    }
    if (!known.ok() && last.code() != StatusCode::deadline_exceeded) return known;
    KILN_RETURN_IF_ERROR(judge(last, socket ? (*socket)->daemon_pid() : 0));
    if (last.code() == StatusCode::not_found) {
      if (!may_start) return error(StatusCode::unavailable, "no daemon runs for {}", m_config.cache_directory);
      if (const Status status = starter.start_if_nobody_does(); !status.ok()) {
        return remember(FailureMemory::Kind::absent, status.message());
      }
    }
    KILN_RETURN_IF_ERROR(pause_for(k_poll_interval, m_interrupted));
  } while (Clock::now() < deadline);
  return remember(FailureMemory::Kind::absent, fmt::format("none answered at {} in {} ms: {}; kiln doctor", path,
                                                           m_config.daemon_start_timeout_ms, last.message()));
}

/// ok where connecting or greeting failed in a way that another try, or a start, may mend.
Status Connection::judge(const Status& failure, pid_t daemon_pid) {
  switch (failure.code()) {
    case StatusCode::not_found:           // nobody listens
    case StatusCode::unavailable:         // it left while it greeted
    case StatusCode::resource_exhausted:  // too many connect at once
      return {};
    case StatusCode::deadline_exceeded:
      return remember(FailureMemory::Kind::silent,
                      fmt::format("process {} listens and says nothing; kiln daemon restart", daemon_pid));
    case StatusCode::permission_denied:
      return remember(FailureMemory::Kind::absent, failure.message());
    default:
      return failure;
  }
}

}  // namespace kiln
