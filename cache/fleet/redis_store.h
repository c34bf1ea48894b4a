#pragma once

#include <hiredis/hiredis.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/fleet/address.h"
#include "cache/fleet/fleet_store.h"

namespace kiln {

/// Redis, or what speaks as it does: MGET, SET with NX, and EVAL for leases. hiredis' types are for this folder's sources alone.
class RedisStore final : public FleetStore {
 public:
  /// Errors: invalid_argument for a path that is no database's number.
  static Expected<std::unique_ptr<FleetStore>> create(const UrlParts& url, std::string password);

  Expected<std::vector<std::optional<Bytes>>> get(std::span<const std::string> names, Deadline until) override;
  Status put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) override;
  Expected<std::vector<bool>> lease(std::span<const std::string> names, const std::string& owner,
                                    std::chrono::milliseconds term, Deadline until) override;

 private:
  struct ContextFree {
    void operator()(redisContext* context) const;
  };
  struct ReplyFree {
    void operator()(redisReply* reply) const;
  };
  using Reply = std::unique_ptr<redisReply, ReplyFree>;

  RedisStore(const UrlParts& url, std::string database, std::string password);
  /// Nothing where it is connected.
  Status connect(Deadline until);
  /// One command's reply; no connection is left after an error that is not the server's own word.
  Expected<Reply> ask(const std::vector<std::string_view>& words, Deadline until);
  Expected<Reply> converse(const std::vector<std::string_view>& words, Deadline until);

  const std::string m_host, m_database, m_password;
  const uint16_t m_port;
  std::unique_ptr<redisContext, ContextFree> m_context;
};

}  // namespace kiln
