#include "jit/resolve/key.h"

#include <nlohmann/json.hpp>

#include "base/build_id.h"
#include "jit/run/program.h"

namespace kiln {

namespace {

/// What every level shares: what is keyed, for which target, by which generator.
Key make_key(std::string level, std::string content_name, std::string content, const Target& target, Proof proof) {
  Key key{{{"level", std::move(level)},
           {std::move(content_name), std::move(content)},
           {"backend", target.backend},
           {"target", target.name},
           {"generator", std::string(generator_build_id(target.backend))},
           {"program_version", std::to_string(k_program_version)}}};
  if (proof == Proof::deferred) {
    key.parts.push_back({"proof", "deferred"});
  } else if (!target.driver.empty()) {
    key.parts.push_back({"driver", target.driver});
  }
  if (target.is_deterministic) key.parts.push_back({"deterministic", "true"});
  if (target.threads != 0) key.parts.push_back({"threads", std::to_string(target.threads)});
  return key;
}

}  // namespace

Digest Key::digest() const { return digest_of(to_json()); }

std::string Key::to_json() const {
  nlohmann::ordered_json json;
  for (const Part& part : parts) json[part.name] = part.value;
  return json.dump();
}

Key program_key(const Digest& graph, const Target& target, Proof proof) {
  return make_key("program", "graph", graph.to_hex(), target, proof);
}

Key sized_program_key(const Digest& graph, std::span<const SizeRange> ranges, const Target& target) {
  Key key = make_key("program", "graph", graph.to_hex(), target, Proof::verified);
  std::string sizes;
  for (const SizeRange& range : ranges) {
    sizes += fmt::format("{}{} to {}", sizes.empty() ? "" : ", ", range.first, range.last);
  }
  key.parts.push_back({"sizes", std::move(sizes)});
  return key;
}

Key plan_key(const Digest& region, const Target& target, Proof proof) {
  return make_key("plan", "region", region.to_hex(), target, proof);
}

Key code_key(const Digest& spec, const Target& target, const std::string& toolchain, Proof proof) {
  Key key = make_key("code", "spec", spec.to_hex(), target, proof);
  // Deferred code is checked before it counts: whoever made it.
  if (proof == Proof::verified) key.parts.push_back({"toolchain", toolchain});
  return key;
}

Key tuning_key(const Digest& spec, const Target& target, const std::string& machine) {
  Key key = make_key("tuning", "spec", spec.to_hex(), target, Proof::verified);
  key.parts.push_back({"machine", machine});
  return key;
}

Key plan_tuning_key(const Digest& region, const Target& target, const std::string& machine) {
  Key key = make_key("tuning", "region", region.to_hex(), target, Proof::verified);
  key.parts.push_back({"machine", machine});
  return key;
}

Key near_key(const std::string& family, const std::string& sizes, const Target& target, const std::string& machine) {
  Key key = make_key("near", "family", family, target, Proof::verified);
  key.parts.push_back({"sizes", sizes});
  key.parts.push_back({"machine", machine});
  return key;
}

Key capture_key(std::span<const uint8_t> bytes) {
  return Key{
      {{"level", "capture"}, {"capture", digest_of(bytes).to_hex()}, {"generator", std::string(generator_build_id())}}};
}

}  // namespace kiln
