#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

namespace ete::service {

// PEM files of one end of a connection; empty: none.
struct TlsFiles {
  std::string certificate;  // its own, then those between it and the authority
  std::string key;
  std::string authority;  // who signs the other end's; of a server: it then asks clients for one
};

// What they hold, checked: the key is the certificate's.
struct TlsContents {
  std::string certificate;
  std::string key;
  std::string authority;
};

// How a client shows itself to a server, and knows it.
struct ClientSecurity {
  TlsFiles tls;            // without an authority: no TLS
  std::string token_file;  // holds the bearer token; empty: none
};

// Throws std::runtime_error naming the file: missing, not PEM, or a key that is not the certificate's.
TlsContents read_tls_files(const TlsFiles& files);

// The contents of TLS files, which are read anew when one has changed. Files that cannot be used then, as
// when only one of certificate and key was replaced so far, are reported once, and the contents stay.
// Thread-safe.
class TlsReader {
 public:
  // user: whose files they are, in the log. std::runtime_error as read_tls_files.
  TlsReader(TlsFiles files, std::string user);

  // For connections made from now on. Never null, and the same object until they change.
  std::shared_ptr<const TlsContents> contents();

 private:
  using Stamps = std::array<std::string, 3>;  // of the files: changed when they differ
  Stamps stamps() const;

  const TlsFiles files_;
  const std::string user_;
  std::mutex mutex_;  // guards what follows
  Stamps seen_;
  std::chrono::steady_clock::time_point looked_;
  std::shared_ptr<const TlsContents> contents_;
};

}  // namespace ete::service
