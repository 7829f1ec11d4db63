#include "engine/base/check.h"

namespace ete {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  std::string message = std::string(file) + ":" + std::to_string(line) + ": " + condition;
  if (!detail.empty()) message += ": " + detail;
  throw Error(ErrorCode::internal, message);
}

}  // namespace ete
