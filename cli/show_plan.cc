#include "cli/show_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/entries.h"
#include "client/plan_listing/plan_listing.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

/// "input 0", "scratch+4096 (8.0 KiB)"
std::string buffer_text(const Json& buffer) {
  const std::string place = buffer.value("place", "");
  if (buffer.contains("index")) return fmt::format("{} {}", place, buffer.value("index", 0));
  return fmt::format("{}+{} ({})", place, buffer.value("offset", uint64_t{0}),
                     human_bytes(buffer.value("bytes", uint64_t{0})));
}

std::string buffers_text(const Json& buffers) {
  std::vector<std::string> texts;
  for (const Json& buffer : buffers) texts.push_back(buffer_text(buffer));
  return texts.empty() ? "-" : fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

Expected<Json> plan_of(const Session& session, const Json& entry) {
  const auto digest = Digest::from_hex(entry.value("digest", ""));
  const std::string kind = entry.value("kind", "");
  CacheDirectory cache(session.config().cache_directory);
  if (digest && kind == "program") return program_listing(cache, *digest);
  if (digest && kind == "plan") return plan_listing(cache, *digest);
  return invalid_argument(
      "{} is a {}, and --plan is about a program, or a region's plan: kiln ls --kind program lists those",
      name_of(entry).substr(0, 16), kind);
}

void print_plan(const Output& out, const Json& plan) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const char* list : {"inputs", "outputs"}) {
    for (const Json& tensor : plan.value(list, Json::array())) {
      const std::string is =
          tensor.contains("is_input") ? fmt::format(", which is input {}", tensor.value("is_input", 0)) : "";
      pairs.emplace_back(buffer_text(tensor), tensor.value("tensor", "") + is);
    }
  }
  pairs.emplace_back("scratch", human_bytes(plan.value("scratch_bytes", uint64_t{0})));
  if (plan.contains("plan_scratch_bytes")) {
    pairs.emplace_back("plan scratch", human_bytes(plan.value("plan_scratch_bytes", uint64_t{0})));
  }
  if (plan.contains("constant_bytes")) {
    pairs.emplace_back("constants", human_bytes(plan.value("constant_bytes", uint64_t{0})));
  }
  out.print_pairs(pairs);
  out.line("");
  Table table({"PLAN", "CODE", "KERNEL", "READS", "WRITES"});
  for (const Json& launch : plan.value("launches", Json::array())) {
    table.add({launch.value("plan", "").substr(0, 16), launch.value("code", "").substr(0, 16),
               launch.value("kernel", ""), buffers_text(launch.value("reads", Json::array())),
               buffers_text(launch.value("writes", Json::array()))});
  }
  out.print_table(table);
}

}  // namespace kiln::cli
