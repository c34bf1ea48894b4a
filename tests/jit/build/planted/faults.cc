#include "tests/jit/build/planted/faults.h"

#include <algorithm>
#include <functional>

#include "tests/jit/build/planted/overwrite_faults.h"
#include "tests/jit/build/planted/uses.h"

namespace kiln::planted {

namespace {

constexpr size_t k_most_of_a_kind = 24;

void keep_some(std::vector<Fault>& faults) {
  std::vector<Fault> kept;
  const size_t step = (faults.size() + k_most_of_a_kind - 1) / k_most_of_a_kind;
  for (size_t i = 0; i < faults.size(); i += step) kept.push_back(std::move(faults[i]));
  faults = std::move(kept);
}

/// Pairs of arguments of one call whose buffers differ and are of one size and dtype.
std::vector<Fault> swap_arguments(Linked& subject, bool outputs) {
  const Uses uses(subject);
  std::vector<Fault> faults;
  for (uint32_t call = 0; call < uses.calls(); ++call) {
    const auto& arguments = uses.arguments(call);
    const size_t begin = outputs ? uses.inputs_of(call) : 0, end = outputs ? arguments.size() : uses.inputs_of(call);
    for (size_t a = begin; a < end; ++a) {
      for (size_t b = a + 1; b < end; ++b) {
        const auto &first = uses.buffer(arguments[a]), &second = uses.buffer(arguments[b]);
        if (arguments[a] == arguments[b] || first.bytes != second.bytes) continue;
        if (uses.dtype_of(call, a) != uses.dtype_of(call, b)) continue;
        if (!outputs && !uses.is_read(call, a) && !uses.is_read(call, b)) continue;
        if (outputs && !uses.matters(arguments[a]) && !uses.matters(arguments[b])) continue;
        faults.push_back({fmt::format("call {}, arguments {} and {}", call, a, b), [=](Parts& parts) {
                            auto& list = parts.program.calls[call]->arguments;
                            std::swap(list[a], list[b]);
                          }});
      }
    }
  }
  return faults;
}

std::vector<Fault> swapped_outputs(Linked& subject) { return swap_arguments(subject, true); }
std::vector<Fault> swapped_inputs(Linked& subject) { return swap_arguments(subject, false); }

/// A call reads what an earlier call made for others.
std::vector<Fault> stale_buffer(Linked& subject) {
  const Uses uses(subject);
  std::vector<Fault> faults;
  for (uint32_t call = 0; call < uses.calls(); ++call) {
    for (size_t a = 0; a < uses.inputs_of(call); ++a) {
      if (!uses.is_read(call, a)) continue;
      const uint32_t right = uses.arguments(call)[a];
      for (uint32_t stale = 0; stale < uses.buffers(); ++stale) {
        if (uses.is_same_place(stale, right) || uses.is_constant(stale)) continue;
        if (stale == right || uses.buffer(stale).bytes != uses.buffer(right).bytes) continue;
        if (uses.made_by(stale) == k_none || uses.made_by(stale) >= call) continue;
        faults.push_back({fmt::format("call {}, argument {}: buffer {}", call, a, stale),
                          [=](Parts& parts) { parts.program.calls[call]->arguments[a] = stale; }});
      }
    }
  }
  return faults;
}

/// A call reads another of the caller's tensors.
std::vector<Fault> wrong_tensor(Linked& subject, bool indices) {
  const Uses uses(subject);
  std::vector<Fault> faults;
  for (uint32_t call = 0; call < uses.calls(); ++call) {
    for (size_t a = 0; a < uses.inputs_of(call); ++a) {
      if (!uses.is_read(call, a)) continue;
      const uint32_t right = uses.arguments(call)[a];
      if (uses.buffer(right).place != fb::Place::input) continue;
      const ValueId input = subject.settled().inputs()[uses.buffer(right).index];
      if (is_floating(subject.settled().type(input).dtype) == indices) continue;
      for (uint32_t wrong = 0; wrong < uses.buffers(); ++wrong) {
        const fb::BufferT& other = uses.buffer(wrong);
        if (wrong == right || other.place != fb::Place::input || other.bytes != uses.buffer(right).bytes) continue;
        const ValueId taken = subject.settled().inputs()[other.index];
        if (subject.settled().type(taken).dtype != subject.settled().type(input).dtype) continue;
        faults.push_back({fmt::format("call {}, argument {}: input {}", call, a, other.index),
                          [=](Parts& parts) { parts.program.calls[call]->arguments[a] = wrong; }});
      }
    }
  }
  return faults;
}
std::vector<Fault> wrong_weight(Linked& subject) { return wrong_tensor(subject, false); }
std::vector<Fault> wrong_index(Linked& subject) { return wrong_tensor(subject, true); }

/// What two calls keep at one time lies in one place.
std::vector<Fault> overlapping_values(Linked& subject) {
  const Uses uses(subject);
  std::vector<Fault> faults;
  for (uint32_t kept = 0; kept < uses.buffers(); ++kept) {
    if (!uses.is_scratch(kept) || uses.read_by(kept).empty()) continue;
    const uint32_t first = uses.made_by(kept), last = uses.read_by(kept).back();
    for (uint32_t other = 0; other < uses.buffers(); ++other) {
      if (other == kept || !uses.is_scratch(other) || !uses.matters(other) || uses.is_constant(other)) continue;
      if (uses.made_by(other) < first || uses.made_by(other) >= last) continue;
      const uint64_t bytes = uses.buffer(other).bytes;
      const uint64_t offset = uses.buffer(kept).offset;
      faults.push_back({fmt::format("buffer {} over buffer {}", other, kept), [=](Parts& parts) {
                          parts.program.buffers[other]->offset = offset;
                          uint64_t& scratch = parts.program.scratch_bytes;
                          scratch = std::max(scratch, offset + bytes);
                        }});
    }
  }
  return faults;
}

/// One reader of a value looks a few bytes beside it.
std::vector<Fault> wrong_offset(Linked& subject) {
  const Uses uses(subject);
  std::vector<Fault> faults;
  for (uint32_t call = 0; call < uses.calls(); ++call) {
    for (size_t a = 0; a < uses.inputs_of(call); ++a) {
      if (!uses.is_read(call, a)) continue;
      const uint32_t right = uses.arguments(call)[a];
      if (!uses.is_scratch(right) || uses.is_constant(right)) continue;
      for (const int64_t shift : {64, 4, -64}) {
        const auto offset = static_cast<int64_t>(uses.buffer(right).offset) + shift;
        if (offset < 0) continue;
        faults.push_back({fmt::format("call {}, argument {}: {} bytes off", call, a, shift), [=](Parts& parts) {
                            auto beside = std::make_unique<fb::BufferT>(*parts.program.buffers[right]);
                            beside->offset = static_cast<uint64_t>(offset);
                            parts.program.scratch_bytes += 64;
                            parts.program.calls[call]->arguments[a] =
                                static_cast<uint32_t>(parts.program.buffers.size());
                            parts.program.buffers.push_back(std::move(beside));
                          }});
      }
    }
  }
  return faults;
}

/// An output's maker leaves it in scratch.
std::vector<Fault> unwritten_output(Linked& subject) {
  const Uses uses(subject);
  std::vector<Fault> faults;
  for (uint32_t call = 0; call < uses.calls(); ++call) {
    for (size_t a = uses.inputs_of(call); a < uses.arguments(call).size(); ++a) {
      const uint32_t right = uses.arguments(call)[a];
      if (uses.buffer(right).place != fb::Place::output) continue;
      faults.push_back({fmt::format("call {}, argument {}", call, a), [=](Parts& parts) {
                          auto elsewhere = std::make_unique<fb::BufferT>(*parts.program.buffers[right]);
                          elsewhere->place = fb::Place::scratch;
                          elsewhere->offset = parts.program.scratch_bytes;
                          parts.program.scratch_bytes += elsewhere->bytes + 64;
                          parts.program.calls[call]->arguments[a] = static_cast<uint32_t>(parts.program.buffers.size());
                          parts.program.buffers.push_back(std::move(elsewhere));
                        }});
    }
  }
  return faults;
}

/// An output is said to be another of the caller's tensors.
std::vector<Fault> wrong_alias(Linked& subject) {
  const Parts parts = subject.parts();
  const Graph& graph = subject.client();
  std::vector<Fault> faults;
  for (uint32_t output = 0; output < graph.outputs().size(); ++output) {
    const auto known = std::ranges::find_if(parts.program.aliases, [&](const auto& a) { return a->output == output; });
    for (uint32_t input = 0; input < graph.inputs().size(); ++input) {
      if (graph.type(graph.inputs()[input]) != graph.type(graph.outputs()[output])) continue;
      if (graph.inputs()[input] == graph.outputs()[output]) continue;
      const auto place = static_cast<size_t>(known - parts.program.aliases.begin());
      faults.push_back({fmt::format("output {} as input {}", output, input), [=](Parts& mutant) {
                          auto& aliases = mutant.program.aliases;
                          if (place == aliases.size()) aliases.push_back(std::make_unique<fb::AliasT>());
                          aliases[place]->output = output;
                          aliases[place]->input = input;
                        }});
    }
  }
  return faults;
}

std::vector<Fault> dropped_call(Linked& subject) {
  const Uses uses(subject);
  std::vector<Fault> faults;
  for (uint32_t call = 0; call < uses.calls(); ++call) {
    if (subject.plan(uses.parts().program.calls[call]->plan).launches.empty()) continue;
    faults.push_back({fmt::format("call {}", call),
                      [=](Parts& parts) { parts.program.calls.erase(parts.program.calls.begin() + call); }});
  }
  return faults;
}

/// A call runs before the one whose results it reads.
std::vector<Fault> swapped_calls(Linked& subject) {
  const Uses uses(subject);
  std::vector<Fault> faults;
  for (uint32_t call = 1; call < uses.calls(); ++call) {
    for (size_t a = 0; a < uses.inputs_of(call); ++a) {
      if (!uses.is_read(call, a)) continue;
      const uint32_t maker = uses.made_by(uses.arguments(call)[a]);
      if (maker == k_none || maker >= call) continue;
      faults.push_back({fmt::format("calls {} and {}", maker, call),
                        [=](Parts& parts) { std::swap(parts.program.calls[maker], parts.program.calls[call]); }});
      break;
    }
  }
  return faults;
}

std::vector<Fault> dropped_launch(Linked& subject) {
  std::vector<Fault> faults;
  const Parts parts = subject.parts();
  for (size_t plan = 0; plan < parts.plans.size(); ++plan) {
    for (size_t launch = 0; launch < parts.plans[plan].launches.size(); ++launch) {
      faults.push_back({fmt::format("plan {}, launch {}", plan, launch), [=](Parts& mutant) {
                          auto& launches = mutant.plans[plan].launches;
                          launches.erase(launches.begin() + static_cast<ptrdiff_t>(launch));
                        }});
    }
  }
  return faults;
}

/// A launch runs before the one whose result it reads.
std::vector<Fault> swapped_launches(Linked& subject) {
  std::vector<Fault> faults;
  for (uint32_t plan = 0; plan < subject.parts().plans.size(); ++plan) {
    const auto& launches = subject.plan(plan).launches;
    for (size_t later = 1; later < launches.size(); ++later) {
      for (size_t earlier = 0; earlier < later; ++earlier) {
        if (std::ranges::find(launches[later].buffers, launches[earlier].buffers.back()) ==
            launches[later].buffers.end()) {
          continue;
        }
        faults.push_back({fmt::format("plan {}, launches {} and {}", plan, earlier, later), [=](Parts& mutant) {
                            auto& list = mutant.plans[plan].launches;
                            std::swap(list[earlier], list[later]);
                          }});
      }
    }
  }
  return faults;
}

/// A launch runs another kernel that takes the same buffers.
std::vector<Fault> wrong_kernel(Linked& subject) {
  std::vector<Fault> faults;
  for (uint32_t plan = 0; plan < subject.parts().plans.size(); ++plan) {
    const auto& specs = subject.plan(plan).specs;
    const auto& launches = subject.plan(plan).launches;
    for (size_t launch = 0; launch < launches.size(); ++launch) {
      for (uint32_t other = 0; other < specs.size(); ++other) {
        if (other == launches[launch].spec || specs[other].buffers != specs[launches[launch].spec].buffers) continue;
        faults.push_back({fmt::format("plan {}, launch {} with kernel {}", plan, launch, other),
                          [=](Parts& mutant) { mutant.plans[plan].launches[launch]->code = other; }});
      }
    }
  }
  return faults;
}

/// Kernels that multiply by, or add, another number: plants each for its plan, kernel and code.
void for_each_wrong_constant(Linked& subject, const std::function<void(uint32_t, size_t, const Digest&)>& plant) {
  for (uint32_t plan = 0; plan < subject.parts().plans.size(); ++plan) {
    for (size_t spec = 0; spec < subject.plan(plan).specs.size(); ++spec) {
      KernelSpec wrong = subject.plan(plan).specs[spec];
      auto* loops = std::get_if<LoopsSpec>(&wrong.kernel);
      if (loops == nullptr) continue;
      const auto constant = std::ranges::find_if(loops->body.exprs, [](const ScalarNode& node) {
        return node.op == ScalarOp::constant && is_floating(node.dtype) && node.immediate != 0;
      });
      if (constant == loops->body.exprs.end()) continue;
      constant->immediate *= 1.25;
      plant(plan, spec, subject.compile(wrong));
    }
  }
}

std::vector<Fault> wrong_constant(Linked& subject) {
  std::vector<Fault> faults;
  for_each_wrong_constant(subject, [&](uint32_t plan, size_t spec, const Digest& code) {
    faults.push_back({fmt::format("plan {}, kernel {}", plan, spec),
                      [=](Parts& mutant) { mutant.plans[plan].codes[spec] = fb::ArtifactDigest(code.bytes); }});
  });
  return faults;
}

/// The last of the calls of a plan that are launched alike, with a plan of its own.
std::vector<Fault> wrong_constant_in_one_call(Linked& subject) {
  std::vector<Fault> faults;
  const Parts parts = subject.parts();
  for_each_wrong_constant(subject, [&](uint32_t plan, size_t spec, const Digest& code) {
    const auto& calls = parts.program.calls;
    const auto is_of_plan = [&](const auto& call) { return call->plan == plan; };
    if (std::ranges::count_if(calls, is_of_plan) < 2) return;
    const auto last = std::find_if(calls.rbegin(), calls.rend(), is_of_plan).base() - calls.begin() - 1;
    faults.push_back({fmt::format("call {}, kernel {}", last, spec), [=, &subject](Parts& mutant) {
                        mutant.program.calls[static_cast<size_t>(last)]->plan =
                            static_cast<uint32_t>(mutant.plans.size());
                        mutant.program.plans.emplace_back(code.bytes);  // any name that no other plan has
                        mutant.plans.push_back(std::move(subject.parts().plans[plan]));
                        mutant.plans.back().codes[spec] = fb::ArtifactDigest(code.bytes);
                      }});
  });
  return faults;
}

/// A launch's operands in another order.
std::vector<Fault> swapped_operands(Linked& subject) {
  std::vector<Fault> faults;
  for (uint32_t plan = 0; plan < subject.parts().plans.size(); ++plan) {
    const auto& launches = subject.plan(plan).launches;
    for (size_t launch = 0; launch < launches.size(); ++launch) {
      const auto& buffers = subject.plan(plan).specs[launches[launch].spec].buffers;
      for (size_t a = 0; a < buffers.size(); ++a) {
        for (size_t b = a + 1; b < buffers.size(); ++b) {
          if (buffers[a] != buffers[b] || launches[launch].buffers[a] == launches[launch].buffers[b]) continue;
          faults.push_back(
              {fmt::format("plan {}, launch {}, buffers {} and {}", plan, launch, a, b), [=](Parts& mutant) {
                 auto& list = mutant.plans[plan].launches[launch]->buffers;
                 std::swap(list[a], list[b]);
               }});
        }
      }
    }
  }
  return faults;
}

/// A temporary of a plan lies where another one is still to be read.
std::vector<Fault> reused_too_early(Linked& subject) {
  std::vector<Fault> faults;
  const Parts parts = subject.parts();
  for (uint32_t plan = 0; plan < parts.plans.size(); ++plan) {
    const auto& launches = subject.plan(plan).launches;
    const auto& buffers = parts.plans[plan].buffers;
    const auto first_use = [&](uint32_t buffer) {
      return std::ranges::find_if(launches,
                                  [&](const Launch& launch) {
                                    return std::ranges::find(launch.buffers, buffer) != launch.buffers.end();
                                  }) -
             launches.begin();
    };
    const auto is_used_from = [&](uint32_t buffer, ptrdiff_t step) {
      return std::any_of(launches.begin() + step, launches.end(), [&](const Launch& launch) {
        return std::ranges::find(launch.buffers, buffer) != launch.buffers.end();
      });
    };
    for (uint32_t kept = 0; kept < buffers.size(); ++kept) {
      for (uint32_t other = 0; other < buffers.size(); ++other) {
        if (kept == other || buffers[kept]->place != fb::Place::scratch) continue;
        if (buffers[other]->place != fb::Place::scratch || first_use(other) <= first_use(kept)) continue;
        if (!is_used_from(kept, first_use(other))) continue;
        const uint64_t offset = buffers[kept]->offset, bytes = buffers[other]->bytes;
        faults.push_back({fmt::format("plan {}, buffer {} over buffer {}", plan, other, kept), [=](Parts& mutant) {
                            mutant.plans[plan].buffers[other]->offset = offset;
                            uint64_t& scratch = mutant.plans[plan].scratch_bytes;
                            scratch = std::max(scratch, offset + bytes);
                          }});
      }
    }
  }
  return faults;
}

/// Row-major strides of the dims in reverse.
std::vector<Dim> columns_first(const Shape& shape) {
  std::vector<Dim> strides;
  Dim stride = 1;
  for (const Dim& dim : shape) {
    strides.push_back(stride);
    stride = stride * dim;
  }
  return strides;
}

bool has_two_long_dims(const Shape& shape) {
  return std::ranges::count_if(shape, [](const Dim& dim) { return dim.constant() > 1; }) >= 2;
}

/// A plan that takes an input in other strides than it comes in.
std::vector<Fault> wrong_input_stride(Linked& subject) {
  std::vector<Fault> faults;
  const auto& classes = subject.partition().classes;
  for (uint32_t plan = 0; plan < classes.size(); ++plan) {
    const Graph& graph = classes[plan].graph;
    for (uint32_t input = 0; input < graph.inputs().size(); ++input) {
      const TensorType& type = graph.type(graph.inputs()[input]);
      if (!has_two_long_dims(type.shape) || !type.strides.empty()) continue;
      Graph other;
      std::map<ValueId, ValueId> mapped;
      for (uint32_t i = 0; i < graph.inputs().size(); ++i) {
        TensorType as = graph.type(graph.inputs()[i]);
        if (i == input) as.strides = columns_first(as.shape);
        mapped[graph.inputs()[i]] = other.add_input(as);
      }
      for (const Node& node : graph.nodes()) {
        std::vector<ValueId> operands;
        for (const ValueId operand : node.operands) operands.push_back(operand == k_none ? k_none : mapped[operand]);
        std::vector<TensorType> types;
        for (const ValueId result : node.results) types.push_back(graph.type(result));
        const NodeId added = other.add_node(node.op, operands, node.attributes, types);
        for (size_t r = 0; r < node.results.size(); ++r) mapped[node.results[r]] = other.node(added).results[r];
      }
      std::vector<ValueId> outputs;
      for (const ValueId output : graph.outputs()) outputs.push_back(mapped[output]);
      other.set_outputs(outputs);
      for (size_t i = 0; i < outputs.size(); ++i) other.set_output_strides(i, graph.output_strides()[i]);
      const auto fused = fuse(other);
      if (!fused.ok() || fused->launches.empty()) continue;
      const fb::PlanT linked = subject.link(*fused, graph.inputs().size());
      faults.push_back(
          {fmt::format("plan {}, input {}", plan, input), [=](Parts& mutant) { mutant.plans[plan] = linked; }});
    }
  }
  return faults;
}

/// A plan that leaves a result in other strides than asked for.
std::vector<Fault> wrong_output_stride(Linked& subject) {
  std::vector<Fault> faults;
  const auto& classes = subject.partition().classes;
  for (uint32_t plan = 0; plan < classes.size(); ++plan) {
    for (uint32_t output = 0; output < classes[plan].graph.outputs().size(); ++output) {
      Graph graph = classes[plan].graph;
      const Shape shape = graph.type(graph.outputs()[output]).shape;
      if (!has_two_long_dims(shape)) continue;
      const bool was_dense = graph.output_strides()[output].empty();
      graph.set_output_strides(output, was_dense ? columns_first(shape) : std::vector<Dim>{});
      const auto fused = fuse(graph);
      if (!fused.ok()) continue;
      const fb::PlanT linked = subject.link(*fused, graph.inputs().size());
      faults.push_back(
          {fmt::format("plan {}, output {}", plan, output), [=](Parts& mutant) { mutant.plans[plan] = linked; }});
    }
  }
  return faults;
}

/// The program says that an output has other strides than asked for.
std::vector<Fault> wrong_signature(Linked& subject) {
  std::vector<Fault> faults;
  for (uint32_t output = 0; output < subject.client().outputs().size(); ++output) {
    const Shape& shape = subject.client().type(subject.client().outputs()[output]).shape;
    if (!has_two_long_dims(shape)) continue;
    faults.push_back({fmt::format("output {}", output), [=](Parts& parts) {
                        auto& tensor = *parts.program.outputs[output];
                        const bool was_dense = tensor.strides.empty();
                        tensor.strides.clear();
                        int64_t stride = 1;
                        for (const int64_t dim : tensor.dims) {
                          if (was_dense) tensor.strides.push_back(stride);
                          stride *= dim;
                        }
                      }});
  }
  return faults;
}

template <std::vector<Fault> (*plant)(Linked&)>
std::vector<Fault> some(Linked& subject) {
  std::vector<Fault> faults = plant(subject);
  if (!faults.empty()) keep_some(faults);
  return faults;
}

}  // namespace

const std::vector<FaultKind>& fault_kinds() {
  static const std::vector<FaultKind> kinds{
      {"input read in other strides", some<wrong_input_stride>},
      {"result left in other strides", some<wrong_output_stride>},
      {"output announced in other strides", some<wrong_signature>},
      {"stale buffer read", some<stale_buffer>},
      {"outputs of a region swapped", some<swapped_outputs>},
      {"arguments of a region swapped", some<swapped_inputs>},
      {"operands of a launch swapped", some<swapped_operands>},
      {"another tensor of the caller's read", some<wrong_weight>},
      {"index of another tensor read", some<wrong_index>},
      {"output not written", some<unwritten_output>},
      {"output said to be another input", some<wrong_alias>},
      {"values of two regions overlap", some<overlapping_values>},
      {"temporary reused too early", some<reused_too_early>},
      {"value read at another offset", some<wrong_offset>},
      {"call dropped", some<dropped_call>},
      {"calls swapped", some<swapped_calls>},
      {"launch dropped", some<dropped_launch>},
      {"launches swapped", some<swapped_launches>},
      {"another kernel of the same buffers linked", some<wrong_kernel>},
      {"kernel with another constant linked", some<wrong_constant>},
      {"the same in one of several calls alone", some<wrong_constant_in_one_call>},
      {"output allowed over an input that is still read", some<wrong_overwrite>},
  };
  return kinds;
}

}  // namespace kiln::planted
