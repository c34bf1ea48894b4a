#include "service/protocol/message.h"

#include <array>

#include "base/build_id.h"
#include "base/flatbuffer_values.h"
#include "base/limits.h"
#include "base/printable.h"
#include "service/protocol/protocol_generated.h"

namespace kiln::protocol {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

Offset<FlatBytes> write_bytes(FlatBufferBuilder& builder, const std::vector<uint8_t>& bytes) {
  return builder.CreateVector(bytes);
}

/// Absent is the zero digest.
Status read_digest_if_any(const FlatBytes* bytes, Digest& digest) {
  return bytes == nullptr || bytes->size() == 0 ? Status() : read_digest(bytes, digest);
}

// ---- one write and one read per message; `Table` is the generated type

Offset<void> write(FlatBufferBuilder& builder, const Hello& hello) {
  return wire::CreateHello(builder, hello.protocol_version, builder.CreateString(hello.build_id), hello.pid).Union();
}
Status read(const wire::Hello& table, Hello& hello) {
  hello = {table.protocol_version(), read_text(table.build_id()), table.pid()};
  return {};
}

Offset<void> write(FlatBufferBuilder& builder, const Build& build) {
  std::vector<Offset<wire::Target>> targets;
  for (const TargetName& target : build.targets) {
    const auto backend = builder.CreateString(target.backend), name = builder.CreateString(target.name);
    targets.push_back(wire::CreateTarget(builder, backend, name, builder.CreateString(target.driver),
                                         target.is_deterministic, target.threads));
  }
  const auto graph = write_bytes(builder, build.graph);
  const auto target_list = builder.CreateVector(targets);
  const auto name = builder.CreateString(build.name);
  return wire::CreateBuild(builder, build.id, graph, target_list, static_cast<uint8_t>(build.priority), build.tune,
                           build.again, build.unkept, build.afresh, write_digests(builder, build.keys),
                           build.sizes_vary, name, builder.CreateVector(build.sizes))
      .Union();
}
Status read(const wire::Build& table, Build& build) {
  build.id = table.id();
  build.graph = read_bytes(table.graph());
  if (table.priority() > static_cast<uint8_t>(Priority::background)) {
    return invalid_argument("build {}: priority is {}, at most 2", table.id(), table.priority());
  }
  build.priority = static_cast<Priority>(table.priority());
  build.tune = table.tune();
  build.again = table.again();
  build.unkept = table.unkept();
  build.afresh = table.afresh();
  build.sizes_vary = table.sizes_vary();
  build.name = printable_name(read_text(table.name()));
  build.sizes = read_numbers(table.sizes());
  if (table.targets() == nullptr || table.targets()->size() == 0) {
    return invalid_argument("build {}: no target", table.id());
  }
  if (table.targets()->size() > limits::k_request_targets) {
    return invalid_argument("build {}: {} targets, at most {}", table.id(), table.targets()->size(),
                            limits::k_request_targets);
  }
  for (const wire::Target* target : *table.targets()) {
    build.targets.push_back({read_text(target->backend()), read_text(target->name()), read_text(target->driver()),
                             target->is_deterministic(), target->threads()});
  }
  KILN_RETURN_IF_ERROR(read_digests(table.keys(), build.keys));
  if (!build.keys.empty() && build.keys.size() != build.targets.size()) {
    return invalid_argument("build {}: {} keys for {} targets", table.id(), build.keys.size(), build.targets.size());
  }
  return {};
}

Offset<void> write(FlatBufferBuilder& builder, const Command& command) {
  const auto key = write_digest(builder, command.key);
  const auto text = builder.CreateString(command.text);
  const auto data = write_bytes(builder, command.data);
  return wire::CreateCommand(builder, command.id, static_cast<uint8_t>(command.verb), key, text, data,
                             builder.CreateString(command.name))
      .Union();
}
Status read(const wire::Command& table, Command& command) {
  if (table.verb() >= k_verb_count) {
    return error(StatusCode::unimplemented, "verb {} is unknown, at most {}", table.verb(), k_verb_count - 1);
  }
  command.id = table.id();
  command.verb = static_cast<Verb>(table.verb());
  command.text = read_text(table.text());
  command.data = read_bytes(table.data());
  command.name = read_text(table.name());
  return read_digest_if_any(table.key(), command.key);
}

Offset<void> write(FlatBufferBuilder& builder, const Progress& progress) {
  const auto stage = builder.CreateString(progress.stage);
  const auto item = builder.CreateString(progress.item);
  return wire::CreateProgress(builder, progress.id, stage, item, progress.done, progress.total).Union();
}
Status read(const wire::Progress& table, Progress& progress) {
  progress = {table.id(), read_text(table.stage()), read_text(table.item()), table.done(), table.total()};
  return {};
}

Offset<wire::Artifact> write_artifact(FlatBufferBuilder& builder, const CarriedArtifact& artifact) {
  const auto digest = write_digest(builder, artifact.digest);
  const auto payload = write_bytes(builder, artifact.payload);
  return wire::CreateArtifact(builder, artifact.kind, digest, payload, artifact.entry, artifact.tasks,
                              artifact.workspace_bytes, artifact.features, builder.CreateString(artifact.backend));
}
Status read_artifact(const wire::Artifact& table, CarriedArtifact& artifact) {
  artifact = {table.kind(),
              {},
              read_bytes(table.payload()),
              table.entry(),
              table.tasks(),
              table.workspace_bytes(),
              table.features(),
              read_text(table.backend())};
  return read_digest_if_any(table.digest(), artifact.digest);
}

Offset<void> write(FlatBufferBuilder& builder, const Built& built) {
  std::vector<Offset<wire::Head>> heads;
  for (const PublishedHead& head : built.heads) {
    const auto key = write_digest(builder, head.key);
    heads.push_back(wire::CreateHead(builder, key, write_digest(builder, head.artifact), head.generation));
  }
  std::vector<Offset<wire::Artifact>> carried;
  for (const CarriedArtifact& each : built.carried) carried.push_back(write_artifact(builder, each));
  const auto head_list = builder.CreateVector(heads);
  const auto carried_list = builder.CreateVector(carried);
  const auto report = builder.CreateString(built.report);
  const auto not_kept = builder.CreateString(built.not_kept);
  return wire::CreateBuilt(builder, built.id, head_list, built.compilations, built.joined, report, carried_list,
                           not_kept)
      .Union();
}
Status read(const wire::Built& table, Built& built) {
  built.id = table.id();
  built.compilations = table.compilations();
  built.joined = table.joined();
  built.report = read_text(table.report());
  built.not_kept = read_text(table.not_kept());
  for (uint32_t i = 0; table.carried() != nullptr && i < table.carried()->size(); ++i) {
    KILN_RETURN_IF_ERROR(read_artifact(*table.carried()->Get(i), built.carried.emplace_back()));
  }
  if (table.heads() == nullptr) return {};
  for (const wire::Head* row : *table.heads()) {
    PublishedHead head;
    KILN_RETURN_IF_ERROR(read_digest_if_any(row->key(), head.key));
    KILN_RETURN_IF_ERROR(read_digest_if_any(row->artifact(), head.artifact));
    head.generation = row->generation();
    built.heads.push_back(head);
  }
  return {};
}

Offset<void> write(FlatBufferBuilder& builder, const Answer& answer) {
  return wire::CreateAnswer(builder, answer.id, builder.CreateString(answer.json)).Union();
}
Status read(const wire::Answer& table, Answer& answer) {
  answer = {table.id(), read_text(table.json())};
  return {};
}

Offset<void> write(FlatBufferBuilder& builder, const Failure& failure) {
  const auto message = builder.CreateString(failure.status.message());
  const auto op = builder.CreateString(failure.status.op());
  const auto code = static_cast<uint8_t>(failure.status.code());
  return wire::CreateFailure(builder, failure.id, code, message, failure.signal, op).Union();
}
Status read(const wire::Failure& table, Failure& failure) {
  const bool known = table.code() != 0 && table.code() <= static_cast<uint8_t>(StatusCode::data_loss);
  const StatusCode code = known ? static_cast<StatusCode>(table.code()) : StatusCode::unknown;
  failure = {table.id(), Status(code, read_text(table.message())).with_op(read_text(table.op())), table.signal()};
  return {};
}

template <typename Table, typename Struct>
Expected<Message> decode_as(const Frame& frame) {
  // Depth and table count bound what a hostile buffer can make the verifier walk.
  flatbuffers::Verifier verifier(frame.payload.data(), frame.payload.size(), 8, 100'000);
  if (!verifier.VerifyBuffer<Table>(nullptr)) {
    return invalid_argument("frame of kind {} and {} bytes is malformed", frame.kind, frame.payload.size());
  }
  Struct message;
  KILN_RETURN_IF_ERROR(read(*flatbuffers::GetRoot<Table>(frame.payload.data()), message));
  return Message(std::move(message));
}

}  // namespace

std::string_view build_id() {
  static const std::string id = fmt::format("kiln {} (generator {})", KILN_VERSION, generator_build_id());
  return id;
}

std::string_view to_string(Verb verb) {
  static constexpr std::array<std::string_view, k_verb_count> k_names = {
      "status", "stats",       "events",   "list",    "show",      "verify",  "gc",          "clear",
      "pin",    "capture_put", "shutdown", "content", "pack_list", "install", "capture_find"};
  const auto index = static_cast<size_t>(verb);
  return index < k_names.size() ? k_names[index] : "unknown";
}

std::vector<uint8_t> encode(const Message& message) {
  FlatBufferBuilder builder;
  builder.Finish(
      Offset<flatbuffers::Table>(std::visit([&](const auto& each) { return write(builder, each).o; }, message)));
  return encode_frame(static_cast<uint16_t>(message.index()), {builder.GetBufferPointer(), builder.GetSize()});
}

Expected<Message> decode(const Frame& frame) {
  switch (frame.kind) {
    case 0:
      return decode_as<wire::Hello, Hello>(frame);
    case 1:
      return decode_as<wire::Build, Build>(frame);
    case 2:
      return decode_as<wire::Command, Command>(frame);
    case 3:
      return decode_as<wire::Progress, Progress>(frame);
    case 4:
      return decode_as<wire::Built, Built>(frame);
    case 5:
      return decode_as<wire::Answer, Answer>(frame);
    case 6:
      return decode_as<wire::Failure, Failure>(frame);
    default:
      return invalid_argument("frame of unknown kind {}", frame.kind);
  }
}

}  // namespace kiln::protocol
