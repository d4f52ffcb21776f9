// By Boost.Beast: its parser bounds the header, and its streams have deadlines. One thread serves
// all, so that a slow client costs a buffer and no thread.
#include "serve/http_server.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_static_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/span_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <ctime>
#include <list>
#include <optional>
#include <stdexcept>

#include "base/signals_blocked.h"
#include "base/text.h"

namespace trainmon::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Error = boost::system::error_code;
using Seconds = std::chrono::seconds;

constexpr int kBufferBytes = 2 * kHeaderBytes;
constexpr int kDrainedBytes = 1 << 16;  // that a refused client may still send

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  char rest[40];
  std::strftime(rest, sizeof rest, " %Y %H:%M:%S GMT", &parts);
  const std::string day = (parts.tm_mday < 10 ? "0" : "") + std::to_string(parts.tm_mday);
  return std::string(kDays[parts.tm_wday]) + ", " + day + " " + kMonths[parts.tm_mon] + rest;
}

// A page may run its own scripts and ask its own server; nothing else, and nobody may frame it.
std::string policy_of(const Answer& answer) {
  std::string policy =
      "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
  if (answer.nonce.empty()) return policy;
  const std::string own = "'nonce-" + answer.nonce + "'";
  return policy + "; script-src " + own + "; style-src " + own +
         "; connect-src 'self'; img-src data:";
}

std::string_view view_of(beast::string_view text) {
  return {text.data(), text.size()};
}

Answer refusal(unsigned status, const std::string& text) {
  Answer answer;
  answer.status = status;
  answer.body = std::make_shared<const std::string>(text + "\n");
  return answer;
}

class Connection;
using Connections = std::list<std::shared_ptr<Connection>>;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const HttpServer::Answerer& answerer, Connections& all)
      : stream_(std::move(socket)), answerer_(answerer), all_(all) {}

  void start(Connections::iterator place) {
    place_ = place;
    read(kHeaderSeconds);
  }
  bool is_reading() const { return is_reading_; }
  // Ends it at once; what waits for it finds it closed.
  void leave() {
    if (std::exchange(has_left_, true)) return;
    is_reading_ = false;
    stream_.close();
    all_.erase(place_);
  }

 private:
  void read(int seconds) {
    parser_.emplace();
    parser_->header_limit(kHeaderBytes);
    is_reading_ = true;
    all_.splice(all_.end(), all_, place_);  // the one that has been silent longest is in front
    stream_.expires_after(Seconds(seconds));
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](Error error, std::size_t) { self->on_read(error); });
  }
  void on_read(Error error) {
    if (has_left_) return;
    is_reading_ = false;
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return write(
          refusal(431, "The header is larger than " + std::to_string(kHeaderBytes) + " bytes."));
    }
    if (error == http::error::end_of_stream) return leave();
    if (error.category() == http::make_error_code(http::error::bad_value).category()) {
      return error == http::error::partial_message ? leave()
                                                   : write(refusal(400, "This is no HTTP/1.1."));
    }
    if (error) return leave();
    if (!parser_->is_done()) return write(refusal(413, "A request has no body here."));
    answer();
  }
  void answer() {
    const auto& request = parser_->get();
    Asked asked;
    asked.method = view_of(request.method_string());
    asked.target = view_of(request.target());
    asked.host = view_of(request[http::field::host]);
    asked.origin = view_of(request[http::field::origin]);
    asked.if_none_match = view_of(request[http::field::if_none_match]);
    asked.accept_language = view_of(request[http::field::accept_language]);
    if (request.count(http::field::host) > 1 || request.count(http::field::origin) > 1) {
      return write(refusal(400, "Host and Origin stand once."));
    }
    try {
      Answer made = answerer_(asked);
      keeps_alive_ = request.keep_alive() && made.status < 400;
      write(std::move(made), request.method() == http::verb::head);
    } catch (const std::exception&) {
      write(refusal(503, "There is no answer now."));
    }
  }
  void write(Answer made, bool is_head = false) {
    answer_ = std::move(made);
    response_ = {};
    response_.version(11);
    response_.result(answer_.status);
    response_.set("Date", http_date());
    response_.set("Cache-Control", "no-store");
    response_.set("Content-Security-Policy", policy_of(answer_));
    response_.set("Cross-Origin-Resource-Policy", "same-origin");
    response_.set("Referrer-Policy", "no-referrer");
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set("X-Frame-Options", "DENY");
    if (answer_.status == 405) response_.set("Allow", "GET, HEAD");
    if (!answer_.location.empty()) response_.set("Location", answer_.location);
    if (!answer_.tag.empty()) response_.set("ETag", '"' + answer_.tag + '"');
    if (answer_.status != 304) {
      const std::size_t size = answer_.body ? answer_.body->size() : 0;
      response_.set("Content-Type", beast::string_view(answer_.type.data(), answer_.type.size()));
      response_.content_length(size);
      if (!is_head && size > 0) response_.body() = {answer_.body->data(), size};
    }
    response_.keep_alive(keeps_alive_);
    stream_.expires_after(Seconds(kAnswerSeconds));
    http::async_write(stream_, response_, [self = shared_from_this()](Error error, std::size_t) {
      self->on_written(error);
    });
  }
  void on_written(Error error) {
    answer_ = {};
    if (error) return leave();
    if (std::exchange(keeps_alive_, false)) return read(kIdleSeconds);
    stream_.socket().shutdown(tcp::socket::shutdown_send, error);
    stream_.expires_after(Seconds(2));
    drain();
  }
  // A socket that is closed with bytes unread makes the client lose its answer.
  void drain() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kBufferBytes),
                            [self = shared_from_this()](Error error, std::size_t bytes) {
                              self->drained_ += bytes;
                              if (error || self->drained_ > kDrainedBytes) return self->leave();
                              self->drain();
                            });
  }

  beast::tcp_stream stream_;
  const HttpServer::Answerer& answerer_;
  Connections& all_;
  Connections::iterator place_;
  beast::flat_static_buffer<kBufferBytes> buffer_;
  std::optional<http::request_parser<http::empty_body>> parser_;
  Answer answer_;  // what `response_` points into
  http::response<http::span_body<const char>> response_;
  std::size_t drained_ = 0;
  bool is_reading_ = false;
  bool has_left_ = false;
  bool keeps_alive_ = false;
};

}  // namespace

struct HttpServer::Listener {
  explicit Listener(Answerer given) : answerer(std::move(given)), acceptor(io), pause(io) {}

  void accept() {
    acceptor.async_accept([this](Error error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {  // no descriptor is left: later there may be one
        pause.expires_after(std::chrono::milliseconds(200));
        pause.async_wait([this](Error) { accept(); });
        return;
      }
      take(std::move(socket));
      accept();
    });
  }
  void take(tcp::socket socket) {
    if (connections.size() >= kMostConnections) {
      const auto silent =
          std::ranges::find_if(connections, [](const auto& one) { return one->is_reading(); });
      if (silent == connections.end()) return;  // all take their answers; this one is closed
      const auto kept = *silent;                // until it has left
      kept->leave();
    }
    connections.push_back(std::make_shared<Connection>(std::move(socket), answerer, connections));
    connections.back()->start(std::prev(connections.end()));
  }

  const Answerer answerer;
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  Connections connections;
};

HttpServer::HttpServer(const std::string& host, int port, Answerer answerer)
    : listener_(std::make_unique<Listener>(std::move(answerer))) {
  Error error;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) {
    throw std::runtime_error("no address: '" + printable(host) +
                             "'; 127.0.0.1, ::1, an address of this machine, or 0.0.0.0 for all "
                             "of them can be listened on");
  }
  const tcp::endpoint endpoint(address, static_cast<unsigned short>(port));
  tcp::acceptor& acceptor = listener_->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kMostConnections, error);
  if (error == asio::error::address_in_use) {
    throw std::runtime_error("port " + std::to_string(port) + " of " + host +
                             " is taken; --port 0 takes one that is free");
  }
  if (error) {
    throw std::runtime_error("cannot listen on port " + std::to_string(port) + " of " + host +
                             ": " + error.message() +
                             "; --port takes 0 or a number above 1023, --host an address of this "
                             "machine");
  }
  listener_->accept();
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { listener_->io.run(); });
}

HttpServer::~HttpServer() {
  listener_->io.stop();
  thread_.join();
}

int HttpServer::port() const {
  return listener_->acceptor.local_endpoint().port();
}

}  // namespace trainmon::serve
