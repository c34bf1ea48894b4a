#include "cache/fleet/address.h"
#include "cache/fleet/fleet_store.h"
#include "cache/fleet/http_store.h"
#include "cache/fleet/redis_store.h"
#include "cache/fleet/s3_bucket.h"

namespace kiln {

Expected<std::unique_ptr<FleetStore>> open_fleet_store(const FleetAddress& address) {
  KILN_ASSIGN_OR_RETURN(const UrlParts url, parse_url(address.url));
  KILN_ASSIGN_OR_RETURN(std::string password, read_password(address.password_file));
  if (url.scheme == "redis" || url.scheme == "rediss") return RedisStore::create(url, std::move(password));
  if (url.scheme == "http" || url.scheme == "https") return HttpStore::create(address.url, {std::move(password)});
  if (url.scheme == "s3") return open_s3_bucket(url, std::move(password));
  return invalid_argument("'{}' is no protocol of a fleet's store; redis, rediss, http, https and s3 are", url.scheme);
}

}  // namespace kiln
