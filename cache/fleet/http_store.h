#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/fleet/curl_handle.h"
#include "cache/fleet/fleet_store.h"

namespace kiln {

/// Whose requests are, and how they say so.
struct HttpIdentity {
  std::string name_and_password;  // "name:password"; empty: nobody's
  std::string signature = {};     // how requests are signed with it (CURLOPT_AWS_SIGV4); empty: it is sent
  std::string session = {};       // the token of a session; empty: there is none
};

/// A folder of a web server: GET, HEAD and PUT of one file a name.
class HttpStore final : public FleetStore {
 public:
  /// `url`: the folder. Errors: unavailable when libcurl cannot work here.
  static Expected<std::unique_ptr<FleetStore>> create(std::string url, HttpIdentity identity);

  /// All at once, over a few connections.
  Expected<std::vector<std::optional<Bytes>>> get(std::span<const std::string> names, Deadline until) override;
  /// Asks first whether something is there; a server that knows If-None-Match is held to it besides.
  Status put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) override;

 private:
  struct MultiFree {
    void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
  };
  struct HeadersFree {
    void operator()(curl_slist* headers) const { curl_slist_free_all(headers); }
  };
  struct Transfer {
    CurlHandle easy;
    std::unique_ptr<curl_slist, HeadersFree> headers;
    Bytes received;
    bool is_over = false;
    CURLcode outcome = CURLE_OK;
    long status = 0;
  };

  HttpStore(std::string url, HttpIdentity identity);
  static size_t receive(char* bytes, size_t size, size_t count, void* transfer);
  /// It does not move: libcurl knows its place.
  std::unique_ptr<Transfer> transfer(const std::string& name, std::vector<std::string> headers = {},
                                     std::span<const uint8_t> body = {}) const;
  void run(std::span<const std::unique_ptr<Transfer>> transfers, Deadline until);
  /// Whether something is there. Errors: all but yes and no.
  Expected<bool> is_there(const Transfer& transfer) const;

  const std::string m_url;
  const HttpIdentity m_identity;
  const std::unique_ptr<CURLM, MultiFree> m_multi;
};

}  // namespace kiln
