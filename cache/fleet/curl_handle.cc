#include "cache/fleet/curl_handle.h"

#include <cstdlib>

namespace kiln {

CurlHandle make_curl_handle() {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  CurlHandle handle(ready == CURLE_OK ? curl_easy_init() : nullptr);
  if (!handle) return handle;
  curl_easy_setopt(handle.get(), CURLOPT_NOSIGNAL, 1L);
  for (const char* name : {"CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    curl_easy_setopt(handle.get(), CURLOPT_CAINFO, value);
    break;
  }
  return handle;
}

}  // namespace kiln
