#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>

#include "base/json_schema.h"
#include "base/printable.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

std::string padded(std::string_view text, size_t width) {
  const size_t used = width_of(text);
  return std::string(text) + std::string(used < width ? width - used : 0, ' ');
}

/// Without the code, which says nothing to people that the sentence does not.
std::string sentence(const Status& status) { return escaped(status.message()); }

}  // namespace

Table::Table(std::vector<std::string> headings) { m_rows.push_back(std::move(headings)); }

void Table::add(std::vector<std::string> cells) {
  assert(cells.size() == m_rows[0].size());
  for (std::string& cell : cells) cell = escaped(cell);
  m_rows.push_back(std::move(cells));
}

std::string Table::text(std::string_view heading_start, std::string_view heading_end) const {
  std::vector<size_t> widths(m_rows[0].size(), 0);
  for (const auto& row : m_rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string result;
  for (size_t r = 0; r < m_rows.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) line += (i ? "  " : "") + padded(m_rows[r][i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    result += r == 0 ? fmt::format("{}{}{}\n", heading_start, line, heading_end) : line + "\n";
  }
  return result;
}

bool Output::colored(int descriptor) const {
  if (m_color != Color::automatic) return m_color == Color::always;
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return isatty(descriptor) == 1;
}

std::string Output::painted(std::string_view code, std::string_view text) const {
  return colored(STDOUT_FILENO) ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

void Output::print_json(Json value) const {
  Json object{{"schema_version", k_schema_version}};
  for (auto& [name, field] : value.items()) {
    if (name != "schema_version") object[name] = std::move(field);
  }
  const std::string text = object.dump(2, ' ', false, Json::error_handler_t::replace);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

void Output::print_table(const Table& table) const {
  const bool color = colored(STDOUT_FILENO);
  const std::string text = table.text(color ? "\x1b[1m" : "", color ? "\x1b[0m" : "");
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void Output::print_pairs(const std::vector<std::pair<std::string, std::string>>& pairs) const {
  size_t width = 0;
  for (const auto& [name, value] : pairs) width = std::max(width, width_of(name));
  for (const auto& [name, value] : pairs) line(fmt::format("{}  {}", padded(name, width), escaped(value)));
}

void Output::line(std::string_view text) const {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

void Output::note(std::string_view text) const {
  if (!quiet) std::fprintf(stderr, "%s\n", escaped(text).c_str());
}

void Output::warn(const Status& status, std::string_view what) const {
  const bool named = status.message().starts_with(what);
  std::fprintf(stderr, "kiln: %s\n", sentence(named ? status : status.with_context(what)).c_str());
}

void Output::error(const Status& status, std::string_view next) const {
  const bool color = colored(STDERR_FILENO);
  std::fprintf(stderr, "%skiln:%s %s%s%s\n", color ? "\x1b[31m" : "", color ? "\x1b[0m" : "", sentence(status).c_str(),
               next.empty() ? "" : "\n  ", std::string(next).c_str());
  if (!json) return;
  Json failure{{"code", std::string(to_string(status.code()))}, {"message", status.message()}};
  if (!next.empty()) failure["next"] = next;
  print_json({{"error", std::move(failure)}});
}

}  // namespace kiln::cli
