#pragma once

#include <curl/curl.h>

#include <memory>

namespace kiln {

struct CurlFree {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
using CurlHandle = std::unique_ptr<CURL, CurlFree>;

/// A handle of libcurl that raises no signals. A server's certificate is checked, and that it is this server's, against the
/// system's authorities, or the file that CURL_CA_BUNDLE or SSL_CERT_FILE names in the environment, as the command curl has
/// it. Null: libcurl cannot work here. libcurl's types are for this folder's sources alone.
CurlHandle make_curl_handle();

}  // namespace kiln
