#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/schedule_bytes.h"

/// What a vendor's library proposes for a kernel, as schedules beside those of our own kernels.
namespace kiln::cuda {

/// One of its proposals, by the place in their order. A library's own has its name as k_implementation.
struct LibraryChoice {
  static constexpr uint32_t k_version = 1;
  uint32_t place = 0;
  static auto fields(auto& choice) { return std::tie(choice.place); }
};

/// The first `count`, named before any is made.
template <typename Choice>
std::vector<Schedule> schedules_of_choices(uint32_t count) {
  std::vector<Schedule> schedules;
  for (uint32_t place = 0; place < count; ++place) {
    schedules.push_back(
        {encode_choices(Choice{place}), fmt::format("{} choice {}", Choice::k_implementation, place + 1)});
  }
  return schedules;
}

/// The choice that the bytes are; nullopt for those of another implementation.
template <typename Choice>
std::optional<Choice> choice_of(std::span<const uint8_t> bytes) {
  const auto choice = parse_choices<Choice>(bytes);
  return choice.ok() ? std::optional(*choice) : std::nullopt;
}

/// `ours`, and `theirs` behind the best of them.
inline std::vector<Schedule> behind_the_best(std::vector<Schedule> ours, std::vector<Schedule> theirs) {
  const auto second = ours.begin() + (ours.empty() ? 0 : 1);
  ours.insert(second, std::make_move_iterator(theirs.begin()), std::make_move_iterator(theirs.end()));
  return ours;
}

/// `theirs`, and all of `ours` behind: where the library was seen to be faster, or its way is the usual one and ours takes
/// whatever is asked.
inline std::vector<Schedule> before_ours(std::vector<Schedule> theirs, std::vector<Schedule> ours) {
  theirs.insert(theirs.end(), std::make_move_iterator(ours.begin()), std::make_move_iterator(ours.end()));
  return theirs;
}

}  // namespace kiln::cuda
