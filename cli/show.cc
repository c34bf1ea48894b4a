#include <fmt/format.h>

#include <map>

#include "base/hex.h"
#include "base/printable.h"
#include "base/split.h"
#include "cli/command.h"
#include "cli/entries.h"
#include "cli/process.h"
#include "cli/show_plan.h"
#include "client/connection/start_daemon.h"
#include "client/nearest/nearest.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

void print_entry(const Output& out, const Json& entry) {
  const auto yes_no = [&](const char* field) { return entry.value(field, false) ? "yes" : "no"; };
  out.print_pairs({{"digest", entry.value("digest", "")},
                   {"kind", entry.value("kind", "")},
                   {"size", human_bytes(entry.value("payload_bytes", uint64_t{0}))},
                   {"created", human_age(entry.value("created_ms", uint64_t{0}))},
                   {"pinned", yes_no("pinned")},
                   {"mapped", yes_no("mapped")},
                   {"page aligned", yes_no("aligned")}});
  for (const Json& head : entry.value("heads", Json::array())) {
    out.line("");
    std::vector<std::pair<std::string, std::string>> pairs = {
        {"key", head.value("key", "")}, {"generation", std::to_string(head.value("generation", 0))}};
    if (head.contains("name")) pairs.emplace_back("name", head.value("name", ""));
    if (head.contains("not_judged")) pairs.emplace_back("not judged", head.value("not_judged", ""));
    if (head.contains("schedule")) pairs.emplace_back("schedule", head.value("schedule", ""));
    for (auto& [name, value] : parts_of(head)) pairs.emplace_back("  " + name, value);
    out.print_pairs(pairs);
  }
}

/// "load 1.25, on 2 threads of 2 processors, 0.3 % of their time stolen"
std::string state_of(const Json& host) {
  return fmt::format("load {:.2f}, on {} threads of {} processors, {:.1f} % of their time stolen",
                     host.value("load", 0.0), host.value("threads", 0), host.value("processors", 0),
                     host.value("stolen", 0.0) * 100);
}

/// What was measured of a kernel's candidates, as they raced.
void print_record(const Output& out, const Json& record) {
  out.line("");
  out.print_pairs({{"kernel", record.value("kernel", "")},
                   {"machine", record.value("machine", "")},
                   {"meanwhile", state_of(record.value("host", Json::object()))}});
  const auto winner = record.value("winner", size_t{0});
  Table table({"", "MEDIAN", "SPREAD", "SAMPLES", "CANDIDATE"});
  const Json candidates = record.value("candidates", Json::array());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Json& candidate = candidates[i];
    const auto seconds = candidate.value("seconds", std::vector<double>{});
    const std::string dropped = candidate.value("dropped", "");
    const std::string origin = candidate.value("origin", "");
    const std::string state = i == winner ? "winner" : candidate.value("is_finalist", false) ? "final" : "";
    table.add({state, seconds.empty() ? "-" : fmt::format("{:.1f} us", candidate.value("median", 0.0) * 1e6),
               seconds.empty() ? "-" : fmt::format("{:.1f} %", candidate.value("spread", 0.0) * 100),
               std::to_string(seconds.size()),
               candidate.value("description", "") + (origin.empty() ? "" : ", as of " + origin) +
                   (dropped.empty() ? "" : ": " + dropped)});
  }
  out.line("");
  out.print_table(table);
}

/// What a key says of its kernel or region: equal in the keys of its code or plan and of its records.
KeyParts subject_parts(const Json& head) {
  KeyParts parts = parts_of(head);
  std::erase_if(parts, [](const auto& part) {
    return part.first == "level" || part.first == "toolchain" || part.first == "machine";
  });
  return parts;
}

bool is_of_one_subject(const Json& entry, const Json& record) {
  for (const Json& ours : entry.value("heads", Json::array())) {
    for (const Json& theirs : record.value("heads", Json::array())) {
      if (subject_parts(ours) == subject_parts(theirs)) return true;
    }
  }
  return false;
}

Status require_code(const Json& entry, std::string_view option) {
  const std::string kind = entry.value("kind", "");
  if (kind == "code") return {};
  return invalid_argument("{} is a {}, and {} is about a kernel's code: kiln ls --kind code lists that",
                          name_of(entry).substr(0, 16), kind, option);
}

/// What was measured of a kernel, or of a region's plans: a record for each machine it has raced on.
Expected<Json> records_of(Session& session, const Json& entry) {
  const bool is_plan = entry.value("kind", "") == "plan";
  if (!is_plan) KILN_RETURN_IF_ERROR(require_code(entry, "--record"));
  KILN_ASSIGN_OR_RETURN(const Json listed, session.ask({.verb = protocol::Verb::list}));
  Json records = Json::array();
  for (const Json& other : listed.value("entries", Json::array())) {
    if (other.value("kind", "") != "record" || !is_of_one_subject(entry, other)) continue;
    KILN_ASSIGN_OR_RETURN(const Json shown, session.find_entry(other.value("digest", "")));
    if (shown.contains("record") && shown["record"].is_object()) records.push_back(shown["record"]);
  }
  if (!records.empty()) return records;
  if (part_of(entry, "deterministic") == "true") {
    return error(StatusCode::not_found, "{} {} is deterministic: such {}s never race", is_plan ? "plan" : "kernel",
                 name_of(entry).substr(0, 16), is_plan ? "plan" : "kernel");
  }
  if (is_plan) {
    return error(StatusCode::not_found,
                 "plan {} has not raced: a region's plans do where several compute the same with other kernels, in the "
                 "background while the machine is idle, or when kiln retune is given their program's key",
                 name_of(entry).substr(0, 16));
  }
  return error(
      StatusCode::not_found,
      "kernel {} has not raced: products and attention do, in the background while the machine is idle, or when "
      "kiln retune is given their program's key (kiln ls --kind program); other kernels have nothing to race",
      name_of(entry).substr(0, 16));
}

/// The kernel spec that code was made from, as text: of the first key that leads to it.
Expected<std::string> spec_of(Session& session, const Json& entry) {
  KILN_RETURN_IF_ERROR(require_code(entry, "--spec"));
  const auto key = Digest::from_hex(name_of(entry));
  const auto answer = session.ask({.verb = protocol::Verb::content, .key = key.value_or(Digest{})});
  if (answer.status().code() == StatusCode::not_found) {
    return error(
        StatusCode::not_found,
        "the spec of kernel {} is not kept: another build, or another host's, brought its code alone; kiln clear "
        "and a new build keep it",
        name_of(entry).substr(0, 16));
  }
  KILN_RETURN_IF_ERROR(answer.status());
  const auto text = from_hex(answer->value("content", ""));
  if (!text) return error(StatusCode::internal, "the daemon's answer has no content in hexadecimal");
  return std::string(text->begin(), text->end());
}

/// A kernel's machine code as text, which kiln-worker writes: this program links no disassembler.
Expected<std::string> assembly_of(const Session& session, const Json& entry) {
  KILN_RETURN_IF_ERROR(require_code(entry, "--asm"));
  const Json heads = entry.value("heads", Json::array());
  if (heads.empty()) return error(StatusCode::not_found, "no key leads to this code, so its target is not known");
  std::map<std::string, std::string> parts;
  for (auto& [name, value] : parts_of(heads[0])) parts[name] = value;
  KILN_ASSIGN_OR_RETURN(const std::string worker, find_program("kiln-worker", session.config().worker_path));
  const std::vector<std::string> arguments = {
      worker,           "--disassemble", session.config().cache_directory, entry.value("digest", ""),
      parts["backend"], parts["target"]};
  KILN_ASSIGN_OR_RETURN(ProcessResult result, run_process(arguments, {}, Errors::kept));
  if (result.exit_status == 0) return std::move(result.output);
  const std::vector<std::string> words = split(result.errors, '\n');
  return error(StatusCode::failed_precondition, "kiln-worker wrote no assembly (exit status {}): {}",
               result.exit_status, words.empty() ? "it says nothing" : words.back());
}

struct ShowOptions {
  std::string name;
  bool assembly = false, plan = false, record = false, spec = false;
};

ExitCode show(Session& session, const ShowOptions& options) {
  KILN_CLI_ASSIGN(session, const Json entry, session.find_entry(options.name));
  Json answer = {{"entry", entry}};
  if (options.record) {
    KILN_CLI_ASSIGN(session, answer["records"], records_of(session, entry));
  }
  if (options.spec) {
    KILN_CLI_ASSIGN(session, answer["spec"], spec_of(session, entry));
  }
  if (options.plan) {
    KILN_CLI_ASSIGN(session, answer["plan"], plan_of(session, entry));
  }
  if (options.assembly) {
    KILN_CLI_ASSIGN(session, answer["asm"], assembly_of(session, entry));
  }
  const Output& out = session.out();
  if (out.json) {
    out.print_json(std::move(answer));
    return ExitCode::ok;
  }
  const bool is_inside = options.assembly || options.plan || options.spec;
  if (!is_inside) print_entry(out, entry);
  if (entry.contains("record")) print_record(out, entry["record"]);
  for (const Json& record : answer.value("records", Json::array())) print_record(out, record);
  if (options.plan) print_plan(out, answer["plan"]);
  for (const char* text : {"spec", "asm"}) {
    for (const std::string& line : split(answer.value(text, ""), '\n')) out.line(escaped(line));
  }
  return ExitCode::ok;
}

}  // namespace

Action add_show(CommandLine& line) {
  auto options = std::make_shared<ShowOptions>();
  line.option("KEY", options->name, "First digits of a key or digest", {.check = entry_name(), .is_required = true});
  line.flag("--spec", options->spec, "What a kernel computes: its buffers, loops, expressions and addresses");
  line.flag("--plan", options->plan,
            "The kernels of a program or a region's plan in order, and what each reads and writes");
  line.flag("--asm", options->assembly, "A kernel's machine code as assembly; its hot loop is marked");
  line.flag("--record", options->record,
            "What was measured of a kernel's candidates, given the key of its code, or of a region's plans");
  return [options](Session& session) { return show(session, *options); };
}

}  // namespace kiln::cli
