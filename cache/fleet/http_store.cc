#include "cache/fleet/http_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/hex.h"
#include "base/limits.h"
#include "cache/pack/sha256.h"

namespace kiln {
namespace {

constexpr long k_connections = 8;
constexpr int k_longest_poll_ms = 100;

}  // namespace

Expected<std::unique_ptr<FleetStore>> HttpStore::create(std::string url, HttpIdentity identity) {
  if (!make_curl_handle()) return error(StatusCode::unavailable, "libcurl cannot work here");
  if (!url.ends_with('/')) url += '/';
  return std::unique_ptr<FleetStore>(new HttpStore(std::move(url), std::move(identity)));
}

HttpStore::HttpStore(std::string url, HttpIdentity identity)
    : m_url(std::move(url)), m_identity(std::move(identity)), m_multi(curl_multi_init()) {
  curl_multi_setopt(m_multi.get(), CURLMOPT_MAX_TOTAL_CONNECTIONS, k_connections);
}

/// More than a value may have ends the transfer.
size_t HttpStore::receive(char* bytes, size_t size, size_t count, void* transfer) {
  Bytes& received = static_cast<Transfer*>(transfer)->received;
  if (received.size() + size * count > limits::k_fleet_value_bytes) return 0;
  received.insert(received.end(), bytes, bytes + size * count);
  return size * count;
}

std::unique_ptr<HttpStore::Transfer> HttpStore::transfer(const std::string& name, std::vector<std::string> headers,
                                                         std::span<const uint8_t> body) const {
  auto made = std::make_unique<Transfer>();
  made->easy = make_curl_handle();
  CURL* easy = made->easy.get();
  const std::unique_ptr<char, decltype(&curl_free)> escaped(
      curl_easy_escape(easy, name.data(), static_cast<int>(name.size())), curl_free);
  curl_easy_setopt(easy, CURLOPT_URL, (m_url + escaped.get()).c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &HttpStore::receive);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, made.get());
  if (!m_identity.name_and_password.empty()) {
    curl_easy_setopt(easy, CURLOPT_USERPWD, m_identity.name_and_password.c_str());
  }
  if (!m_identity.signature.empty()) {
    curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, m_identity.signature.c_str());
    // Servers ask for it, and not every libcurl adds it.
    headers.push_back("X-Amz-Content-Sha256: " + to_hex(sha256_of(body)));
  }
  if (!m_identity.session.empty()) headers.push_back("X-Amz-Security-Token: " + m_identity.session);
  for (const std::string& header : headers) {
    made->headers.reset(curl_slist_append(made->headers.release(), header.c_str()));
  }
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, made->headers.get());
  return made;
}

void HttpStore::run(std::span<const std::unique_ptr<Transfer>> transfers, Deadline until) {
  for (const auto& each : transfers) curl_multi_add_handle(m_multi.get(), each->easy.get());
  for (int running = 1; running > 0 && Clock::now() < until;) {
    if (curl_multi_perform(m_multi.get(), &running) != CURLM_OK) break;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    const int wait_ms = static_cast<int>(std::clamp<int64_t>(left, 0, k_longest_poll_ms));
    if (running > 0) curl_multi_poll(m_multi.get(), nullptr, 0, wait_ms, nullptr);
  }
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(m_multi.get(), &left)) {
    const auto found = std::ranges::find(transfers, message->easy_handle,
                                         [](const std::unique_ptr<Transfer>& each) { return each->easy.get(); });
    if (message->msg != CURLMSG_DONE || found == transfers.end()) continue;
    (*found)->is_over = true;
    (*found)->outcome = message->data.result;
    curl_easy_getinfo((*found)->easy.get(), CURLINFO_RESPONSE_CODE, &(*found)->status);
  }
  for (const auto& each : transfers) curl_multi_remove_handle(m_multi.get(), each->easy.get());
}

Expected<bool> HttpStore::is_there(const Transfer& transfer) const {
  if (!transfer.is_over) return error(StatusCode::deadline_exceeded, "{}: too slow", m_url);
  if (transfer.outcome != CURLE_OK) {
    const bool is_too_long = transfer.outcome == CURLE_WRITE_ERROR;
    return error(is_too_long ? StatusCode::data_loss : StatusCode::unavailable, "{}: {}", m_url,
                 is_too_long ? "more than an entry may have" : curl_easy_strerror(transfer.outcome));
  }
  switch (transfer.status) {
    case 200:  // OK
    case 201:  // created
    case 204:  // replaced
      return true;
    case 404:  // not found
    case 410:  // gone
      return false;
    case 401:  // who are you?
    case 403:  // forbidden
    case 405:  // not with this method
      return error(StatusCode::permission_denied, "{}: HTTP {}", m_url, transfer.status);
    case 413:  // too large
    case 507:  // no room
      return error(StatusCode::resource_exhausted, "{}: HTTP {}", m_url, transfer.status);
    default:
      return error(StatusCode::unavailable, "{}: HTTP {}", m_url, transfer.status);
  }
}

Expected<std::vector<std::optional<FleetStore::Bytes>>> HttpStore::get(std::span<const std::string> names,
                                                                       Deadline until) {
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (const std::string& name : names) transfers.push_back(transfer(name));
  run(transfers, until);
  std::vector<std::optional<Bytes>> values;
  for (const auto& each : transfers) {
    KILN_ASSIGN_OR_RETURN(const bool found, is_there(*each));
    values.push_back(found ? std::optional(std::move(each->received)) : std::nullopt);
  }
  return values;
}

Status HttpStore::put(const std::string& name, std::span<const uint8_t> value, bool replaces, Deadline until) {
  if (!replaces) {
    const auto look = transfer(name);
    curl_easy_setopt(look->easy.get(), CURLOPT_NOBODY, 1L);
    run({&look, 1}, until);
    KILN_ASSIGN_OR_RETURN(const bool found, is_there(*look));
    if (found) return {};
  }
  std::vector<std::string> headers = {"Content-Type: application/octet-stream"};
  if (!replaces) headers.emplace_back("If-None-Match: *");
  const auto write = transfer(name, std::move(headers), value);
  CURL* easy = write->easy.get();
  curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "PUT");
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, value.data());
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(value.size()));
  curl_easy_setopt(easy, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);  // nobody waits for a "go on"
  run({&write, 1}, until);
  if (write->is_over && (write->status == 409 || write->status == 412)) return {};  // somebody else was faster
  KILN_ASSIGN_OR_RETURN(const bool is_kept, is_there(*write));
  return is_kept ? Status() : error(StatusCode::unavailable, "{}: it cannot be written there", m_url);
}

}  // namespace kiln
