#pragma once
/// \file context.ipp
/// Definitions of context.hpp.

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "tensorhub/error.hpp"
#include "tensorhub/transports/tls/context.hpp"
#include "tensorhub/transports/tls/socket_bio.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail {

TENSORHUB_DECL int judge_certificate(int good, X509_STORE_CTX* verification) noexcept {
  const auto* const session =
      static_cast<SSL*>(::X509_STORE_CTX_get_ex_data(verification, ::SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const found = session == nullptr ? nullptr : static_cast<verdict*>(SSL_get_app_data(session));
  if (found == nullptr) return 0;
  try {
    if (good == 1 && ::X509_STORE_CTX_get_error_depth(verification) == 0 &&
        !found->rules->allowed_names.empty() &&
        !has_one_of(::X509_STORE_CTX_get_current_cert(verification), found->rules->allowed_names)) {
      ::X509_STORE_CTX_set_error(verification, X509_V_ERR_HOSTNAME_MISMATCH);
      good = 0;
    }
    if (good != 1) found->refusal = why_refused(verification, found->rules->ca_file);
  } catch (...) {  // no memory for the sentence
    return 0;
  }
  return good;
}

TENSORHUB_DECL tls_context::tls_context(const tls_options& options) : options_{options} {
  const std::array<std::pair<const char*, const std::string*>, 3> files{
      {{"certificate_file", &options_.certificate_file},
       {"key_file", &options_.key_file},
       {"ca_file", &options_.ca_file}}};
  for (const auto& [option, file] : files) {
    if (file->empty())
      throw error(errc::transport_failed, std::string{"tls: option "} + option +
                                              " is empty: both sides show certificates (PEM files)");
  }
  stamp_ = stamp_of_files();
  context_ = make_context();
}

TENSORHUB_DECL session_pointer tls_context::make_session(int socket, session_role role, verdict& found) {
  session_pointer session;
  {
    const std::lock_guard lock{mutex_};
    reload_if_changed();
    session.reset(::SSL_new(context_.get()));
  }
  bio_pointer bio = session ? make_socket_bio(socket) : nullptr;
  if (!bio) throw error(errc::transport_failed, "tls: no session: " + openssl_trouble());
  ::SSL_set_bio(session.get(), bio.get(), bio.get());
  static_cast<void>(bio.release());
  found.rules = &options_;
  SSL_set_app_data(session.get(), &found);
  if (role == session_role::source) {
    ::SSL_set_accept_state(session.get());
#ifdef SSL_OP_ENABLE_KTLS
    // If the kernel has no module `tls`, this fails, and OpenSSL encrypts in user space.
    if (options_.kernel_tls && ::setsockopt(socket, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls") == 0)
      ::SSL_set_options(session.get(), SSL_OP_ENABLE_KTLS);
#endif
  } else {
    ::SSL_set_default_read_buffer_len(session.get(), reader_buffer_bytes);
    ::SSL_set_connect_state(session.get());
  }
  return session;
}

TENSORHUB_DECL std::string tls_context::own_certificate() const {
  const std::lock_guard lock{mutex_};
  return described(::SSL_CTX_get0_certificate(context_.get()));
}

TENSORHUB_DECL void tls_context::note_opened(bool by_kernel) noexcept {
  opened_.fetch_add(1);
  if (by_kernel) by_kernel_.fetch_add(1);
}

TENSORHUB_DECL void tls_context::note_refused(std::string why) noexcept {
  const std::lock_guard lock{words_mutex_};
  refused_.fetch_add(1);
  last_refusal_ = std::move(why);
}

TENSORHUB_DECL tls_report tls_context::report() const {
  const std::lock_guard lock{words_mutex_};
  return {opened_.load(), by_kernel_.load(), refused_.load(), last_refusal_, renewal_};
}

TENSORHUB_DECL transport_refusal tls_context::refusal_told() const {
  const std::lock_guard lock{words_mutex_};
  return {refused_.load(), last_refusal_};
}

TENSORHUB_DECL transport_renewal tls_context::renewal_told() const {
  const std::lock_guard lock{words_mutex_};
  return renewal_;
}

TENSORHUB_DECL tls_context::stamps tls_context::stamp_of_files() const noexcept {
  stamps out{};
  std::size_t i = 0;
  for (const std::string* file : {&options_.certificate_file, &options_.key_file, &options_.ca_file}) {
    struct stat found {};
    file_stamp& stamp = out[i++];
    if (::stat(file->c_str(), &found) == 0)
      // Not st_mtim: a change of the permissions may be what lets a file be used.
      stamp = {found.st_ctim.tv_sec, found.st_ctim.tv_nsec, found.st_size, found.st_ino};
  }
  return out;
}

TENSORHUB_DECL void tls_context::reload_if_changed() {
  const stamps now = stamp_of_files();
  const auto time = std::chrono::steady_clock::now();
  if (now == stamp_ && time < retry_at_) return;
  const bool again = now == stamp_;
  stamp_ = now;
  retry_at_ = time + retry_interval;
  try {
    context_ = make_context();
    retry_at_ = std::chrono::steady_clock::time_point::max();
    tell(false, again,
         "tls: the changed files are used from now on: " +
             described(::SSL_CTX_get0_certificate(context_.get())));
  } catch (const error& e) {
    tell(true, again,
         e.sentence() + "; the changed files are not used, and this certificate stays in use: " +
             described(::SSL_CTX_get0_certificate(context_.get())));
  }
}

TENSORHUB_DECL void tls_context::tell(bool failed, bool again, std::string text) {
  const std::lock_guard lock{words_mutex_};
  if (failed && again && renewal_.text == text) return;
  renewal_ = {renewal_.count + 1, failed, std::move(text)};
}

TENSORHUB_DECL void tls_context::fail(const std::string& what) {
  const std::string why = openssl_trouble();
  throw error(errc::transport_failed, "tls: " + what + ": " + why);
}

TENSORHUB_DECL void tls_context::check_secret(const std::string& file) {
  struct stat about {};
  if (::stat(file.c_str(), &about) != 0 || (about.st_mode & 077u) == 0) return;
  throw error(errc::transport_failed, "tls: key_file " + file +
                                          " can be read or written by other users: a key in it is no "
                                          "secret; chmod 600 it");
}

TENSORHUB_DECL context_pointer tls_context::make_context() const {
  ::ERR_clear_error();
  context_pointer made{::SSL_CTX_new(::TLS_method())};
  SSL_CTX* const context = made.get();
  if (context == nullptr) fail("no context");
  ::SSL_CTX_set_security_level(context, 2);  // keys of 112 bits, whatever the machine's default is
  static_cast<void>(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION));
  static_cast<void>(SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION));
  ::SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  ::SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // A record that waits for the socket stays in OpenSSL: the repeated call may pass another buffer.
  SSL_CTX_set_mode(
      context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_set_read_ahead(context, 1);
  // A call handles the messages of the protocol itself (new keys, for one) that it has, and does not wait for
  // data behind them: a peer may send nothing else.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  if (::SSL_CTX_set_ciphersuites(context, options_.ciphersuites.c_str()) != 1)
    fail("none of the ciphersuites '" + options_.ciphersuites + "' is known");
  // No user can type a pass phrase.
  ::SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });
  if (::SSL_CTX_use_certificate_chain_file(context, options_.certificate_file.c_str()) != 1)
    fail("certificate_file " + options_.certificate_file + " cannot be used");
  check_secret(options_.key_file);
  if (::SSL_CTX_use_PrivateKey_file(context, options_.key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    fail("key_file " + options_.key_file + " cannot be used (PEM, no pass phrase, of that certificate)");
  if (::SSL_CTX_load_verify_file(context, options_.ca_file.c_str()) != 1)
    fail("ca_file " + options_.ca_file + " cannot be used");
  const X509* const own = ::SSL_CTX_get0_certificate(context);
  if (const std::string why = why_untimely(own); !why.empty())
    throw error(errc::transport_failed,
                "tls: the certificate " + subject_of(own) + " in " + options_.certificate_file + " " + why);
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, &judge_certificate);
  return made;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tls_detail
