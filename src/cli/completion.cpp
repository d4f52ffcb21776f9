// trainmon completion: scripts for bash and zsh, made from the subcommands and options there are.
#include <iostream>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace trainmon::cli {
namespace {

struct Command {
  std::string words;  // "", "top", "config check"
  std::vector<std::string> options;
  std::vector<std::string> subcommands;
};

void collect(const CLI::App& app, const std::string& words, std::vector<Command>& found) {
  Command here{words, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) here.options.push_back("--" + name);
    for (const std::string& name : option->get_snames()) here.options.push_back("-" + name);
  }
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (!sub->get_name().empty()) here.subcommands.push_back(sub->get_name());
  }
  found.push_back(here);
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (sub->get_name().empty()) continue;
    collect(*sub, words.empty() ? sub->get_name() : words + " " + sub->get_name(), found);
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Both shells: the words typed so far that name subcommands choose what may follow.
std::string script(const CLI::App& app, bool is_zsh) {
  std::vector<Command> commands;
  collect(app, "", commands);
  std::string text;
  if (is_zsh) {
    text = "#compdef trainmon\nautoload -U +X bashcompinit && bashcompinit\n";
  }
  text +=
      "_trainmon() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" path=\"\" i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$path ${COMP_WORDS[i]}\" in\n";
  std::string known;
  for (const Command& command : commands) {
    if (!command.words.empty())
      known += (known.empty() ? "" : "|") + ("\" " + command.words + "\"");
  }
  text += "      " + known +
          ") path=\"${path:+$path }${COMP_WORDS[i]}\"; path=\" ${path# }\" ;;\n"
          "    esac\n"
          "  done\n"
          "  local options subcommands\n"
          "  case \"$path\" in\n";
  const std::vector<std::string> global = commands.front().options;
  for (const Command& command : commands) {
    std::vector<std::string> options = command.options;
    for (const std::string& name : global) {
      if (std::find(options.begin(), options.end(), name) == options.end()) options.push_back(name);
    }
    const std::string path = command.words.empty() ? "" : " " + command.words;
    text += "    \"" + path + "\") subcommands=\"" + joined(command.subcommands) +
            "\"; options=\"" + joined(options) + "\" ;;\n";
  }
  text +=
      "  esac\n"
      "  if [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
      "  elif [[ -n $subcommands ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$subcommands\" -- \"$word\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _trainmon trainmon\n";
  // Found by its name this file is the body of the function at its first call.
  if (is_zsh)
    text += "[[ $funcstack[1] == _trainmon ]] && _bash_complete -o filenames -F _trainmon\n";
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Context&) {
  CLI::App* command = app.add_subcommand("completion", "completion of commands for bash and zsh");
  command->require_subcommand(1);
  for (const char* shell : {"bash", "zsh"}) {
    CLI::App* one = command->add_subcommand(shell, std::string("for ") + shell);
    const bool is_zsh = std::string_view(shell) == "zsh";
    one->callback([&app, is_zsh] { std::cout << script(app, is_zsh); });
  }
  command->footer(R"(Examples:
  trainmon completion bash > ~/.local/share/bash-completion/completions/trainmon
  trainmon completion zsh > ~/.zfunc/_trainmon    # a directory of $fpath
  source <(trainmon completion bash)              # this shell alone)");
}

}  // namespace trainmon::cli
