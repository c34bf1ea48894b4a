// The C ABI of models that were exported. What it says of a tensor lies in the handle.

#include "jit/exported/exported.h"

#include "client/handles.h"

struct kiln_exported {
  std::unique_ptr<kiln::Exported> exported;
};

namespace {

using kiln::guarded;

const kiln::ExportForm& form_of(const kiln_exported* exported, size_t form) {
  return exported->exported->forms()[form];
}

kiln::Status describe(const std::vector<kiln::ExportTensor>& tensors, size_t index, kiln_tensor_type* out) {
  if (index >= tensors.size()) return kiln::invalid_argument("tensor {}, there are {}", index, tensors.size());
  const kiln::ExportTensor& tensor = tensors[index];
  *out = {tensor.name.c_str(), kiln::to_string(tensor.layout.dtype).data(), tensor.layout.dims.size(),
          tensor.layout.dims.data(), tensor.layout.strides.data()};
  return {};
}

kiln::Status check_form(const kiln_exported* exported, size_t form) {
  const size_t count = exported->exported->forms().size();
  return form < count ? kiln::Status() : kiln::invalid_argument("form {}, the export has {}", form, count);
}

}  // namespace

extern "C" {

kiln_error* kiln_load(const char* path, kiln_exported** out) {
  return guarded([&]() -> kiln::Status {
    KILN_ASSIGN_OR_RETURN(auto exported, kiln::Exported::load(path));
    *out = new kiln_exported{std::move(exported)};
    return {};
  });
}

void kiln_exported_destroy(kiln_exported* exported) { delete exported; }

const char* kiln_exported_target(const kiln_exported* exported) { return exported->exported->target().c_str(); }
size_t kiln_exported_form_count(const kiln_exported* exported) { return exported->exported->forms().size(); }
size_t kiln_exported_input_count(const kiln_exported* exported) { return form_of(exported, 0).inputs.size(); }
size_t kiln_exported_output_count(const kiln_exported* exported) { return form_of(exported, 0).outputs.size(); }

kiln_error* kiln_exported_input(const kiln_exported* exported, size_t form, size_t index, kiln_tensor_type* out) {
  return guarded([&]() -> kiln::Status {
    KILN_RETURN_IF_ERROR(check_form(exported, form));
    return describe(form_of(exported, form).inputs, index, out);
  });
}

kiln_error* kiln_exported_output(const kiln_exported* exported, size_t form, size_t index, kiln_tensor_type* out) {
  return guarded([&]() -> kiln::Status {
    KILN_RETURN_IF_ERROR(check_form(exported, form));
    return describe(form_of(exported, form).outputs, index, out);
  });
}

kiln_error* kiln_exported_choose(const kiln_exported* exported, const kiln_tensor_type* inputs, size_t input_count,
                                 size_t* out_form) {
  return guarded([&]() -> kiln::Status {
    std::vector<kiln::TensorLayout> layouts;
    for (const kiln_tensor_type& given : std::span(inputs, input_count)) {
      const auto dtype = kiln::dtype_from_string(given.dtype);
      if (!dtype) return kiln::invalid_argument("no dtype is called '{}'", given.dtype);
      layouts.push_back({*dtype, {given.shape, given.shape + given.rank}, {}});
    }
    KILN_ASSIGN_OR_RETURN(*out_form, exported->exported->choose(layouts));
    return {};
  });
}

kiln_error* kiln_exported_run(const kiln_exported* exported, size_t form, const void* const* inputs,
                              void* const* outputs, uint32_t num_threads) {
  return guarded([&]() -> kiln::Status {
    KILN_RETURN_IF_ERROR(check_form(exported, form));
    const kiln::ExportForm& chosen = form_of(exported, form);
    return exported->exported->run(form, std::span(inputs, chosen.inputs.size()),
                                   std::span(outputs, chosen.outputs.size()), num_threads);
  });
}

}  // extern "C"
