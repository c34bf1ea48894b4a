#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kiln::cli {

/// What an option's value must be.
struct Check {
  std::function<std::string(const std::string& text)> why_not;  // empty: `text` is right
  std::string description;                                      // for the help; may be empty
};
/// One of these words.
Check one_of(std::vector<std::string> words);
/// A number from `least` to `most`.
Check in_range(uint32_t least, uint32_t most);
/// The first digits of a key or digest: 1 to 64 hexadecimal digits.
Check entry_name();

/// How an option's value is written.
struct ValueForm {
  const char* name = nullptr;  // in the help: "N", "FILE"; null: the name of its type
  Check check = {};
  bool is_required = false;
  char delimiter = 0;  // between values in one word; 0: one word is one value
};

/// A word that may come next on the command line, and what it does.
struct NextWord {
  std::string word, help;
  std::string also = {};   // an option's short form: "-q"
  std::string value = {};  // how an option's value is written: "FILE"; empty: it has none
};
/// What may come after the words of one command.
struct CommandWords {
  std::string path, help;  // "kiln pack create"
  std::vector<NextWord> commands, options, arguments;
};

/// What one command takes, and the variables that reading the command line fills; these must live until then. A name that
/// begins with "-" is an option's, any other a positional argument's.
///
/// CLI11 reads the command line. Its headers take longer to compile than a command, so commands see this one instead.
class CommandLine {
 public:
  explicit CommandLine(CLI::App& app) : m_app(&app) {}

  void flag(const char* name, bool& set, const char* help);
  void option(const char* name, std::string& value, const char* help, const ValueForm& form = {});
  void option(const char* name, uint32_t& value, const char* help, const ValueForm& form = {});
  void option(const char* name, uint64_t& value, const char* help, const ValueForm& form = {});
  /// An option that may come several times, or positional arguments from here on.
  void option(const char* name, std::vector<std::string>& values, const char* help, const ValueForm& form = {});

  /// A command below this one; one of them must be named.
  CommandLine command(const char* name, const char* help);
  /// Whether the command line named this command. Valid once it was read.
  bool is_chosen() const;
  /// Of all commands, the outermost first. Options of an outer command may come after an inner one's name, too.
  std::vector<CommandWords> all_words() const;

 private:
  CLI::App* m_app;
};

}  // namespace kiln::cli
