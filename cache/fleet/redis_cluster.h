#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/fleet/redis_connection.h"

namespace kiln {

/// The hash slot of a name, of 16,384: CRC16 (XMODEM) of it, or of what is in its first braces where there is something.
/// As in Redis' cluster specification.
uint16_t redis_slot(std::string_view name);

/// The servers among which names are spread: one, or the masters of a cluster, which say themselves that they are one and
/// who has what. Threading: one thread at a time.
class RedisCluster {
 public:
  /// `first`: who is asked first.
  explicit RedisCluster(RedisServerAddress first);

  bool is_cluster() const { return !m_server_of_slot.empty(); }
  /// Indices of names that one command may have: all of them, or those of one slot in a cluster.
  std::vector<std::vector<size_t>> groups_of(std::span<const std::string> names) const;

  /// A command about names of one group, of which this is one.
  struct Command {
    std::string_view name;
    RedisConnection::Words words;
  };
  /// The reply to each of `commands`, in their order: all that one server has is sent together, and servers work side by
  /// side. Whoever is sent on follows, a few times. Errors: as of RedisConnection; what a server refuses is one, too, such as
  /// names of several slots by one that says by this that it is of a cluster: is_cluster() from then on.
  Expected<std::vector<RedisReply>> ask(std::span<const Command> commands, Deadline until);
  /// Who was asked has talked nonsense.
  void close();

 private:
  /// Where a command goes to, and what becomes of it.
  struct Errand {
    const Command* command = nullptr;
    size_t server = 0;
    bool is_asking = false;  // the slot is on its way to that server (ASK)
    RedisReply reply = nullptr;
  };
  Status run(std::vector<Errand*> errands, Deadline until);
  /// Whether it is to be sent on, and to whom. Errors: a refusal; more servers than a cluster may have.
  Expected<bool> is_sent_on(Errand& errand, Deadline until);
  Expected<size_t> server_at(std::string_view host_and_port, size_t who_says_so);
  Expected<size_t> server_of(const RedisServerAddress& address);
  /// Asks a server of a cluster who has which slots.
  Status learn_slots(size_t from, Deadline until);
  void forget(size_t server);

  std::vector<std::unique_ptr<RedisConnection>> m_servers;
  std::vector<uint16_t> m_server_of_slot;  // empty as long as nobody has said that it is a cluster
  size_t m_first = 0;                      // who is asked about slots of which nobody is known
};

}  // namespace kiln
