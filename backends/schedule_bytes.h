#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/expected.h"

/// Schedule::bytes, for all backends alike: whose choices they are, of which version, and the choices themselves.
///
///     u32 length and name of the implementation | u32 version | each field, little endian, no padding
///
/// An implementation's choices are a struct with
///
///     static constexpr uint32_t k_version                  raised when a field comes, goes or changes its meaning
///     static auto fields(auto& choices)                    std::tie of all fields, in order: bools, enums, integers
///     static constexpr std::string_view k_implementation   its row's name, of a-z, 0-9 and _, where the struct has one row
///
/// The bytes may be older than this build, so reading them trusts nothing. Parsed choices are of this struct and this
/// version; whether a kernel can be made with them is for the implementation to say, problem at hand.
namespace kiln {

struct ScheduleBytes {
  std::string_view implementation;
  uint32_t version = 0;
  std::span<const uint8_t> fields;
};

/// Borrows the bytes. Errors: invalid_argument for bytes that are no schedule.
Expected<ScheduleBytes> open_schedule(std::span<const uint8_t> bytes);

/// Errors: invalid_argument, saying which of the three differs.
Status check_schedule(const ScheduleBytes& found, std::string_view implementation, uint32_t version,
                      size_t field_bytes);

template <typename Choices>
std::vector<uint8_t> encode_choices(const Choices& choices,
                                    std::string_view implementation = Choices::k_implementation) {
  ByteWriter writer;
  writer.write(implementation);
  writer.write(Choices::k_version);
  std::apply([&](const auto&... field) { (writer.write(field), ...); }, Choices::fields(choices));
  return writer.take();
}

/// Errors: invalid_argument for bytes that encode_choices did not make of such a struct. Enums hold any number.
template <typename Choices>
Expected<Choices> parse_choices(std::span<const uint8_t> bytes,
                                std::string_view implementation = Choices::k_implementation) {
  Choices choices;
  const auto fields = Choices::fields(choices);
  const size_t size = std::apply([](const auto&... field) { return (size_t{0} + ... + sizeof field); }, fields);
  KILN_ASSIGN_OR_RETURN(const ScheduleBytes found, open_schedule(bytes));
  KILN_RETURN_IF_ERROR(check_schedule(found, implementation, Choices::k_version, size));
  const uint8_t* at = found.fields.data();
  bool is_good = true;
  const auto read = [&](auto& field) {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(field)>, bool>) is_good &= *at <= 1;
    if (is_good) std::memcpy(&field, at, sizeof field);
    at += sizeof field;
  };
  std::apply([&](auto&... field) { (read(field), ...); }, fields);
  if (!is_good) return invalid_argument("schedule of {}: a truth value above 1", implementation);
  return choices;
}

}  // namespace kiln
