#include "cache/fleet/s3_bucket.h"

#include <curl/curl.h>

#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "cache/fleet/http_store.h"

namespace kiln {
namespace {

constexpr const char* k_default_region = "us-east-1";

/// The first of these that the environment has, or nothing.
std::string environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

/// The region becomes part of a host's name and of the signature's.
bool is_region(const std::string& text) {
  return text.size() <= 64 && text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

/// As signatures have it: all but letters, digits, "-._~" and slashes is escaped.
Expected<std::string> canonical_path(const std::string& path) {
  int size = 0;
  const std::unique_ptr<char, decltype(&curl_free)> plain(
      curl_easy_unescape(nullptr, path.data(), static_cast<int>(path.size()), &size), curl_free);
  const std::unique_ptr<char, decltype(&curl_free)> escaped(
      plain ? curl_easy_escape(nullptr, plain.get(), size) : nullptr, curl_free);
  if (!escaped) return invalid_argument("'{}' is no prefix of names in a bucket", path.substr(0, 128));
  std::string canonical = escaped.get();
  for (size_t at = 0; (at = canonical.find("%2F", at)) != std::string::npos;) canonical.replace(at, 3, "/");
  return canonical;
}

/// The bucket's URL: a path of an endpoint that was named; else of AWS, as a host where a certificate can have its name.
Expected<std::string> bucket_url(const UrlParts& url, const std::string& region) {
  std::string endpoint = query_value(url, "endpoint");
  if (endpoint.empty()) endpoint = environment({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (endpoint.empty()) {
    const std::string aws = "s3." + region + ".amazonaws.com";
    const bool has_dots = url.host.find('.') != std::string::npos;
    return has_dots ? "https://" + aws + "/" + url.host : "https://" + url.host + "." + aws;
  }
  const auto parts = parse_url(endpoint);
  if (!parts.ok()) return parts.status();
  if (parts->scheme != "http" && parts->scheme != "https") {
    return invalid_argument("'{}' is no endpoint of S3: http://host[:port] or https:// is", endpoint.substr(0, 128));
  }
  if (!endpoint.ends_with('/')) endpoint += '/';
  return endpoint + url.host;
}

Expected<HttpIdentity> identity_of(std::string key, const std::string& region) {
  HttpIdentity identity{std::move(key), "aws:amz:" + region + ":s3"};
  if (identity.name_and_password.empty()) {
    const std::string name = environment({"AWS_ACCESS_KEY_ID"}), secret = environment({"AWS_SECRET_ACCESS_KEY"});
    if (name.empty() || secret.empty()) {
      return error(StatusCode::not_found,
                   "S3 has no key: remote.password_file may have ID:SECRET, or the environment AWS_ACCESS_KEY_ID and "
                   "AWS_SECRET_ACCESS_KEY");
    }
    identity.name_and_password = name + ":" + secret;
    identity.session = environment({"AWS_SESSION_TOKEN"});
    return identity;
  }
  const size_t secret = identity.name_and_password.find(':');
  if (secret == std::string::npos) return invalid_argument("what remote.password_file has is not ID:SECRET");
  const size_t session = identity.name_and_password.find(':', secret + 1);
  if (session != std::string::npos) {
    identity.session = identity.name_and_password.substr(session + 1);
    identity.name_and_password.resize(session);
  }
  return identity;
}

}  // namespace

Expected<std::unique_ptr<FleetStore>> open_s3_bucket(const UrlParts& url, std::string key) {
  std::string region = query_value(url, "region");
  if (region.empty()) region = environment({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (region.empty()) region = k_default_region;
  if (!is_region(region)) return invalid_argument("'{}' is no region of S3", region.substr(0, 128));
  KILN_ASSIGN_OR_RETURN(std::string bucket, bucket_url(url, region));
  KILN_ASSIGN_OR_RETURN(const std::string prefix, canonical_path(url.path));
  KILN_ASSIGN_OR_RETURN(HttpIdentity identity, identity_of(std::move(key), region));
  return HttpStore::create(bucket + prefix, std::move(identity));
}

}  // namespace kiln
