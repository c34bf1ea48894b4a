#pragma once

#include <curl/curl.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/fleet/fleet_store.h"

namespace kiln {

/// A folder of a web server: GET, HEAD and PUT of one file a name. libcurl's types are for this folder's sources alone.
class HttpStore final : public FleetStore {
 public:
  /// `url`: the folder. `password`: "name:password", or empty.
  static Expected<std::unique_ptr<FleetStore>> create(std::string url, std::string password);

  /// All at once, over a few connections.
  Expected<std::vector<std::optional<Bytes>>> get(std::span<const std::string> names, Deadline until) override;
  /// Asks first whether something is there; a server that knows If-None-Match is held to it besides.
  Status put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) override;

 private:
  struct EasyFree {
    void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
  };
  struct MultiFree {
    void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
  };
  struct Transfer {
    std::unique_ptr<CURL, EasyFree> easy;
    std::string url;
    Bytes received;
    std::span<const uint8_t> sent;
    bool is_over = false;
    CURLcode outcome = CURLE_OK;
    long status = 0;
  };

  HttpStore(std::string url, std::string password);
  static size_t receive(char* bytes, size_t size, size_t count, void* transfer);
  static size_t send(char* bytes, size_t size, size_t count, void* transfer);
  /// It does not move: libcurl knows its place.
  std::unique_ptr<Transfer> transfer(const std::string& name) const;
  void run(std::span<const std::unique_ptr<Transfer>> transfers, Deadline until);
  /// Whether something is there. Errors: all but yes and no.
  Expected<bool> is_there(const Transfer& transfer) const;

  const std::string m_url, m_password;
  const std::unique_ptr<CURLM, MultiFree> m_multi;
};

}  // namespace kiln
