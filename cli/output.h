#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kiln::cli {

using Json = nlohmann::ordered_json;

/// Columns of text. Every cell is escaped when it is added, so names cannot steer the terminal.
class Table {
 public:
  explicit Table(std::vector<std::string> headings);
  void add(std::vector<std::string> cells);
  size_t rows() const { return m_rows.size() - 1; }

  /// Columns padded to their widest cell, two spaces between them; the last one is not padded.
  std::string text(std::string_view heading_start, std::string_view heading_end) const;

 private:
  std::vector<std::vector<std::string>> m_rows;  // the first one has the headings
};

/// Where a command writes: data to stdout, everything else to stderr. With --json stdout has exactly one object,
/// always with schema_version, also when the command fails.
class Output {
 public:
  enum class Color : uint8_t { automatic, always, never };

  bool json = false;
  bool quiet = false;
  int verbosity = 0;

  void set_color(Color color) { m_color = color; }

  /// The command's answer as JSON: call once, when `json` is set.
  void print_json(Json value) const;
  void print_table(const Table& table) const;
  /// "name  value" lines, names aligned.
  void print_pairs(const std::vector<std::pair<std::string, std::string>>& pairs) const;
  /// One line of data. Not for names from outside: escape those.
  void line(std::string_view text) const;

  /// One line on stderr, unless quiet.
  void note(std::string_view text) const;
  /// One of several things failed: a line on stderr, and no answer yet.
  void warn(const Status& status, std::string_view what) const;
  /// What, why, and what next ("" for nothing).
  void error(const Status& status, std::string_view next) const;

  std::string good(std::string_view text) const { return painted("32", text); }
  std::string bad(std::string_view text) const { return painted("31", text); }
  std::string strong(std::string_view text) const { return painted("1", text); }

 private:
  bool colored(int descriptor) const;
  std::string painted(std::string_view code, std::string_view text) const;

  Color m_color = Color::automatic;
};

}  // namespace kiln::cli
