#include "server/http/http_request_reader.h"

// Beast asserts what a client can violate (trailers that are no fields, for example). Its assertions
// throw here, in every build, and the request is refused.
#define BOOST_ENABLE_ASSERT_HANDLER

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace boost {

void assertion_failed(const char* expression, const char*, const char*, long) {
  throw std::logic_error(expression);
}
void assertion_failed_msg(const char* expression, const char*, const char*, const char*, long) {
  throw std::logic_error(expression);
}

}  // namespace boost

namespace kvcache::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

std::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

struct HttpRequestReader::Parser {
  http::request_parser<http::string_body> http;
};

HttpRequestReader::HttpRequestReader(std::size_t header_bytes, std::size_t body_bytes)
    : header_bytes_(header_bytes), body_bytes_(body_bytes) {}
HttpRequestReader::~HttpRequestReader() = default;

HttpRequestReader::Outcome HttpRequestReader::Read(std::string& inbox) {
  if (parser_ == nullptr) {
    // Empty lines before a request are skipped.
    inbox.erase(0, std::min(inbox.find_first_not_of("\r\n"), inbox.size()));
    if (inbox.empty()) return Outcome::kMore;
    request_ = {};
    parser_ = std::make_unique<Parser>();
    parser_->http.header_limit(static_cast<std::uint32_t>(header_bytes_));
    parser_->http.body_limit(body_bytes_);
    parser_->http.eager(true);
  }
  try {
    return parser_->http.is_header_done() ? ReadBody(inbox) : ReadHead(inbox);
  } catch (const std::logic_error&) {
    return Refuse(400, "bad HTTP");
  }
}

HttpRequestReader::Outcome HttpRequestReader::ReadHead(std::string& inbox) {
  const std::size_t end = inbox.find("\r\n\r\n");
  const std::size_t size = end == std::string::npos ? inbox.size() : end;
  if (size > header_bytes_) return Refuse(431, "the head of the request is too large");
  if (end == std::string::npos) return Outcome::kMore;
  const std::string_view head = std::string_view(inbox).substr(0, end);
  if (head.find("\r\n ") != head.npos || head.find("\r\n\t") != head.npos) {
    return Refuse(400, "a folded header is not supported");
  }
  parser_->http.eager(false);
  error_code error;
  inbox.erase(0, parser_->http.put(asio::buffer(inbox.data(), end + 4), error));
  parser_->http.eager(true);
  const std::string_view target = View(parser_->http.get().target());
  const std::string_view resource = target.substr(0, target.find('#'));
  request_.path = resource.substr(0, resource.find('?'));
  request_.query = resource.substr(std::min(resource.size(), request_.path.size() + 1));
  if (error == http::error::body_limit) return RefuseBody();
  if (error == http::error::bad_version) return Refuse(505, "HTTP 1.0 and 1.1 are spoken");
  if (error && error != http::error::need_more) {
    return Refuse(400, StrCat("bad HTTP: ", error.message()));
  }
  // The parser looks for the version beyond the line's end, for example.
  if (!parser_->http.is_header_done()) return Refuse(400, "bad HTTP: the head is not whole");
  const Outcome checked = CheckHead();
  return checked == Outcome::kMore ? ReadBody(inbox) : checked;
}

// Returns kMore if the head is valid.
HttpRequestReader::Outcome HttpRequestReader::CheckHead() {
  const auto& head = parser_->http.get();
  is_http_1_0_ = head.version() == 10;
  if (head.count(http::field::content_length) > 1) {
    return Refuse(400, "the length of the body is given twice");
  }
  const auto length = parser_->http.content_length();
  if (length && *length > body_bytes_) return RefuseBody();
  // Which of two would hold?
  if (head.count(http::field::host) > 1) return Refuse(400, "the host is given twice");
  if (head.count(http::field::host) == 0 && !is_http_1_0_) {
    return Refuse(400, "the host is missing");
  }
  const bool waits =
      boost::beast::iequals(head[http::field::expect], "100-continue") && !is_http_1_0_;
  return waits ? Outcome::kContinue : Outcome::kMore;
}

HttpRequestReader::Outcome HttpRequestReader::ReadBody(std::string& inbox) {
  error_code error;
  // A parser without a body is done with its head.
  while (!parser_->http.is_done() && !inbox.empty()) {
    const std::size_t used = parser_->http.put(asio::buffer(inbox), error);
    inbox.erase(0, used);
    if (error == http::error::body_limit) return RefuseBody();
    if (error && error != http::error::need_more) {
      return Refuse(400, StrCat("bad HTTP: ", error.message()));
    }
    if (used == 0) break;
  }
  if (parser_->http.is_done()) return Complete();
  if (inbox.size() > header_bytes_) return Refuse(400, "the body's framing is too large");
  return Outcome::kMore;
}

HttpRequestReader::Outcome HttpRequestReader::Complete() {
  auto message = parser_->http.release();
  parser_.reset();
  keeps_alive_ = message.keep_alive();
  head_only_ = message.method() == http::verb::head;
  request_.method = View(message.method_string());
  request_.host = View(message[http::field::host]);
  request_.authorization = View(message[http::field::authorization]);
  request_.api_key = View(message["X-Api-Key"]);
  request_.origin = View(message[http::field::origin]);
  request_.asked_headers = View(message[http::field::access_control_request_headers]);
  request_.body = std::move(message.body());
  return Outcome::kRequest;
}

HttpRequestReader::Outcome HttpRequestReader::Refuse(int status, std::string message) {
  parser_.reset();
  keeps_alive_ = head_only_ = false;
  status_ = status;
  message_ = std::move(message);
  return Outcome::kRefused;
}

HttpRequestReader::Outcome HttpRequestReader::RefuseBody() {
  return Refuse(413, StrCat("the body is larger than ", body_bytes_, " bytes"));
}

}  // namespace kvcache::server
