// Counts brackets outside of strings, before any parser sees the text.
#include "base/json_text.h"

#include "base/file.h"

namespace trainmon {

bool is_too_deep(std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

std::string read_json_text(const std::filesystem::path& path, std::int64_t most) {
  std::string text = read_file(path, most);
  if (is_too_deep(text)) {
    throw SinkError("too_deep", path.string() + " is nested deeper than " +
                                    std::to_string(kMaxJsonDepth) + " levels");
  }
  return text;
}

}  // namespace trainmon
