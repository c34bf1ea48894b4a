#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/fleet/address.h"
#include "cache/fleet/fleet_store.h"
#include "cache/fleet/redis_cluster.h"

namespace kiln {

/// Redis, or what speaks as it does, one server or a cluster: MGET, EXISTS and SET with NX, and EVAL for leases.
class RedisStore final : public FleetStore {
 public:
  /// Errors: invalid_argument for a path that is no database's number.
  static Expected<std::unique_ptr<FleetStore>> create(const UrlParts& url, std::string password);

  Expected<std::vector<std::optional<Bytes>>> get(std::span<const std::string> names, Deadline until) override;
  Status put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) override;
  Expected<std::vector<bool>> lease(std::span<const std::string> names, const std::string& owner,
                                    std::chrono::milliseconds term, Deadline until) override;

 private:
  using Words = RedisConnection::Words;
  /// Asks `command` about each group of names, and has `take` look at the answer to each name; false: it makes no sense.
  Status ask(std::span<const std::string> names, const std::function<Words(const Words& group)>& command,
             const std::function<bool(size_t index, const redisReply& answer)>& take, Deadline until);
  explicit RedisStore(RedisServerAddress address) : m_servers(std::move(address)) {}
  /// Nobody reads on after nonsense.
  Status nonsense();

  RedisCluster m_servers;
};

}  // namespace kiln
