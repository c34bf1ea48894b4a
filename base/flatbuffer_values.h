#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"

/// Texts, bytes, lists and digests in tables of FlatBuffers. What is absent reads as empty.
namespace kiln {

using FlatBytes = flatbuffers::Vector<uint8_t>;

inline flatbuffers::Offset<FlatBytes> write_digest(flatbuffers::FlatBufferBuilder& builder, const Digest& digest) {
  return builder.CreateVector(digest.bytes.data(), digest.bytes.size());
}

/// One after the other.
inline flatbuffers::Offset<FlatBytes> write_digests(flatbuffers::FlatBufferBuilder& builder,
                                                    const std::vector<Digest>& digests) {
  std::vector<uint8_t> bytes;
  for (const Digest& digest : digests) bytes.insert(bytes.end(), digest.bytes.begin(), digest.bytes.end());
  return builder.CreateVector(bytes);
}

/// The table that the bytes hold, whose every access is within them; null for bytes that are none.
template <typename Table>
const Table* verified(std::span<const uint8_t> bytes) {
  flatbuffers::Verifier verifier(bytes.data(), bytes.size());
  return verifier.VerifyBuffer<Table>(nullptr) ? flatbuffers::GetRoot<Table>(bytes.data()) : nullptr;
}

/// Of a vector, or what is like one.
template <typename List>
size_t size_of_list(const List* list) {
  return list == nullptr ? 0 : list->size();
}

inline std::string read_text(const flatbuffers::String* text) { return text == nullptr ? "" : text->str(); }

inline std::vector<uint8_t> read_bytes(const FlatBytes* bytes) {
  return bytes == nullptr ? std::vector<uint8_t>{} : std::vector<uint8_t>(bytes->begin(), bytes->end());
}

/// Of any alignment.
inline std::vector<int64_t> read_numbers(const flatbuffers::Vector<int64_t>* list) {
  std::vector<int64_t> numbers(size_of_list(list));
  if (!numbers.empty()) std::memcpy(numbers.data(), list->Data(), numbers.size() * sizeof(int64_t));
  return numbers;
}

/// Errors: invalid_argument for another length than a digest's, absent ones too.
inline Status read_digest(const FlatBytes* bytes, Digest& digest) {
  const size_t size = size_of_list(bytes);
  if (size != digest.bytes.size()) return invalid_argument("digest has {} bytes, expected 32", size);
  std::memcpy(digest.bytes.data(), bytes->data(), size);
  return {};
}

/// Errors: invalid_argument for bytes that are no whole number of digests.
inline Status read_digests(const FlatBytes* bytes, std::vector<Digest>& digests) {
  const size_t size = size_of_list(bytes);
  if (size % sizeof(Digest::bytes) != 0) return invalid_argument("digests have {} bytes", size);
  digests.resize(size / sizeof(Digest::bytes));
  for (size_t i = 0; i < digests.size(); ++i) {
    std::memcpy(digests[i].bytes.data(), bytes->data() + i * sizeof(Digest::bytes), sizeof(Digest::bytes));
  }
  return {};
}

}  // namespace kiln
