// Tests HTTPS with a certificate that the test makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "server/server_testing.h"

namespace kvcache::server::tls_test {
namespace {

using ::testing::HasSubstr;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;

Key MakeKey() {
  return Key(EVP_EC_gen("P-256"));
}

Certificate Sign(EVP_PKEY* key) {
  Certificate made(X509_new());
  (void)X509_set_version(made.get(), 2);
  (void)ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
  (void)X509_gmtime_adj(X509_getm_notBefore(made.get()), 0);
  (void)X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
  (void)X509_set_pubkey(made.get(), key);
  X509_NAME* const name = X509_get_subject_name(made.get());
  const auto* const text = reinterpret_cast<const unsigned char*>("localhost");
  (void)X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0);
  (void)X509_set_issuer_name(made.get(), name);
  EXPECT_GT(X509_sign(made.get(), key, EVP_sha256()), 0);
  return made;
}

std::string FileOf(const std::string& name, EVP_PKEY* key, X509* certificate) {
  const std::string path = ::testing::TempDir() + name;
  FILE* const file = std::fopen(path.c_str(), "w");
  if (key != nullptr) {
    EXPECT_EQ(PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  }
  if (certificate != nullptr) {
    EXPECT_EQ(PEM_write_X509(file, certificate), 1);
  }
  (void)std::fclose(file);
  return path;
}

class TlsTest : public ServerTest {
 protected:
  void SetUp() override {
    key_ = MakeKey();
    certificate_ = Sign(key_.get());
    key_file_ = FileOf("key.pem", key_.get(), nullptr);
    certificate_file_ = FileOf("cert.pem", nullptr, certificate_.get());
  }

  Status Try(const std::string& certificate, const std::string& key) {
    auto server = Server::Start(*engine_, {.name = "story"},
                                {.http = {.tls_certificate = certificate, .tls_key = key}});
    if (!server.ok()) return std::move(server).TakeStatus();
    server_ = std::move(*server);
    return Status::Ok();
  }

  // Sends requests over one connection that trusts the test's certificate only, and reads to its end.
  std::string Ask(const std::string& requests, int version = 0) {
    const std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
    if (version != 0) (void)SSL_CTX_set_max_proto_version(context.get(), version);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    (void)X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), certificate_.get());
    const Client client(server_->port());
    const std::unique_ptr<SSL, Freed<SSL_free>> tls(SSL_new(context.get()));
    (void)SSL_set_fd(tls.get(), client.descriptor());
    if (SSL_connect(tls.get()) != 1) return "no connection";
    EXPECT_EQ(SSL_write(tls.get(), requests.data(), static_cast<int>(requests.size())),
              static_cast<int>(requests.size()));
    std::string text;
    char bytes[4096];
    int size = 0;
    while ((size = SSL_read(tls.get(), bytes, sizeof(bytes))) > 0) {
      text.append(bytes, static_cast<std::size_t>(size));
    }
    EXPECT_EQ(SSL_get_error(tls.get(), size), SSL_ERROR_ZERO_RETURN) << "the end is not said";
    return text;
  }

  Key key_;
  Certificate certificate_;
  std::string key_file_, certificate_file_;
};

TEST_F(TlsTest, AnswersAndStreams) {
  ASSERT_TRUE(Try(certificate_file_, key_file_).ok());
  const std::string get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  Json chat = Chat("Hello", 8);
  const auto post = [&] {
    const std::string body = chat.dump();
    return StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
                  "Connection: close\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  };
  const std::string both = Ask(get + post());
  EXPECT_THAT(both, HasSubstr("{\"status\":\"ok\"}"));
  const HttpAnswer whole = Parse(both.substr(both.rfind("HTTP/1.1")));
  EXPECT_EQ(whole.status, 200);
  chat["stream"] = true;
  const HttpAnswer streamed = Parse(Ask(post()));
  std::string text;
  for (const Json& event : Events(streamed.body)) {
    text += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(whole.json()["choices"][0]["message"]["content"], text);
  EXPECT_FALSE(text.empty());
}

// What does not speak TLS, or an old one, is let go of, and others go on.
TEST_F(TlsTest, RefusesOtherClients) {
  ASSERT_TRUE(Try(certificate_file_, key_file_).ok());
  {
    Client plain(server_->port());
    EXPECT_TRUE(plain.Write("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_THAT(plain.Read(), ::testing::Not(HasSubstr("HTTP")));
    Client silent(server_->port());
    EXPECT_EQ(Ask("", TLS1_1_VERSION), "no connection");
  }
  EXPECT_THAT(Ask("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
              HasSubstr("200 OK"));
}

// Clients trust the new certificate only, or, if that cannot be used, the old one.
TEST_F(TlsTest, ReadsACertificateAgain) {
  ASSERT_TRUE(Try(certificate_file_, key_file_).ok());
  const std::string get = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  EXPECT_THAT(Ask(get), HasSubstr("200 OK"));
  const Certificate old = std::exchange(certificate_, Sign((key_ = MakeKey()).get()));
  (void)FileOf("cert.pem", nullptr, certificate_.get());
  EXPECT_THAT(server_->ReloadCertificate().message(), HasSubstr("not the certificate's key"));
  EXPECT_EQ(Ask(get), "no connection");
  (void)FileOf("key.pem", key_.get(), nullptr);
  ASSERT_TRUE(server_->ReloadCertificate().ok());
  EXPECT_THAT(Ask(get), HasSubstr("200 OK"));
}

TEST_F(TlsTest, NamesTheFileThatIsWrong) {
  const Key other = MakeKey();
  const std::string other_file = FileOf("other.pem", other.get(), nullptr);
  EXPECT_THAT(Try(certificate_file_, "").message(), HasSubstr("both a certificate and its key"));
  EXPECT_THAT(Try("/no/such.pem", key_file_).message(), HasSubstr("/no/such.pem: not a certif"));
  EXPECT_THAT(Try(key_file_, key_file_).message(), HasSubstr("key.pem: not a certificate"));
  EXPECT_THAT(Try(certificate_file_, other_file).message(), HasSubstr("other.pem: not the cert"));
  EXPECT_THAT(Try(certificate_file_, certificate_file_).message(),
              HasSubstr("not the certificate's"));
}

}  // namespace
}  // namespace kvcache::server::tls_test
