#include "jit/exported/exported.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/build_id.h"
#include "base/ceil_div.h"
#include "cache/sources/mounted_packs.h"
#include "jit/exported/export_writer.h"
#include "jit/run/arena.h"

namespace kiln {
namespace {

std::string describe(const TensorLayout& layout) {
  return fmt::format("{}[{}]", to_string(layout.dtype), fmt::join(layout.dims, ", "));
}

std::string describe(std::span<const ExportTensor> tensors) {
  std::string text;
  for (const ExportTensor& each : tensors) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", each.name, describe(each.layout));
  }
  return "(" + text + ")";
}

constexpr size_t k_forms_told = 4;  // by an error
constexpr uint64_t k_tensor_alignment = 64;

bool is_same_type(const TensorLayout& a, const TensorLayout& b) { return a.dtype == b.dtype && a.dims == b.dims; }

/// Programs say dense by no strides.
Expected<uint64_t> span_of_program(TensorLayout layout) {
  if (layout.strides.empty()) {
    int64_t stride = 1;
    layout.strides.resize(layout.dims.size());
    for (size_t i = layout.dims.size(); i-- > 0;) {
      layout.strides[i] = stride;
      if (__builtin_mul_overflow(stride, std::max<int64_t>(layout.dims[i], 1), &stride)) stride = -1;
    }
  }
  return span_of(layout);
}

/// Copies the elements of dims [dim, rank) from where they lie in `strides` to where they lie in the layout.
void copy_view(const TensorLayout& to, std::span<const int64_t> strides, const uint8_t* from, uint8_t* target,
               size_t dim = 0) {
  const size_t element = size_of(to.dtype);
  if (dim == to.dims.size()) {
    std::memcpy(target, from, element);
    return;
  }
  const auto extent = static_cast<size_t>(to.dims[dim]);
  if (dim + 1 == to.dims.size() && to.strides[dim] == 1 && strides[dim] == 1) {
    if (extent > 0) std::memcpy(target, from, extent * element);
    return;
  }
  for (size_t i = 0; i < extent; ++i) {
    copy_view(to, strides, from + i * static_cast<size_t>(strides[dim]) * element,
              target + i * static_cast<size_t>(to.strides[dim]) * element, dim + 1);
  }
}

Status misplaced(std::string_view what) { return error(StatusCode::data_loss, "the export is misplaced: {}", what); }

Status check_within(std::string_view what, uint64_t offset, uint64_t bytes, uint64_t size, DType dtype) {
  if (bytes > size || offset > size - bytes || offset % size_of(dtype) != 0) {
    return misplaced(fmt::format("{} bytes at {} of {} that has {}", bytes, offset, what, size));
  }
  return {};
}

}  // namespace

/// A form's program, with all places found.
struct Exported::Bound {
  static constexpr uint32_t k_kept = UINT32_MAX;

  struct Argument {
    bool is_input = false;  // the caller's; else weights
    const uint8_t* weights = nullptr;
    uint32_t input = 0;
    uint64_t offset = 0;
  };
  /// A result that the program does not write where the caller wants it.
  struct Copied {
    ExportPlace from;
    const uint8_t* weights = nullptr;
    uint32_t to = 0;
  };
  /// Where the program writes an output: the caller's output, or memory of the call.
  struct Output {
    uint32_t direct = k_kept;
    uint64_t kept_at = 0;
  };

  std::shared_ptr<const Program> program;
  std::vector<Argument> arguments;
  std::vector<Output> outputs;
  std::vector<Copied> copied;
  uint64_t kept_bytes = 0;
};

Exported::Exported() : m_copies("") {}
Exported::~Exported() = default;

Expected<std::unique_ptr<Exported>> Exported::load(const std::string& path) {
  std::unique_ptr<Exported> exported(new Exported);
  KILN_ASSIGN_OR_RETURN(Pack pack, Pack::open(path));
  if (!pack.is_trusted_file()) {
    return error(StatusCode::permission_denied, "{}: is no file that this user or root alone may write", path);
  }
  KILN_RETURN_IF_ERROR(exported->read_manifest(pack));
  KILN_ASSIGN_OR_RETURN(exported->m_device, open_device(""));
  KILN_RETURN_IF_ERROR(exported->choose_target());
  const std::string folder = std::filesystem::path(path).parent_path();
  KILN_ASSIGN_OR_RETURN(exported->m_weights,
                        Weights::open(folder.empty() ? "." : folder, exported->m_manifest.weights));
  exported->m_source = std::make_unique<MountedPacks>(std::move(pack), exported->m_copies);
  exported->m_kernels = std::make_unique<SourcedKernels>(*exported->m_source, *exported->m_device.device, nullptr);
  for (const ExportForm& form : exported->m_manifest.forms) KILN_RETURN_IF_ERROR(exported->bind(form));
  return exported;
}

Status Exported::read_manifest(const Pack& pack) {
  const PackedHead* head = pack.head(digest_of(export_key()));
  const PackedArtifact* artifact = head == nullptr ? nullptr : pack.artifact(digest_in(head->artifact));
  if (artifact == nullptr || artifact->kind != KILN_ARTIFACT_EXPORT) {
    return error(StatusCode::data_loss, "{}: is a pack and no export", pack.path());
  }
  KILN_ASSIGN_OR_RETURN(const auto bytes, pack.read(*artifact));
  KILN_ASSIGN_OR_RETURN(const Artifact manifest, decode_artifact(bytes, digest_in(artifact->digest)));
  KILN_ASSIGN_OR_RETURN(m_manifest, manifest_from_json({reinterpret_cast<const char*>(manifest.payload.data()),
                                                        manifest.payload.size()}));
  const std::string_view generator = generator_build_id(host_backend().name());
  if (m_manifest.generator != generator || m_manifest.program_version != k_program_version) {
    return error(StatusCode::failed_precondition,
                 "{}: was exported by another build of Kiln (generator {}, this is {}); export the model anew",
                 pack.path(), m_manifest.generator, generator);
  }
  return {};
}

Status Exported::choose_target() {
  const auto has = [&](const std::string& name) {
    return std::ranges::all_of(m_manifest.forms, [&](const ExportForm& form) {
      return std::ranges::count(form.programs, name, &ExportProgram::target) == 1;
    });
  };
  std::vector<std::string> ours, its;
  for (const Target& target : m_device.targets) {
    ours.push_back(target.name);
    if (m_target.empty() && has(target.name)) m_target = target.name;
  }
  if (!m_target.empty()) return {};
  for (const ExportProgram& program : m_manifest.forms.front().programs) its.push_back(program.target);
  return error(StatusCode::failed_precondition,
               "the export is for {}, this host runs {}; export the model for one of these", fmt::join(its, ", "),
               fmt::join(ours, ", "));
}

Status Exported::bind(const ExportForm& form) {
  const auto named = std::ranges::find(form.programs, m_target, &ExportProgram::target);
  kiln_view view;
  if (const kiln_miss miss = m_source->find_digest(named->program, KILN_ARTIFACT_PROGRAM, view); miss != KILN_HIT) {
    return error(StatusCode::data_loss, "program {} of the export: {}", named->program.to_short(),
                 kiln_miss_name(miss));
  }
  Bound bound;
  auto program = Program::load(payload_of(view), *m_kernels);
  if (program.status().code() == StatusCode::not_found) {
    return error(StatusCode::data_loss, "the export lacks a part: {}", program.status().message());
  }
  if (!program.ok()) return program.status();
  bound.program = std::move(*program);
  KILN_RETURN_IF_ERROR(bind_arguments(form, bound));
  KILN_RETURN_IF_ERROR(bind_results(form, bound));
  m_bound.push_back(std::move(bound));
  return {};
}

Status Exported::bind_arguments(const ExportForm& form, Bound& bound) const {
  const auto& inputs = bound.program->inputs();
  if (form.arguments.size() != inputs.size()) {
    return error(StatusCode::data_loss, "the export gives a program {} inputs, it takes {}", form.arguments.size(),
                 inputs.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ExportPlace& place = form.arguments[i];
    KILN_ASSIGN_OR_RETURN(const uint64_t bytes, span_of_program(inputs[i]));
    KILN_RETURN_IF_ERROR(check_place(form, place, bytes, inputs[i].dtype));
    Bound::Argument& argument = bound.arguments.emplace_back();
    if (place.origin == ExportPlace::Origin::output) return misplaced("an input is an output");
    if (place.origin == ExportPlace::Origin::weights) {
      argument.weights = weights_at(place);
    } else {
      argument = {true, nullptr, place.index, place.offset};
    }
  }
  return {};
}

Status Exported::bind_results(const ExportForm& form, Bound& bound) const {
  const auto& outputs = bound.program->outputs();
  bound.outputs.resize(outputs.size());
  for (uint32_t i = 0; i < form.results.size(); ++i) {
    const auto& [place, strides] = form.results[i];
    const TensorLayout& wanted = form.outputs[i].layout;
    KILN_ASSIGN_OR_RETURN(const uint64_t bytes, span_of({wanted.dtype, wanted.dims, strides}));
    const bool is_output = place.origin == ExportPlace::Origin::output;
    if (!is_output) {
      KILN_RETURN_IF_ERROR(check_place(form, place, bytes, wanted.dtype));
    } else {
      if (place.index >= outputs.size() || bound.program->output_alias(place.index) != k_none) {
        return misplaced("a result is no output");
      }
      KILN_ASSIGN_OR_RETURN(const uint64_t size, span_of_program(outputs[place.index]));
      KILN_RETURN_IF_ERROR(check_within("an output", place.offset, bytes, size, wanted.dtype));
      Bound::Output& output = bound.outputs[place.index];
      if (place.offset == 0 && bytes == size && strides == wanted.strides && output.direct == Bound::k_kept) {
        output.direct = i;
        continue;
      }
    }
    const bool is_weights = place.origin == ExportPlace::Origin::weights;
    bound.copied.push_back({place, is_weights ? weights_at(place) : nullptr, i});
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(const uint64_t size, span_of_program(outputs[i]));
    if (bound.outputs[i].direct != Bound::k_kept || bound.program->output_alias(i) != k_none) continue;
    bound.outputs[i].kept_at = bound.kept_bytes;
    bound.kept_bytes += round_up(size, k_tensor_alignment);
  }
  return {};
}

/// Of the caller's input or of the weights.
Status Exported::check_place(const ExportForm& form, const ExportPlace& place, uint64_t bytes, DType dtype) const {
  if (place.origin == ExportPlace::Origin::weights) {
    return check_within("weights", place.offset, bytes, m_weights.bytes().size(), dtype);
  }
  if (place.index >= form.inputs.size()) return misplaced("there is no such input");
  KILN_ASSIGN_OR_RETURN(const uint64_t size, span_of(form.inputs[place.index].layout));
  return check_within("an input", place.offset, bytes, size, dtype);
}

Expected<size_t> Exported::choose(std::span<const TensorLayout> inputs) const {
  std::string known;
  for (size_t i = 0; i < forms().size(); ++i) {
    const auto& expected = forms()[i].inputs;
    if (std::ranges::equal(expected, inputs, is_same_type, &ExportTensor::layout)) return i;
    if (i < k_forms_told) known += (i ? " or " : "") + describe(expected);
  }
  std::string given;
  for (const TensorLayout& each : inputs) given += (given.empty() ? "" : ", ") + describe(each);
  return invalid_argument("the export takes {}{}, got ({})", known, forms().size() > k_forms_told ? " and others" : "",
                          given);
}

Status Exported::run(size_t form, std::span<const void* const> inputs, std::span<void* const> outputs,
                     uint32_t num_threads) const {
  if (form >= m_bound.size()) return invalid_argument("form {}, the export has {}", form, m_bound.size());
  const Bound& bound = m_bound[form];
  if (inputs.size() != forms()[form].inputs.size() || outputs.size() != forms()[form].outputs.size()) {
    return invalid_argument("the export takes {} inputs and {} outputs, got {} and {}", forms()[form].inputs.size(),
                            forms()[form].outputs.size(), inputs.size(), outputs.size());
  }
  const auto kept = ArenaPool::shared().acquire(std::max<uint64_t>(bound.kept_bytes, 1));
  if (!kept) return error(StatusCode::resource_exhausted, "no memory for {} bytes of results", bound.kept_bytes);

  const auto input_at = [&](size_t input, uint64_t offset) {
    return static_cast<const uint8_t*>(inputs[input]) + offset;
  };
  std::vector<const void*> given;
  for (const Bound::Argument& each : bound.arguments) {
    given.push_back(each.is_input ? input_at(each.input, each.offset) : each.weights);
  }
  std::vector<void*> made;
  for (const Bound::Output& each : bound.outputs) {
    made.push_back(each.direct != Bound::k_kept ? outputs[each.direct] : kept.get() + each.kept_at);
  }
  KILN_RETURN_IF_ERROR(bound.program->run(given, made, num_threads));
  for (const Bound::Copied& each : bound.copied) {
    const uint8_t* from = each.weights;
    if (each.from.origin == ExportPlace::Origin::input) from = input_at(each.from.index, each.from.offset);
    if (each.from.origin == ExportPlace::Origin::output) {
      from = static_cast<const uint8_t*>(made[each.from.index]) + each.from.offset;
    }
    copy_view(forms()[form].outputs[each.to].layout, forms()[form].results[each.to].strides, from,
              static_cast<uint8_t*>(outputs[each.to]));
  }
  return {};
}

}  // namespace kiln
