// HTTP/1.1 over TCP, for few requests that nobody needs to be trusted for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "serve/answer.h"

namespace trainmon::serve {

// What a connection may have. Beyond it, it is ended.
inline constexpr int kMostConnections = 64;  // the one that has been silent longest makes room
inline constexpr int kHeaderBytes = 8192;    // of a request
inline constexpr int kHeaderSeconds = 10;    // until the header of its first request is whole
inline constexpr int kIdleSeconds = 30;      // the same of a further request
inline constexpr int kAnswerSeconds = 120;   // until an answer is taken

// One thread serves all connections. A request with a body is refused (413).
class HttpServer {
 public:
  // Called on the thread of the server; must not wait. What it throws becomes status 503.
  using Answerer = std::function<Answer(const Asked&)>;

  // Listens on `host`, an address or "localhost", at `port`, or any that is free where it is 0.
  // Throws std::runtime_error, naming what would be valid.
  HttpServer(const std::string& host, int port, Answerer answerer);
  ~HttpServer();  // ends all connections
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct Listener;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
};

}  // namespace trainmon::serve
