// A page of somebody else may make a browser ask here. It may do so under a name of its own that
// it lets point to this machine (DNS rebinding). Such a request has that name in Host. Addresses
// are no names: nobody else's page has the address of this machine for its own.
#include "serve/gate.h"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "base/process.h"

namespace trainmon::serve {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_address(const std::string& host) {
  in6_addr bytes{};
  return ::inet_pton(AF_INET, host.c_str(), &bytes) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &bytes) == 1;
}

// "[::1]:8600" -> "::1", in lower case; empty where something else than a port follows.
std::string without_port(std::string_view host) {
  const bool has_brackets = host.starts_with('[');
  const std::size_t end = host.find(has_brackets ? ']' : ':');
  if (has_brackets && end == std::string_view::npos) return "";
  const std::string_view port = host.substr(std::min(end + (has_brackets ? 1 : 0), host.size()));
  const bool is_port =
      port.starts_with(':') && port.find_first_not_of("0123456789", 1) == port.npos;
  if (!port.empty() && !is_port) return "";
  std::string name(host.substr(has_brackets ? 1 : 0, has_brackets ? end - 1 : end));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}

}  // namespace

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (got < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "no random numbers for the address");
    }
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    token += kDigits[byte >> 4];
    token += kDigits[byte & 15];
  }
  return token;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = digit_of(text[i + 1]), low = digit_of(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    out += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return out;
}

std::string percent_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '~' ||
                          (c == '.' && text != "." && text != "..");
    if (is_plain) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || (host.starts_with("127.") && is_address(host));
}

Gate::Gate(std::string token, std::string host)
    : token_(std::move(token)), host_(std::move(host)), is_loopback_(is_loopback(host_)) {}

bool Gate::is_ours(std::string_view host) const {
  const std::string name = without_port(host);
  if (is_loopback(name) || name == host_) return true;
  return !is_loopback_ && (is_address(name) || name == without_port(host_name()));
}

// Every digit is looked at, whatever the first ones are: the time tells nothing of the token.
bool Gate::has_token(std::string_view target) const {
  if (!target.starts_with('/')) return false;
  target.remove_prefix(1);
  const std::string_view given = target.substr(0, target.find_first_of("/?"));
  unsigned difference = given.size() == token_.size() ? 0 : 1;
  for (std::size_t i = 0; i < token_.size(); ++i) {
    const char c = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(c ^ token_[i]);
  }
  return difference == 0;
}

std::optional<unsigned> Gate::refuses(const Asked& asked) const {
  if (!is_ours(asked.host)) return 403;
  if (!asked.origin.empty() && asked.origin != "http://" + std::string(asked.host)) return 403;
  if (!has_token(asked.target)) return 404;
  if (asked.method != "GET" && asked.method != "HEAD") return 405;
  return std::nullopt;
}

std::string_view Gate::behind_token(std::string_view target) {
  target = target.substr(0, target.find('?'));
  const std::size_t slash = target.find('/', 1);
  return slash == std::string_view::npos ? std::string_view() : target.substr(slash);
}

std::string_view Gate::query(std::string_view target) {
  const std::size_t at = target.find('?');
  return at == std::string_view::npos ? std::string_view() : target.substr(at + 1);
}

}  // namespace trainmon::serve
