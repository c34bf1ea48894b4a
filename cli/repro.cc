// kiln repro: replays a program that did not agree with torch, from what a client wrote then (client/python/kiln/torch/check.py).

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "cli/buffer.h"
#include "cli/command.h"
#include "cli/graph_file.h"
#include "client/client.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln::cli {
namespace {

struct ReproOptions {
  std::string bundle;
  uint32_t threads = 1;
  bool lift = false;
};

/// What bundle.json says.
struct Bundle {
  std::string said, record;
  std::map<std::string, int64_t> symbols;
  std::vector<std::string> inputs, torch;  // files; empty where tensors were too large to keep
};

Expected<Bundle> read_bundle(const std::string& folder) {
  std::ifstream file(folder + "/bundle.json", std::ios::binary);
  if (!file) return error(StatusCode::not_found, "{}/bundle.json cannot be read", folder);
  std::ostringstream text;
  text << file.rdbuf();
  const Json json = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid_argument("{}/bundle.json is no JSON object", folder);
  try {
    Bundle bundle{json.at("said"), json.at("record"), json.at("symbols"), {}, {}};
    for (const auto& name : json.at("inputs")) bundle.inputs.push_back(folder + "/" + name.get<std::string>());
    for (const auto& name : json.at("torch")) bundle.torch.push_back(folder + "/" + name.get<std::string>());
    return bundle;
  } catch (const Json::exception& problem) {
    return invalid_argument("{}/bundle.json: {}", folder, problem.what());
  }
}

Expected<std::vector<Buffer>> read_buffers(const std::vector<TensorLayout>& layouts,
                                           const std::vector<std::string>& files) {
  if (files.size() != layouts.size())
    return invalid_argument("the bundle has {} files for {} tensors", files.size(), layouts.size());
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < layouts.size(); ++i) {
    KILN_RETURN_IF_ERROR(fill_from_file(buffers.emplace_back(layouts[i]), files[i]));
  }
  return buffers;
}

/// All elements, beside torch's.
Comparison beside_torch(const Buffer& torch, const Buffer& got) {
  std::vector<ExpectedAndGot> pairs;
  for (int64_t i = 0; i < got.count(); ++i) pairs.push_back({torch.at(i), got.at(i)});
  return compare(pairs, tolerance_of(got.dtype()));
}

/// Some elements, beside the f64 reference.
Comparison beside_reference(ElementEvaluator& reference, ValueId value, const Buffer& got) {
  constexpr int64_t k_elements = 256;
  const int64_t step = std::max<int64_t>(1, got.count() / k_elements);
  std::vector<ExpectedAndGot> pairs;
  for (int64_t i = 0; i < got.count(); i += step) pairs.push_back({reference.at(value, i), got.at(i)});
  return compare(pairs, tolerance_of(got.dtype()));
}

struct Replayed {
  Comparison torch, reference;
  std::string type;
};

ExitCode print(const Session& session, const Bundle& bundle, const std::vector<Replayed>& outputs, bool good) {
  Json answers = Json::array();
  Table table({"OUTPUT", "TYPE", "FROM TORCH", "FROM REFERENCE", "TOLERANCE", "RESULT"});
  for (const auto& [torch, reference, type] : outputs) {
    answers.push_back({{"type", type},
                       {"from_torch", torch.max_error},
                       {"from_reference", reference.max_error},
                       {"tolerance", torch.tolerance},
                       {"right", torch.good}});
    table.add({std::to_string(answers.size() - 1), type, fmt::format("{:.2e}", torch.max_error),
               fmt::format("{:.2e}", reference.max_error), fmt::format("{:.0e}", torch.tolerance),
               torch.good ? "as torch" : "DIFFERS"});
  }
  if (session.out().json) {
    session.out().print_json({{"said", bundle.said}, {"agrees", good}, {"outputs", answers}});
  } else {
    session.out().print_pairs({{"said then", bundle.said}});
    session.out().print_table(table);
  }
  return good ? ExitCode::ok : ExitCode::failure;
}

ExitCode repro(Session& session, const ReproOptions& options) {
  KILN_CLI_ASSIGN(session, const Bundle bundle, read_bundle(options.bundle));
  KILN_CLI_ASSIGN(session, const Graph graph, read_bound_graph(options.bundle + "/graph.kiln", bundle.symbols));
  KILN_CLI_ASSIGN(session, const auto client, Client::create(session.loaded()));
  KILN_CLI_ASSIGN(session, const Client::Compiled compiled, client->compile(graph, {}));
  const Program& program = *compiled.program;

  KILN_CLI_ASSIGN(session, std::vector<Buffer> inputs, read_buffers(program.inputs(), bundle.inputs));
  KILN_CLI_ASSIGN(session, std::vector<Buffer> torch, read_buffers(program.outputs(), bundle.torch));
  std::vector<Buffer> outputs;
  for (const TensorLayout& layout : program.outputs()) outputs.emplace_back(layout);
  std::vector<const void*> sources;
  std::vector<std::span<const std::byte>> bytes;
  std::vector<void*> targets;
  for (const Buffer& buffer : inputs) {
    sources.push_back(buffer.data());
    bytes.emplace_back(buffer.data(), buffer.size_bytes());
  }
  for (Buffer& buffer : outputs) targets.push_back(buffer.data());
  if (const Status status = program.run(sources, targets, options.threads); !status.ok()) return session.fail(status);

  KILN_CLI_ASSIGN(session, ElementEvaluator reference, ElementEvaluator::create(graph, bytes));
  std::vector<Replayed> replayed;
  bool good = true;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const uint32_t alias = program.output_alias(i);  // then the output is that input, and is not written
    const Buffer& got = alias == k_none ? outputs[i] : inputs[alias];
    replayed.push_back({beside_torch(torch[i], got), beside_reference(reference, graph.outputs()[i], got),
                        graph.type(graph.outputs()[i]).to_string(graph.symbols())});
    good = good && replayed.back().torch.good;
  }
  if (!reference.status().ok()) return session.fail(reference.status());
  if (good && options.lift) {
    const std::string lifted = "lifted";
    const auto bytes_of = [](const std::string& text) {
      return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    };
    if (const Status status = client->put_capture(bytes_of(bundle.record), bytes_of(lifted), "check, lifted");
        !status.ok())
      return session.fail(status);
    session.out().note("the program may be used again; its next first run is checked");
  }
  return print(session, bundle, replayed, good);
}

}  // namespace

Action add_repro(CommandLine& line) {
  auto options = std::make_shared<ReproOptions>();
  line.option("BUNDLE", options->bundle, "The folder that was named when a program did not agree with torch",
              {.is_required = true});
  line.option("--threads", options->threads, "Threads to run on", {.name = "N", .check = in_range(1, 1'024)});
  line.flag("--lift", options->lift, "Where it agrees now: let clients use the program again");
  return [options](Session& session) { return repro(session, *options); };
}

}  // namespace kiln::cli
