#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/expected.h"
#include "base/frame.h"

/// What is said on the daemon's socket, as plain structs. Their bytes are FlatBuffers (protocol.fbs), checked
/// by the verifier on receipt. A leaf on base: clients link it.
namespace kiln::protocol {

/// Raised when a message changes its meaning. Peers of another version part in the greeting, with a sentence.
inline constexpr uint32_t k_protocol_version = 1;

/// What this build calls itself in greetings and `kiln --version`.
std::string_view build_id();

/// The first message of both sides; the daemon speaks first.
struct Hello {
  uint32_t protocol_version = k_protocol_version;
  std::string build_id;
  uint32_t pid = 0;
};

struct TargetName {
  std::string backend;
  std::string name;
  std::string driver;
  bool is_deterministic = false;
  uint32_t threads = 0;
  bool operator==(const TargetName&) const = default;
};

/// How urgent a build is; the daemon serves lower numbers first, and is fair among the askers of one
/// priority.
enum class Priority : uint8_t { waiting = 0, warming = 1, background = 2 };

/// Build a graph for targets and publish it. Answered by Progress*, then Built or Failure.
struct Build {
  uint32_t id = 0;
  std::vector<uint8_t> graph;  // wire form, symbols bound, but where `sizes` are given
  std::vector<TargetName> targets;
  Priority priority = Priority::waiting;
  bool tune = false;    // race candidates of what has not raced on this machine
  bool again = false;   // and of what has
  bool unkept = false;  // the answer carries what is built, and nothing is published
  bool afresh = false;  // build also what is there, and put it in its place
  /// The programs', one for each target, or none: what leads to them elsewhere need not be built.
  std::vector<Digest> keys = {};
  bool sizes_vary = false;  // other sizes of the graph are likely to be asked for, too
  std::string name = {};    // what people know the graph by
  /// One for each symbol of the graph: a program for these sizes and many around them is wanted, for one target.
  std::vector<int64_t> sizes = {};
};

/// Everything else that is asked. Append only; a verb is a row of docs/protocol.md.
enum class Verb : uint8_t {
  status = 0,         // → JSON: process, queue, workers, counters
  stats = 1,          // → JSON: counters
  events = 2,         // → JSON: the flight recorder
  list = 3,           // → JSON: entries
  show = 4,           // key, or text with its first digits → JSON: one entry
  verify = 5,         // → JSON: entries checked and damaged
  gc = 6,             // text: how many bytes may stay, or "" for the configured size → JSON: sizes before and after
  clear = 7,          // → JSON: sizes before and after
  pin = 8,            // key, text "on" or "off"
  capture_put = 9,    // key, text: its parts, data, name: publish a capture
  shutdown = 10,      // drain and leave
  content = 11,       // key → JSON: what it is of, in hexadecimal: a graph in wire form, or a kernel spec as text
  pack_list = 12,     // text: targets with commas between, or "" → JSON: what a pack of them holds
  install = 13,       // text: JSON that names a pack and who is trusted (service/pack_entries.h) → JSON: what was taken
  capture_find = 14,  // key → JSON: whether the fleet's store has the capture, which is in the cache then
};
inline constexpr uint8_t k_verb_count = 15;
std::string_view to_string(Verb verb);

struct Command {
  uint32_t id = 0;
  Verb verb = Verb::status;
  Digest key;
  std::string text;
  std::vector<uint8_t> data;
  std::string name = {};  // what people know by that what is put
};

/// How far a request is. With no stage: the daemon lives (a heartbeat, of no request).
struct Progress {
  uint32_t id = 0;
  std::string stage;
  std::string item;
  uint64_t done = 0;
  uint64_t total = 0;
};

struct PublishedHead {
  Digest key;
  Digest artifact;
  uint32_t generation = 0;
  bool operator==(const PublishedHead&) const = default;
};

/// An artifact's own bytes (cache/format/artifact.h says what the fields mean).
struct CarriedArtifact {
  uint16_t kind = 0;
  Digest digest;
  std::vector<uint8_t> payload;
  uint64_t entry = 0, tasks = 0, workspace_bytes = 0, features = 0;
  std::string backend;
  bool operator==(const CarriedArtifact&) const = default;
};

/// Published: every head is to be found in the index when this arrives. Where the cache could not take the result,
/// `not_kept` says why, and the answer carries it: what heads lead to and was not published before.
struct Built {
  uint32_t id = 0;
  std::vector<PublishedHead> heads;
  uint64_t compilations = 0;  // code generations done for this request; 0 for who joined another's
  bool joined = false;
  std::string report;  // JSON
  std::vector<CarriedArtifact> carried;
  std::string not_kept;
};

struct Answer {
  uint32_t id = 0;
  std::string json;
};

/// `id` 0 is about the connection: it is closed after.
struct Failure {
  uint32_t id = 0;
  Status status;
  uint32_t signal = 0;  // what killed the worker, if that was the cause
};

/// The order is the frame's kind. Append only.
using Message = std::variant<Hello, Build, Command, Progress, Built, Answer, Failure>;

std::vector<uint8_t> encode(const Message& message);

/// Errors: invalid_argument for an unknown kind, or bytes that the verifier refuses.
Expected<Message> decode(const Frame& frame);

}  // namespace kiln::protocol
