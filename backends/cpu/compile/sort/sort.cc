#include "backends/cpu/compile/sort/sort.h"

#include <algorithm>
#include <array>
#include <bit>

#include "backends/cpu/compile/sort/radix_sort.h"
#include "backends/cpu/compile/sort/topk.h"
#include "backends/schedule_bytes.h"
#include "base/limits.h"

namespace kiln::cpu {
namespace {

/// The choices for a sort: there are none.
struct SortSchedule {
  static constexpr uint32_t k_version = 2;

  static auto fields(auto&) { return std::tie(); }
};

/// The choices for code that takes from its launch extents, and where rows and their elements lie.
struct SizedSortSchedule {
  static constexpr uint32_t k_version = 2;

  uint32_t room = 4096;  // the most elements of a row

  static auto fields(auto& s) { return std::tie(s.room); }
};

/// A way to order rows.
struct Method {
  std::string_view name, sized_name;
  bool is_topk;  // whether it tells first places, or all
  int64_t (*workspace_bytes)(int64_t room, int64_t key_bytes);
  LaunchShape (*emit)(Emitter& emitter, SortRows rows, const SortSpec& sort, int64_t room);
};

constexpr Method k_radix_sort{
    "radix_sort", "sized_radix_sort", false, radix_workspace_bytes,
    [](Emitter& e, SortRows rows, const SortSpec&, int64_t room) { return emit_radix_sort(e, std::move(rows), room); }};
constexpr Method k_topk{"topk", "sized_topk", true, topk_workspace_bytes,
                        [](Emitter& e, SortRows rows, const SortSpec& sort, int64_t room) {
                          return emit_topk(e, std::move(rows), sort.topk->sorted, room);
                        }};

const SortSpec& sort_of(const KernelSpec& spec) { return std::get<SortSpec>(spec.kernel); }
int64_t row_length(const KernelSpec& spec) { return sort_of(spec).extents.back(); }

Status check_room(const Method& method, const KernelSpec& spec, int64_t room) {
  if (room < row_length(spec)) return invalid_argument("sort: no room for rows of {}", row_length(spec));
  const auto most = static_cast<int64_t>(limits::k_task_workspace_bytes);
  const auto bytes = static_cast<int64_t>(size_of(spec.buffers[sort_of(spec).x.buffer].dtype));
  if (room <= most / (2 * bytes) && method.workspace_bytes(room, bytes) <= most) return {};
  return error(StatusCode::unimplemented, "sort: rows of {} need too large a workspace", room);
}

template <const Method& method>
Status claims(const KernelSpec& spec, const CpuTarget&) {
  if (sort_of(spec).topk.has_value() != method.is_topk) {
    return error(StatusCode::unimplemented, "sort: {} tells {}", method.name, method.is_topk ? "first places" : "all");
  }
  return check_room(method, spec, row_length(spec));
}

template <const Method& method>
std::vector<Schedule> schedules(const KernelSpec&, const CpuTarget&, const Machine&) {
  return {{encode_choices(SortSchedule(), method.name), std::string(method.name)}};
}

template <const Method& method>
Expected<LaunchShape> emit(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_RETURN_IF_ERROR(parse_choices<SortSchedule>(bytes, method.name).status());
  const SortSpec& sort = sort_of(spec);
  return method.emit(emitter, SortRows(emitter, spec, SortNumbers(sort.extents.size())), sort, row_length(spec));
}

template <const Method& method>
Expected<LaunchShape> emit_sized(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<SizedSortSchedule>(bytes, method.sized_name));
  KILN_RETURN_IF_ERROR(check_room(method, spec, schedule.room));
  SortSpec form = sort_of(spec);
  return method.emit(emitter, SortRows(emitter, spec, SortNumbers::opened(form)), sort_of(spec), schedule.room);
}

/// Rows have room for as many elements for most sizes, so that these share code; else for the next power of two.
template <const Method& method>
std::optional<SizedSpec> sized(const KernelSpec& spec, const CpuTarget&, std::span<const uint8_t> like) {
  SizedSortSchedule schedule;
  if (like.empty()) {
    schedule.room = std::max(schedule.room, std::bit_ceil(static_cast<uint32_t>(row_length(spec))));
  } else {
    const auto given = parse_choices<SizedSortSchedule>(like, method.sized_name);
    if (!given.ok()) return std::nullopt;
    schedule = *given;
  }
  if (!check_room(method, spec, schedule.room).ok()) return std::nullopt;
  SortSpec form = sort_of(spec);
  const SortNumbers numbers = SortNumbers::opened(form);
  if (numbers.launch.carried().empty() || numbers.launch.carried().size() > limits::k_launch_extents)
    return std::nullopt;
  return sized_spec(spec, std::move(form), numbers.launch,
                    {encode_choices(schedule, method.sized_name), std::string(method.sized_name)});
}

constexpr std::array k_rows{
    Implementation{k_radix_sort.name, claims<k_radix_sort>, schedules<k_radix_sort>, emit<k_radix_sort>},
    Implementation{k_radix_sort.sized_name, claims<k_radix_sort>, no_schedules, emit_sized<k_radix_sort>,
                   sized<k_radix_sort>},
    Implementation{k_topk.name, claims<k_topk>, schedules<k_topk>, emit<k_topk>},
    Implementation{k_topk.sized_name, claims<k_topk>, no_schedules, emit_sized<k_topk>, sized<k_topk>}};

}  // namespace

std::span<const Implementation> sort_implementations() { return k_rows; }

}  // namespace kiln::cpu
