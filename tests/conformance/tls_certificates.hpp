#pragma once
/// \file tls_certificates.hpp
/// Authorities and certificates for tests, made when they run, in files of a folder that goes with them.

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <tensorhub/transports/tls.hpp>

namespace tls_tests {

using tensorhub::transports::tls_detail::freed_by;
using key_pointer = std::unique_ptr<EVP_PKEY, freed_by<::EVP_PKEY_free>>;
using certificate_pointer = std::unique_ptr<X509, freed_by<::X509_free>>;
using bio = tensorhub::transports::tls_detail::bio_pointer;

inline void must(bool good, const char* what) {
  if (!good) throw std::runtime_error{std::string{what} + " failed"};
}

/// What a certificate shall say.
struct certificate_text {
  std::string name = "worker";     ///< common name
  std::string alternatives{};      ///< as in OpenSSL's configuration: "DNS:a.example,IP:127.0.0.1"
  std::string purposes{};          ///< extended key usage: "serverAuth,clientAuth"; empty: any
  long valid_from_s = -3600;       ///< seconds from now
  long valid_until_s = 24 * 3600;  ///< ditto
};

struct identity {
  std::string certificate_file;
  std::string key_file;
};

class authority {
 public:
  explicit authority(const std::string& name = "authority") {
    static std::atomic<int> count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("tensorhub-tls-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
    std::filesystem::create_directory(folder_);
    maker_ = ::getpid();
    key_.reset(EVP_EC_gen("P-256"));
    must(key_ != nullptr, "a key");
    certificate_ = make({.name = name}, key_.get(), true);
    write(certificate_.get(), file());
  }
  ~authority() {
    std::error_code ignored;
    if (::getpid() == maker_) std::filesystem::remove_all(folder_, ignored);  // not in a forked child
  }
  authority(const authority&) = delete;
  authority& operator=(const authority&) = delete;

  [[nodiscard]] std::string file() const { return folder_ / "authority.pem"; }

  /// Files of the same name are replaced.
  [[nodiscard]] identity issue(const certificate_text& text, std::string file_name = {}) const {
    static std::atomic<int> count = 0;
    if (file_name.empty()) file_name = "worker-" + std::to_string(++count);
    const key_pointer key{EVP_EC_gen("P-256")};
    must(key != nullptr, "a key");
    const certificate_pointer made = make(text, key.get(), false);
    identity out{folder_ / (file_name + ".pem"), folder_ / (file_name + ".key")};
    const bio to{::BIO_new_file(out.key_file.c_str(), "w")};
    must(to && ::PEM_write_bio_PrivateKey(to.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1,
         "writing a key");
    must(::chmod(out.key_file.c_str(), 0600) == 0, "the mode of a key");
    write(made.get(), out.certificate_file);
    return out;
  }

  /// Options of a worker with a certificate of this authority.
  [[nodiscard]] tensorhub::transports::tls_options options(const certificate_text& text = {}) const {
    const identity own = issue(text);
    tensorhub::transports::tls_options out;
    out.certificate_file = own.certificate_file;
    out.key_file = own.key_file;
    out.ca_file = file();
    return out;
  }

 private:
  [[nodiscard]] certificate_pointer make(const certificate_text& text, EVP_PKEY* key,
                                         bool is_authority) const {
    static std::atomic<long> serial = 0;
    certificate_pointer made{::X509_new()};
    X509* const at = made.get();
    must(at != nullptr && ::X509_set_version(at, 2) == 1, "a certificate");
    must(::ASN1_INTEGER_set(::X509_get_serialNumber(at), ++serial) == 1, "a serial number");
    must(::X509_gmtime_adj(X509_getm_notBefore(at), text.valid_from_s) != nullptr &&
             ::X509_gmtime_adj(X509_getm_notAfter(at), text.valid_until_s) != nullptr,
         "dates");
    ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(at), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(text.name.c_str()), -1, -1, 0);
    X509* const issuer = is_authority ? at : certificate_.get();
    must(::X509_set_issuer_name(at, ::X509_get_subject_name(issuer)) == 1 && ::X509_set_pubkey(at, key) == 1,
         "names");
    if (is_authority) extend(at, issuer, NID_basic_constraints, "critical,CA:TRUE");
    if (!text.alternatives.empty()) extend(at, issuer, NID_subject_alt_name, text.alternatives);
    if (!text.purposes.empty()) extend(at, issuer, NID_ext_key_usage, text.purposes);
    must(::X509_sign(at, key_.get(), ::EVP_sha256()) > 0, "signing");
    return made;
  }
  static void extend(X509* at, X509* issuer, int what, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, at, nullptr, nullptr, 0);
    X509_EXTENSION* const made = ::X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
    must(made != nullptr, "an extension");
    ::X509_add_ext(at, made, -1);
    ::X509_EXTENSION_free(made);
  }
  static void write(X509* made, const std::string& path) {
    const bio to{::BIO_new_file(path.c_str(), "w")};
    must(to && ::PEM_write_bio_X509(to.get(), made) == 1, "writing a certificate");
  }

  std::filesystem::path folder_;
  pid_t maker_ = 0;
  key_pointer key_;
  certificate_pointer certificate_;
};

}  // namespace tls_tests
