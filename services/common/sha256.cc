#include "services/common/sha256.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace ete::service {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (context_->md == nullptr || EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("SHA-256 is not available from OpenSSL");
  }
}

Sha256::~Sha256() = default;

void Sha256::add(std::string_view bytes) {
  if (EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) != 1) {
    throw std::runtime_error("SHA-256 failed in OpenSSL");
  }
}

std::string Sha256::finish() {
  std::string digest(32, '\0');
  if (EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(digest.data()), nullptr) != 1) {
    throw std::runtime_error("SHA-256 failed in OpenSSL");
  }
  return digest;
}

}  // namespace ete::service
