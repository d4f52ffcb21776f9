#include "serve/served.h"

#include "base/process.h"

namespace trainmon::serve {
namespace {

std::string refusal_text(unsigned status) {
  switch (status) {
    case 403:
      return "This is not the name of this server, or a page of somebody else asks.\n";
    case 405:
      return "Only GET and HEAD are answered.\n";
    default:
      return "There is nothing here. `trainmon serve` printed the whole address.\n";
  }
}

}  // namespace

Served::Served(const std::filesystem::path& directory, const ServeOptions& options)
    : host_(options.host),
      gate_(random_token(), options.host),
      site_(directory, options.max_bytes),
      server_(options.host, options.port, [this](const Asked& asked) { return answer(asked); }) {}

std::string Served::address() const {
  std::string host = host_ == "0.0.0.0" || host_ == "::" ? host_name() : host_;
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return "http://" + host + ":" + std::to_string(server_.port()) + "/" + gate_.token() + "/";
}

Answer Served::answer(const Asked& asked) {
  if (const auto status = gate_.refuses(asked)) {
    Answer refusal;
    refusal.status = *status;
    refusal.body = std::make_shared<const std::string>(refusal_text(*status));
    return refusal;
  }
  Answer answer = site_.answer(asked);
  if (!answer.location.empty()) answer.location = "/" + gate_.token() + answer.location;
  return answer;
}

}  // namespace trainmon::serve
