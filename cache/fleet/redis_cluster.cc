#include "cache/fleet/redis_cluster.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <system_error>
#include <utility>

namespace kiln {
namespace {

constexpr size_t k_slots = 16'384;
constexpr size_t k_servers = 1'024;
constexpr int k_redirections = 5;
constexpr uint16_t k_nobody = 0xffff;

Status nonsense(const RedisConnection& server) {
  return error(StatusCode::data_loss, "redis at {}:{}: an answer that is none to what was asked", server.address().host,
               server.address().port);
}

}  // namespace

uint16_t redis_slot(std::string_view name) {
  if (const size_t open = name.find('{'); open != std::string_view::npos) {
    const size_t close = name.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) name = name.substr(open + 1, close - open - 1);
  }
  uint16_t crc = 0;
  for (const char each : name) {
    crc = static_cast<uint16_t>(crc ^ (static_cast<uint8_t>(each) << 8));
    for (int bit = 0; bit < 8; ++bit) {
      crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
  }
  return crc % k_slots;
}

RedisCluster::RedisCluster(RedisServerAddress first) {
  m_servers.push_back(std::make_unique<RedisConnection>(std::move(first)));
}

void RedisCluster::close() {
  for (const auto& server : m_servers) server->close();
}

std::vector<std::vector<size_t>> RedisCluster::groups_of(std::span<const std::string> names) const {
  std::map<uint16_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < names.size(); ++i) groups[is_cluster() ? redis_slot(names[i]) : 0].push_back(i);
  std::vector<std::vector<size_t>> listed;
  for (auto& [slot, group] : groups) listed.push_back(std::move(group));
  return listed;
}

Expected<std::vector<RedisReply>> RedisCluster::ask(std::span<const Command> commands, Deadline until) {
  std::vector<Errand> errands(commands.size());
  std::vector<Errand*> open;
  for (size_t i = 0; i < commands.size(); ++i) {
    const uint16_t known = is_cluster() ? m_server_of_slot[redis_slot(commands[i].name)] : k_nobody;
    errands[i].command = &commands[i];
    errands[i].server = known == k_nobody ? m_first : known;
    open.push_back(&errands[i]);
  }
  for (int round = 0; !open.empty(); ++round) {
    if (round > k_redirections) return error(StatusCode::unavailable, "redis: its servers send us round in circles");
    KILN_RETURN_IF_ERROR(run(open, until));
    std::vector<Errand*> sent_on;
    for (Errand* errand : open) {
      KILN_ASSIGN_OR_RETURN(const bool goes_on, is_sent_on(*errand, until));
      if (goes_on) sent_on.push_back(errand);
    }
    open = std::move(sent_on);
    const bool has_moved = std::ranges::any_of(open, [](const Errand* errand) { return !errand->is_asking; });
    // Where that cannot be had, each name is sent on.
    if (has_moved && round == 0) static_cast<void>(learn_slots(open.front()->server, until));
  }
  std::vector<RedisReply> replies;
  for (Errand& errand : errands) replies.push_back(std::move(errand.reply));
  return replies;
}

/// Sends all of it before anything is read.
Status RedisCluster::run(std::vector<Errand*> errands, Deadline until) {
  std::ranges::stable_sort(errands, {}, &Errand::server);
  std::map<size_t, std::vector<RedisConnection::Words>> commands;
  for (const Errand* errand : errands) {
    if (errand->is_asking) commands[errand->server].push_back({"ASKING"});
    commands[errand->server].push_back(errand->command->words);
  }
  Status status;
  for (const auto& [server, words] : commands) {
    if (status = m_servers[server]->send(words, until); !status.ok()) forget(server);
    if (!status.ok()) break;
  }
  for (auto errand = errands.begin(); status.ok() && errand != errands.end(); ++errand) {
    const size_t server = (*errand)->server;
    for (int replies = (*errand)->is_asking ? 2 : 1; status.ok() && replies > 0; --replies) {
      auto reply = m_servers[server]->receive(until);
      status = reply.status();
      if (status.ok()) (*errand)->reply = std::move(*reply);
    }
    if (!status.ok()) forget(server);
  }
  if (!status.ok()) close();  // nobody reads what else comes
  return status;
}

Expected<bool> RedisCluster::is_sent_on(Errand& errand, Deadline until) {
  if (errand.reply->type != REDIS_REPLY_ERROR) return false;
  // MOVED or ASK, a slot, host:port
  const std::string_view text = text_in(*errand.reply);
  if (text.starts_with("CROSSSLOT")) KILN_RETURN_IF_ERROR(learn_slots(errand.server, until));
  const bool has_moved = text.starts_with("MOVED ");
  if (!has_moved && !text.starts_with("ASK ")) return redis_refusal(*errand.reply);
  KILN_ASSIGN_OR_RETURN(errand.server, server_at(text.substr(text.rfind(' ') + 1), errand.server));
  errand.is_asking = !has_moved;
  if (has_moved) {
    m_server_of_slot.resize(k_slots, k_nobody);
    m_server_of_slot[redis_slot(errand.command->name)] = static_cast<uint16_t>(errand.server);
  }
  return true;
}

Expected<size_t> RedisCluster::server_at(std::string_view host_and_port, size_t who_says_so) {
  RedisServerAddress address = m_servers[who_says_so]->address();
  const size_t colon = host_and_port.rfind(':');
  const std::string_view port = host_and_port.substr(std::min(colon, host_and_port.size() - 1) + 1);
  const auto [end, wrong] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (colon == std::string_view::npos || wrong != std::errc() || end != port.data() + port.size() ||
      address.port == 0) {
    return nonsense(*m_servers[who_says_so]);
  }
  if (colon > 0) address.host = host_and_port.substr(0, colon);  // empty: the same host
  return server_of(address);
}

Expected<size_t> RedisCluster::server_of(const RedisServerAddress& address) {
  const auto known = std::ranges::find_if(m_servers, [&](const auto& server) {
    return server->address().host == address.host && server->address().port == address.port;
  });
  if (known != m_servers.end()) return static_cast<size_t>(known - m_servers.begin());
  if (m_servers.size() >= k_servers) {
    return error(StatusCode::resource_exhausted, "redis: a cluster of more than {} servers", k_servers);
  }
  m_servers.push_back(std::make_unique<RedisConnection>(address));
  return m_servers.size() - 1;
}

/// CLUSTER SLOTS: rows of a first slot, a last one, and servers (host, port, …), the master first.
Status RedisCluster::learn_slots(size_t from, Deadline until) {
  RedisConnection& server = *m_servers[from];
  KILN_ASSIGN_OR_RETURN(const RedisReply reply, server.ask({"CLUSTER", "SLOTS"}, until));
  if (reply->type == REDIS_REPLY_ERROR) return redis_refusal(*reply);
  if (reply->type != REDIS_REPLY_ARRAY) return nonsense(server);
  for (const redisReply* row : std::span(reply->element, reply->elements)) {
    const bool is_row = row->type == REDIS_REPLY_ARRAY && row->elements >= 3 &&
                        row->element[2]->type == REDIS_REPLY_ARRAY && row->element[2]->elements >= 2;
    if (!is_row) return nonsense(server);
    const redisReply* master = row->element[2];
    const int64_t begin = row->element[0]->integer, last = row->element[1]->integer, port = master->element[1]->integer;
    if (begin < 0 || last < begin || last >= static_cast<int64_t>(k_slots) || port < 1 || port > 0xffff) {
      return nonsense(server);
    }
    RedisServerAddress address = server.address();
    address.port = static_cast<uint16_t>(port);
    if (const std::string_view host = text_in(*master->element[0]); !host.empty() && host != "?") address.host = host;
    KILN_ASSIGN_OR_RETURN(const size_t index, server_of(address));
    m_server_of_slot.resize(k_slots, k_nobody);
    std::fill(m_server_of_slot.begin() + begin, m_server_of_slot.begin() + last + 1, static_cast<uint16_t>(index));
  }
  return {};
}

/// It answers no more: whoever is known else is asked who has its slots now.
void RedisCluster::forget(size_t server) {
  m_server_of_slot.clear();
  if (server == m_first) m_first = (m_first + 1) % m_servers.size();
}

}  // namespace kiln
