// A run, or the runs of a directory, in browsers while they grow.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "serve/gate.h"
#include "serve/http_server.h"
#include "serve/site.h"

namespace trainmon::serve {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 0;                                    // 0: any that is free
  std::int64_t max_bytes = std::int64_t{4} << 20;  // of a page, as in ReportOptions
};

// Only reads. Its threads end with it.
class Served {
 public:
  // Throws as Site and HttpServer do.
  Served(const std::filesystem::path& directory, const ServeOptions& options);

  // With the token: whoever has it can read the run.
  std::string address() const;

 private:
  Answer answer(const Asked& asked);

  const std::string host_;
  Gate gate_;
  Site site_;
  HttpServer server_;  // ends first
};

}  // namespace trainmon::serve
