#include "service/protocol/server_connection.h"

#include "base/limits.h"

namespace kiln::protocol {

std::vector<Action> ServerConnection::start() {
  m_reader.set_payload_max(limits::k_greeting_bytes);
  return {SendBytes{encode(Hello{k_protocol_version, std::string(build_id()), m_daemon_pid})}};
}

std::vector<Action> ServerConnection::receive(std::span<const uint8_t> bytes) {
  std::vector<Action> actions;
  while (!bytes.empty() && m_state != State::closed) {
    bool whole = false;
    Frame frame;
    if (Status status = m_reader.feed(bytes, whole, frame); !status.ok()) {
      close(std::move(status), actions);
    } else if (whole) {
      on_frame(frame, actions);
    }
  }
  return actions;
}

std::vector<Action> ServerConnection::receive_end() {
  std::vector<Action> actions;
  m_peer_done = true;
  if (m_state == State::closed) return actions;
  if (m_reader.in_frame()) {
    close(invalid_argument("the peer closed within a frame"), actions);
  } else if (m_requests.empty()) {
    close({}, actions);
  }
  return actions;
}

std::vector<Action> ServerConnection::timeout() {
  std::vector<Action> actions;
  const bool greeting = m_state == State::awaiting_hello;
  close({StatusCode::deadline_exceeded, greeting ? "no greeting came" : "a frame was begun and not ended"}, actions);
  return actions;
}

std::vector<Action> ServerConnection::answer(const Message& message) {
  std::vector<Action> actions;
  if (m_state == State::closed) return actions;
  const uint32_t id = std::visit(
      [](const auto& each) -> uint32_t {
        if constexpr (requires { each.id; }) return each.id;
        return 0;
      },
      message);
  if (!m_requests.contains(id)) return actions;
  actions.emplace_back(SendBytes{encode(message)});
  if (std::holds_alternative<Progress>(message)) return actions;
  m_requests.erase(id);
  if (m_peer_done && m_requests.empty()) close({}, actions);
  return actions;
}

std::vector<Action> ServerConnection::refuse(const Status& why) {
  std::vector<Action> actions;
  close(why, actions);
  return actions;
}

std::vector<Action> ServerConnection::heartbeat() const {
  if (m_state != State::open) return {};
  return {SendBytes{encode(Progress{})}};
}

std::optional<uint64_t> ServerConnection::timeout_ms() const {
  if (m_state == State::awaiting_hello) return limits::k_greeting_timeout_ms;
  if (m_state == State::open && m_reader.in_frame()) return limits::k_frame_timeout_ms;
  return std::nullopt;
}

void ServerConnection::on_frame(const Frame& frame, std::vector<Action>& actions) {
  Expected<Message> message = decode(frame);
  if (!message) return close(message.status(), actions);
  if (m_state == State::awaiting_hello) return on_hello(*message, actions);
  on_request(std::move(*message), actions);
}

void ServerConnection::on_hello(const Message& message, std::vector<Action>& actions) {
  const auto* hello = std::get_if<Hello>(&message);
  if (hello == nullptr) return close(invalid_argument("expected a greeting, got kind {}", message.index()), actions);
  if (hello->protocol_version != k_protocol_version) {
    return close(error(StatusCode::failed_precondition, "protocol version is {}, the daemon speaks {}",
                       hello->protocol_version, k_protocol_version),
                 actions);
  }
  m_state = State::open;
  m_reader.set_payload_max(limits::k_frame_bytes);
}

void ServerConnection::on_request(Message message, std::vector<Action>& actions) {
  if (auto* build = std::get_if<Build>(&message)) {
    if (admit(build->id, actions)) actions.emplace_back(StartBuild{std::move(*build)});
  } else if (auto* command = std::get_if<Command>(&message)) {
    if (admit(command->id, actions)) actions.emplace_back(RunCommand{std::move(*command)});
  } else {
    close(invalid_argument("a client cannot say kind {}", message.index()), actions);
  }
}

/// Notes a request in flight. A number used twice is a broken client; too many at once is a typed answer.
bool ServerConnection::admit(uint32_t id, std::vector<Action>& actions) {
  if (id == 0 || m_requests.contains(id)) {
    close(invalid_argument("request id {} is {}", id, id == 0 ? "reserved" : "in flight already"), actions);
    return false;
  }
  if (m_requests.size() >= limits::k_connection_requests) {
    const Status status = error(StatusCode::resource_exhausted, "{} requests in flight, at most {}", m_requests.size(),
                                limits::k_connection_requests);
    actions.emplace_back(SendBytes{encode(Failure{id, status})});
    return false;
  }
  m_requests.insert(id);
  return true;
}

void ServerConnection::close(Status reason, std::vector<Action>& actions) {
  if (m_state == State::closed) return;
  m_state = State::closed;
  m_requests.clear();
  if (!reason.ok()) actions.emplace_back(SendBytes{encode(Failure{0, reason})});
  actions.emplace_back(Close{std::move(reason)});
}

}  // namespace kiln::protocol
