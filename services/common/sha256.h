#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace ete::service {

// SHA-256 of what is added, in order.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::string_view bytes);
  // 32 bytes; nothing may be added afterwards.
  std::string finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace ete::service
