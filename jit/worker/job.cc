#include "jit/worker/job.h"

#include "base/flatbuffer_values.h"
#include "jit/worker/job_generated.h"

namespace kiln::job {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

// ---- one write and one read per message

Offset<void> write(FlatBufferBuilder& builder, const BuildRequest& request) {
  std::vector<Offset<wire::Target>> targets;
  for (const Target& target : request.targets) {
    const auto backend = builder.CreateString(target.backend), name = builder.CreateString(target.name);
    targets.push_back(wire::CreateTarget(builder, backend, name, builder.CreateString(target.driver),
                                         target.is_deterministic, target.threads));
  }
  const auto graph = builder.CreateVector(request.graph_wire);
  const auto target_list = builder.CreateVector(targets);
  const auto name = builder.CreateString(request.name);
  return wire::CreateJob(builder, graph, target_list, builder.CreateString(request.cache_directory),
                         static_cast<uint8_t>(request.tuning), request.sizes_vary, name,
                         builder.CreateVector(request.sizes))
      .Union();
}
Status read(const wire::Job& table, BuildRequest& request) {
  request.graph_wire = read_bytes(table.graph());
  request.cache_directory = read_text(table.cache_directory());
  if (table.tuning() > static_cast<uint8_t>(Tuning::again)) return invalid_argument("tuning {}", table.tuning());
  request.tuning = static_cast<Tuning>(table.tuning());
  request.sizes_vary = table.sizes_vary();
  request.name = read_text(table.name());
  request.sizes = read_numbers(table.sizes());
  if (table.targets() == nullptr) return {};
  for (const wire::Target* target : *table.targets()) {
    request.targets.push_back({read_text(target->backend()), read_text(target->name()), read_text(target->driver()),
                               target->is_deterministic(), target->threads()});
  }
  return {};
}

Offset<void> write(FlatBufferBuilder& builder, const JobProgress& progress) {
  const auto stage = builder.CreateString(progress.stage);
  const auto item = builder.CreateString(progress.item);
  return wire::CreateJobProgress(builder, stage, item, progress.done, progress.total).Union();
}
Status read(const wire::JobProgress& table, JobProgress& progress) {
  progress = {read_text(table.stage()), read_text(table.item()), table.done(), table.total()};
  return {};
}

Offset<wire::Artifact> write_artifact(FlatBufferBuilder& builder, const BuiltArtifact& artifact) {
  const auto digest = write_digest(builder, artifact.digest);
  const auto payload = builder.CreateVector(artifact.payload);
  const auto backend = builder.CreateString(artifact.backend);
  return wire::CreateArtifact(builder, artifact.kind, digest, payload, artifact.entry, artifact.tasks,
                              artifact.workspace_bytes, artifact.features, backend);
}
Status read_artifact(const wire::Artifact& table, BuiltArtifact& artifact) {
  artifact.kind = table.kind();
  artifact.payload = read_bytes(table.payload());
  artifact.entry = table.entry();
  artifact.tasks = table.tasks();
  artifact.workspace_bytes = table.workspace_bytes();
  artifact.features = table.features();
  artifact.backend = read_text(table.backend());
  return read_digest(table.digest(), artifact.digest);
}

Offset<void> write(FlatBufferBuilder& builder, const BuildResult& result) {
  std::vector<Offset<wire::Artifact>> artifacts;
  for (const BuiltArtifact& artifact : result.artifacts) artifacts.push_back(write_artifact(builder, artifact));
  std::vector<Offset<wire::Head>> heads;
  for (const BuiltHead& head : result.heads) {
    const auto key = write_digest(builder, head.key);
    const auto artifact = write_digest(builder, head.artifact);
    const auto parts = builder.CreateString(head.key_parts);
    const auto not_judged = builder.CreateString(head.not_judged);
    const auto name = builder.CreateString(head.name);
    const auto schedule = builder.CreateString(head.schedule), spec = builder.CreateString(head.spec);
    heads.push_back(wire::CreateHead(builder, key, artifact, head.generation, parts, not_judged, name, schedule, spec));
  }
  const auto artifact_list = builder.CreateVector(artifacts);
  const auto head_list = builder.CreateVector(heads);
  const auto report = builder.CreateString(result.report);
  return wire::CreateJobResult(builder, artifact_list, head_list, result.compilations, report, result.raced,
                               result.is_tuned)
      .Union();
}
Status read(const wire::JobResult& table, BuildResult& result) {
  result.compilations = table.compilations();
  result.report = read_text(table.report());
  result.raced = table.raced();
  result.is_tuned = table.is_tuned();
  if (table.artifacts() != nullptr) {
    for (const wire::Artifact* row : *table.artifacts()) {
      KILN_RETURN_IF_ERROR(read_artifact(*row, result.artifacts.emplace_back()));
    }
  }
  if (table.heads() != nullptr) {
    for (const wire::Head* row : *table.heads()) {
      BuiltHead& head = result.heads.emplace_back();
      KILN_RETURN_IF_ERROR(read_digest(row->key(), head.key));
      KILN_RETURN_IF_ERROR(read_digest(row->artifact(), head.artifact));
      head.generation = row->generation();
      head.key_parts = read_text(row->key_parts());
      head.not_judged = read_text(row->not_judged());
      head.name = read_text(row->name());
      head.schedule = read_text(row->schedule());
      head.spec = read_text(row->spec());
    }
  }
  return {};
}

Offset<void> write(FlatBufferBuilder& builder, const Found& found) { return write(builder, found.result); }
Status read(const wire::JobResult& table, Found& found) { return read(table, found.result); }

Offset<void> write(FlatBufferBuilder& builder, const JobFailure& failure) {
  const auto message = builder.CreateString(failure.status.message());
  const auto op = builder.CreateString(failure.status.op());
  return wire::CreateJobFailure(builder, static_cast<uint8_t>(failure.status.code()), message, op).Union();
}
Status read(const wire::JobFailure& table, JobFailure& failure) {
  const bool known = table.code() != 0 && table.code() <= static_cast<uint8_t>(StatusCode::data_loss);
  const StatusCode code = known ? static_cast<StatusCode>(table.code()) : StatusCode::unknown;
  failure.status = Status(code, read_text(table.message())).with_op(read_text(table.op()));
  return {};
}

using Supplies = flatbuffers::Vector<Offset<wire::SuppliedCode>>;

Offset<Supplies> write_supplies(FlatBufferBuilder& builder, const std::vector<SuppliedCode>& supplies) {
  std::vector<Offset<wire::SuppliedCode>> rows;
  for (const SuppliedCode& each : supplies) {
    const auto key = write_digest(builder, each.key);
    const auto artifact = write_artifact(builder, each.artifact);
    const auto parts = builder.CreateString(each.key_parts);
    const auto rejected = builder.CreateString(each.rejected);
    rows.push_back(wire::CreateSuppliedCode(builder, key, each.generation, artifact, parts, each.is_proven, rejected));
  }
  return builder.CreateVector(rows);
}
Status read_supplies(const Supplies* rows, std::vector<SuppliedCode>& supplies) {
  if (rows == nullptr) return {};
  for (const wire::SuppliedCode* row : *rows) {
    SuppliedCode& each = supplies.emplace_back();
    KILN_RETURN_IF_ERROR(read_digest(row->key(), each.key));
    each.generation = row->generation();
    each.key_parts = read_text(row->key_parts());
    each.is_proven = row->is_proven();
    each.rejected = read_text(row->rejected());
    if (row->artifact() == nullptr) return invalid_argument("code of {} without an artifact", each.key.to_short());
    KILN_RETURN_IF_ERROR(read_artifact(*row->artifact(), each.artifact));
  }
  return {};
}

Offset<void> write(FlatBufferBuilder& builder, const CodeQuestion& question) {
  return wire::CreateCodeQuestion(builder, write_digests(builder, question.keys), question.waits, question.judges)
      .Union();
}
Status read(const wire::CodeQuestion& table, CodeQuestion& question) {
  question.waits = table.waits();
  question.judges = table.judges();
  return read_digests(table.keys(), question.keys);
}

Offset<void> write(FlatBufferBuilder& builder, const CodeAnswer& answer) {
  const auto found = write_supplies(builder, answer.found);
  return wire::CreateCodeAnswer(builder, found, write_digests(builder, answer.elsewhere)).Union();
}
Status read(const wire::CodeAnswer& table, CodeAnswer& answer) {
  KILN_RETURN_IF_ERROR(read_supplies(table.found(), answer.found));
  return read_digests(table.elsewhere(), answer.elsewhere);
}

Offset<void> write(FlatBufferBuilder& builder, const MadeCode& made) {
  return wire::CreateMadeCode(builder, write_supplies(builder, made.made)).Union();
}
Status read(const wire::MadeCode& table, MadeCode& made) { return read_supplies(table.made(), made.made); }

Offset<void> write(FlatBufferBuilder& builder, const EntryQuestion& question) {
  const auto keys = write_digests(builder, question.keys);
  return wire::CreateEntryQuestion(builder, keys, static_cast<uint16_t>(question.kind), question.raced).Union();
}
Status read(const wire::EntryQuestion& table, EntryQuestion& question) {
  question.kind = static_cast<ArtifactKind>(table.kind());  // of another kind nothing is found
  question.raced = table.raced();
  return read_digests(table.keys(), question.keys);
}

Offset<void> write(FlatBufferBuilder& builder, const EntryAnswer& answer) {
  std::vector<Offset<wire::SuppliedEntry>> rows;
  for (const SuppliedEntry& entry : answer.entries) {
    const auto key = write_digest(builder, entry.key);
    const auto artifact = write_artifact(builder, entry.artifact);
    rows.push_back(wire::CreateSuppliedEntry(builder, key, entry.generation, artifact));
  }
  return wire::CreateEntryAnswer(builder, builder.CreateVector(rows)).Union();
}
Status read(const wire::EntryAnswer& table, EntryAnswer& answer) {
  if (table.entries() == nullptr) return {};
  for (const wire::SuppliedEntry* row : *table.entries()) {
    SuppliedEntry& entry = answer.entries.emplace_back();
    KILN_RETURN_IF_ERROR(read_digest(row->key(), entry.key));
    entry.generation = row->generation();
    if (row->artifact() == nullptr) return invalid_argument("entry {} without an artifact", entry.key.to_short());
    KILN_RETURN_IF_ERROR(read_artifact(*row->artifact(), entry.artifact));
  }
  return {};
}

template <typename Table, typename Struct>
Expected<JobMessage> decode_as(const Frame& frame) {
  flatbuffers::Verifier verifier(frame.payload.data(), frame.payload.size(), 8, 1'000'000);
  if (!verifier.VerifyBuffer<Table>(nullptr)) return invalid_argument("job message {} is malformed", frame.kind);
  Struct message;
  KILN_RETURN_IF_ERROR(read(*flatbuffers::GetRoot<Table>(frame.payload.data()), message));
  return JobMessage(std::move(message));
}

}  // namespace

std::vector<uint8_t> encode(const JobMessage& message) {
  FlatBufferBuilder builder(size_t{64} << 10);
  const auto root = std::visit([&](const auto& each) { return write(builder, each).o; }, message);
  builder.Finish(Offset<flatbuffers::Table>(root));
  return encode_frame(static_cast<uint16_t>(message.index()), {builder.GetBufferPointer(), builder.GetSize()});
}

Expected<JobMessage> decode(const Frame& frame) {
  switch (frame.kind) {
    case 0:
      return decode_as<wire::Job, BuildRequest>(frame);
    case 1:
      return decode_as<wire::JobProgress, JobProgress>(frame);
    case 2:
      return decode_as<wire::JobResult, BuildResult>(frame);
    case 3:
      return decode_as<wire::JobFailure, JobFailure>(frame);
    case 4:
      return decode_as<wire::CodeQuestion, CodeQuestion>(frame);
    case 5:
      return decode_as<wire::CodeAnswer, CodeAnswer>(frame);
    case 6:
      return decode_as<wire::MadeCode, MadeCode>(frame);
    case 7:
      return decode_as<wire::EntryQuestion, EntryQuestion>(frame);
    case 8:
      return decode_as<wire::EntryAnswer, EntryAnswer>(frame);
    case 9:
      return decode_as<wire::JobResult, Found>(frame);
    default:
      return invalid_argument("job message of unknown kind {}", frame.kind);
  }
}

}  // namespace kiln::job
