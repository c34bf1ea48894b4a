#pragma once

#include <memory>
#include <string>

#include "cache/fleet/address.h"
#include "cache/fleet/fleet_store.h"

namespace kiln {

/// A bucket of S3, or of what speaks as it does: a folder over HTTP (cache/fleet/http_store.h) whose requests are signed.
///
/// `url`: s3://bucket[/prefix][?region=…&endpoint=…]; what it does not say the environment says, in the names that AWS's own
/// tools read. `key`: "id:secret[:session]"; empty: the environment's. Errors: invalid_argument for an endpoint that is no
/// http[s] URL; not_found when there is no key.
Expected<std::unique_ptr<FleetStore>> open_s3_bucket(const UrlParts& url, std::string key);

}  // namespace kiln
