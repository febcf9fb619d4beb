#include "shoal/wire/tls_channel.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "shoal/wire/address.h"

namespace shoal::wire {
namespace {

void must_accept(bool done, const char* what) {
  if (done) return;
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  throw Error(ErrorKind::kResource, "tls",
              std::string("OpenSSL refuses ") + what + ": " + (reason ? reason : "no reason given"))
      .hint("parallelism.tls = \"off\" does without TLS");
}

// OpenSSL's own way to use a socket raises SIGPIPE where the peer is gone.

int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int write_socket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n =
      ::send(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int read_socket(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::recv(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(n);
}

// A socket keeps nothing back, so there is nothing to flush. OpenSSL asks for the end to tell it
// from a failure.
long control_socket(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

std::shared_ptr<BIO_METHOD> socket_method() {
  std::shared_ptr<BIO_METHOD> method(BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket without signals"),
                                     BIO_meth_free);
  must_accept(method && BIO_meth_set_write(method.get(), write_socket) == 1 &&
                  BIO_meth_set_read(method.get(), read_socket) == 1 &&
                  BIO_meth_set_ctrl(method.get(), control_socket) == 1,
              "a socket");
  return method;
}

// Takes the place of all that is usually looked at in a certificate: no authority has signed it,
// and whose it is follows from its key alone. TLS itself has the peer prove that it has the key.
int verify_peer(X509_STORE_CTX* chain, void*) {
  const auto* tls = static_cast<const SSL*>(
      X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const auto* expected = static_cast<const PeerId*>(SSL_get_app_data(tls));
  const PeerId id = id_of(X509_STORE_CTX_get0_cert(chain));
  if (id != PeerId{} && CRYPTO_memcmp(&id, expected, sizeof id) == 0) return 1;
  X509_STORE_CTX_set_error(chain, X509_V_ERR_CERT_REJECTED);
  return 0;
}

}  // namespace

TlsContext::TlsContext(Identity identity)
    : identity_(std::move(identity)),
      socket_method_(socket_method()),
      context_(SSL_CTX_new(TLS_method()), SSL_CTX_free) {
  SSL_CTX* const context = context_.get();
  must_accept(context != nullptr, "a context");
  must_accept(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1,
              "TLS 1.3");
  must_accept(SSL_CTX_set_ciphersuites(
                  context, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") == 1 &&
                  SSL_CTX_set1_groups_list(context, "X25519") == 1 &&
                  SSL_CTX_set1_sigalgs_list(context, "ed25519") == 1,
              "X25519, Ed25519 or AES-GCM");
  must_accept(SSL_CTX_use_certificate(context, identity_.certificate()) == 1 &&
                  SSL_CTX_use_PrivateKey(context, identity_.key()) == 1,
              "a certificate of Ed25519");
  // What was recorded of one connection is of no use on another.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  must_accept(
      SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1,
      "a context without tickets");
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // Without the last one an idle connection keeps some 34 KB of buffers.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_cert_verify_callback(context, verify_peer, nullptr);
}

std::shared_ptr<const TlsContext> context_for(TlsMode mode) {
  if (mode == TlsMode::kOff) return nullptr;
  try {
    return std::make_shared<TlsContext>();
  } catch (const Error&) {
    if (mode == TlsMode::kOn) throw;
    return nullptr;
  }
}

bool wants_tls(TlsMode mode, int socket) {
  return mode == TlsMode::kOn || (mode == TlsMode::kAuto && leaves_host(socket));
}

TlsChannel::TlsChannel(Descriptor socket, std::shared_ptr<const TlsContext> context, Role role,
                       PeerId peer, std::uint64_t records_of_a_key)
    : Channel(std::move(socket)),
      context_(std::move(context)),
      peer_(peer),
      tls_(SSL_new(context_->context_.get()), SSL_free),
      records_of_a_key_(records_of_a_key) {
  must_accept(tls_ != nullptr, "a connection");
  BIO* const bio = BIO_new(context_->socket_method_.get());
  must_accept(bio != nullptr, "a socket");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd())));
  BIO_set_init(bio, 1);
  SSL_set_bio(tls_.get(), bio, bio);
  SSL_set_app_data(tls_.get(), &peer_);
  if (role == Role::kCaller) {
    SSL_set_connect_state(tls_.get());
  } else {
    SSL_set_accept_state(tls_.get());
  }
}

TlsChannel::~TlsChannel() = default;

// Says why a call of OpenSSL has failed for good. Reads errno and the queue of errors, so it must
// be called at once.
Error TlsChannel::broken(const char* operation, int result) {
  const int error = errno;
  const int why = SSL_get_error(tls_.get(), result);
  const unsigned long code = ERR_peek_error();
  std::string text = "the connection broke";
  if (SSL_get_verify_result(tls_.get()) == X509_V_ERR_CERT_REJECTED) {
    text = "its certificate is not of the process that the handshake named";
  } else if (ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    text = "the connection ended without the word of TLS for it: its process ended, or it was cut";
  } else if (why == SSL_ERROR_SSL) {
    const char* reason = ERR_reason_error_string(code);
    text = std::string("what came is not what the other side sent, or it refuses this one (TLS: ") +
           (reason ? reason : "no reason given") + ")";
  } else if (error != 0) {
    text += std::string(": ") + std::strerror(error);
  }
  return Error(ErrorKind::kPeerLost, operation, text);
}

// Every call of OpenSSL reads the errors of this thread, those of other connections among them,
// unless they are cleared before.
TlsChannel::Handshake TlsChannel::handshake() {
  ERR_clear_error();
  errno = 0;
  const int done = SSL_do_handshake(tls_.get());
  if (done == 1) return Handshake::kDone;
  switch (SSL_get_error(tls_.get(), done)) {
    case SSL_ERROR_WANT_READ:
      return Handshake::kWaitsToRead;
    case SSL_ERROR_WANT_WRITE:
      return Handshake::kWaitsToWrite;
    default:
      throw broken("handshake", done);
  }
}

// Returns 0 where nothing is there, at the end, and after a failure.
std::size_t TlsChannel::read_text(std::byte* to, std::size_t bytes) {
  if (failure_ || ended_) return 0;
  ERR_clear_error();
  errno = 0;
  std::size_t n = 0;
  const int done = SSL_read_ex(tls_.get(), to, bytes, &n);
  if (done == 1) return n;
  switch (SSL_get_error(tls_.get(), done)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      break;
    case SSL_ERROR_ZERO_RETURN:
      ended_ = true;
      break;
    default:
      failure_ = broken("receive", done);
  }
  return 0;
}

// What is left of a record is read alone, so that a peer that sends without pause cannot keep the
// caller here: see holds_unread.
std::optional<std::size_t> TlsChannel::read(std::span<const iovec> to) {
  const bool rest_alone = SSL_pending(tls_.get()) > 0;
  std::size_t total = 0;
  for (const iovec& part : to) {
    for (std::size_t at = 0; at < part.iov_len;) {
      const bool goes_on = total == 0 || !rest_alone || SSL_pending(tls_.get()) > 0;
      auto* place = static_cast<std::byte*>(part.iov_base) + at;
      const std::size_t n = goes_on ? read_text(place, part.iov_len - at) : 0;
      if (n == 0) return what_was_read(total);
      at += n;
      total += n;
    }
  }
  return what_was_read(total);
}

// Bytes that were read before an end or a failure are returned first. Nothing may then show on the
// socket any more, so holds_unread says it.
std::optional<std::size_t> TlsChannel::what_was_read(std::size_t total) {
  holds_unread_ = total > 0 && (failure_ || ended_ || SSL_pending(tls_.get()) > 0);
  if (total > 0) return total;
  if (failure_) throw Error(*failure_);
  if (ended_) return 0;
  return std::nullopt;
}

// A record is encrypted once. Where the kernel does not take it whole, OpenSSL wants the same text
// when it goes on, so it is kept here, and counts as taken: the caller may then drop what it was
// made of.
std::size_t TlsChannel::write(std::span<const iovec> from) {
  if (!flush()) return 0;
  std::size_t taken = 0;
  text_.reserve(kMostText);
  for (const iovec& part : from) {
    const auto* bytes = static_cast<const std::byte*>(part.iov_base);
    for (std::size_t at = 0; at < part.iov_len;) {
      const std::size_t n = std::min(part.iov_len - at, kMostText - text_.size());
      text_.insert(text_.end(), bytes + at, bytes + at + n);
      at += n;
      taken += n;
      if (text_.size() == kMostText && !flush()) return taken;
    }
  }
  flush();
  return taken;
}

bool TlsChannel::flush() {
  holds_unsent_ = true;
  if (renewal_due_ && !renew_key()) return false;
  if (!text_.empty() && !write_record()) return false;
  holds_unsent_ = renewal_due_ && !renew_key();
  return !holds_unsent_;
}

bool TlsChannel::write_record() {
  ERR_clear_error();
  errno = 0;
  std::size_t written = 0;
  const int done = SSL_write_ex(tls_.get(), text_.data(), text_.size(), &written);
  if (done != 1) {
    const int why = SSL_get_error(tls_.get(), done);
    if (why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ) return false;
    throw broken("send", done);
  }
  text_.clear();
  ++records_;
  renewal_due_ = records_ % records_of_a_key_ == 0;
  return true;
}

// From SSL_key_update on, OpenSSL reads nothing before the kernel has taken the word for the new
// key. Two sides that renew at a time, and whose peers take nothing, would then wait for each other
// for ever. So the word goes out when there is room for it, and until then this side sends nothing
// and reads on. Returns true when it is out.
bool TlsChannel::renew_key() {
  pollfd room{fd(), POLLOUT, 0};
  if (poll(&room, 1, 0) != 1) return false;
  ERR_clear_error();
  errno = 0;
  if (SSL_in_init(tls_.get()) == 0)
    must_accept(SSL_key_update(tls_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1, "a new key");
  const int done = SSL_do_handshake(tls_.get());
  if (done != 1) {
    if (SSL_get_error(tls_.get(), done) == SSL_ERROR_WANT_WRITE) return false;
    throw broken("send", done);
  }
  renewal_due_ = false;
  ++keys_used_;
  return true;
}

// Where the connection is broken, its end says so by itself. A second SSL_shutdown would take what
// the peer still sends for an error, and read no more.
bool TlsChannel::finish_sending() {
  if (finished_) return true;
  try {
    if (!flush()) return false;
    ERR_clear_error();
    const int done = SSL_shutdown(tls_.get());
    if (done < 0 && SSL_get_error(tls_.get(), done) == SSL_ERROR_WANT_WRITE) return false;
  } catch (const Error&) {
  }
  finished_ = true;
  ::shutdown(fd(), SHUT_WR);
  return true;
}

std::unique_ptr<Channel> channel_over(Descriptor socket, std::shared_ptr<const TlsContext> context,
                                      TlsChannel::Role role, const PeerId& peer) {
  if (!context) return std::make_unique<PlainChannel>(std::move(socket));
  return std::make_unique<TlsChannel>(std::move(socket), std::move(context), role, peer);
}

}  // namespace shoal::wire
