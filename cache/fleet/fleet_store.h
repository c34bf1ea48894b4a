#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// A store of bytes by name that many hosts share, as its protocol has it: what comes from it is anybody's.
///
/// It connects when it is first asked, and anew after an error. Threading: one thread at a time.
class FleetStore {
 public:
  using Bytes = std::vector<uint8_t>;

  FleetStore() = default;
  FleetStore(const FleetStore&) = delete;
  FleetStore& operator=(const FleetStore&) = delete;
  virtual ~FleetStore() = default;

  /// What is there under each of `names`, in their order. Errors: unavailable, deadline_exceeded, permission_denied,
  /// data_loss for an answer that makes no sense.
  virtual Expected<std::vector<std::optional<Bytes>>> get(std::span<const std::string> names, Deadline until) = 0;

  /// Keeps `value` under `name` where nothing is there yet; where something is it stays, unless the value `replaces` it.
  /// Errors: as of get; resource_exhausted when the store is full.
  virtual Status put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) = 0;

  /// Takes each of `names` for `owner`, or keeps it, for `term` from now by the store's own clock; whether it could, in their
  /// order: nobody else has it. A store that knows no leases gives them all. Errors: as of get.
  virtual Expected<std::vector<bool>> lease(std::span<const std::string> names, const std::string& /*owner*/,
                                            std::chrono::milliseconds /*term*/, Deadline /*until*/) {
    return std::vector<bool>(names.size(), true);
  }
};

/// Where a fleet's store is, and with what words it is entered.
struct FleetAddress {
  // redis[s]://host[:port][/database], http[s]://host[:port]/folder, s3://bucket[/prefix][?region=…&endpoint=…]
  std::string url;
  // Which nobody else may read; empty: none. Over HTTP it has name:password, for S3 the access key's id and its secret so.
  std::string password_file;
};

/// A row a protocol. Errors: invalid_argument for a URL that no row is for; what reading the password said.
Expected<std::unique_ptr<FleetStore>> open_fleet_store(const FleetAddress& address);

}  // namespace kiln
