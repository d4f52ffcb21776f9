// Who may ask: the token of the address, and the headers by which a browser tells whose page asks.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serve/answer.h"

namespace trainmon::serve {

// 32 hexadecimal digits, 128 bits of the system's random source. Throws std::system_error.
std::string random_token();

// "%2e" -> "."; nullopt where a "%" is not followed by two digits, or stands for a NUL.
std::optional<std::string> percent_decoded(std::string_view text);
// A name as one segment of a path.
std::string percent_encoded(std::string_view text);

class Gate {
 public:
  // `host` is the address that is listened on.
  Gate(std::string token, std::string host);

  // The status of a refusal, or nullopt. 403: the header Host is of somebody else, or a page of
  // somebody else asks (Origin). 404: the token is wrong. 405: neither GET nor HEAD.
  std::optional<unsigned> refuses(const Asked& asked) const;
  // What stands behind the token in a target that is not refused, without its "?": "", "/",
  // "/state", "/a%20run/". Encoded as it came.
  static std::string_view behind_token(std::string_view target);

  // What stands behind its "?"; empty: nothing.
  static std::string_view query(std::string_view target);

  const std::string& token() const { return token_; }

 private:
  bool is_ours(std::string_view host) const;
  bool has_token(std::string_view target) const;

  const std::string token_;
  const std::string host_;
  const bool is_loopback_;
};

// Whether it is 127.0.0.0/8, ::1 or "localhost".
bool is_loopback(const std::string& host);

}  // namespace trainmon::serve
