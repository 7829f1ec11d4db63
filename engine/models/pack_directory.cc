#include "engine/models/pack_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/config_of_gguf.h"
#include "engine/models/tokenizer_of_gguf.h"
#include "engine/weights/checkpoint_writer.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/untrusted.h"

namespace ete {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const std::string& path) {
  throw Error(ErrorCode::unavailable, "cannot write " + path + ": " + strerror(errno));
}

void sync_directory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(path);
  const bool is_synced = fsync(fd) == 0;
  close(fd);
  if (!is_synced) fail(path);
}

}  // namespace

OutputDirectory::OutputDirectory(const std::string& path) : path_(path) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path_, error);
  if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(path_, error))) {
    throw Error(ErrorCode::invalid_argument, path_ + " is there already and is not an empty directory");
  }
  partial_ = path_ + ".partial-XXXXXX";
  if (mkdtemp(partial_.data()) == nullptr) {
    const std::string name = std::exchange(partial_, "");
    fail(name);
  }
  // mkdtemp makes it private; what is made for others to read has the usual mode.
  const mode_t mask = umask(0);
  umask(mask);
  chmod(partial_.c_str(), 0777 & ~mask);
}

OutputDirectory::~OutputDirectory() {
  if (partial_.empty()) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

void OutputDirectory::commit() {
  sync_directory(partial_);
  if (rename(partial_.c_str(), path_.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) {
      throw Error(ErrorCode::invalid_argument, path_ + " was made by others meanwhile");
    }
    fail(path_);
  }
  partial_.clear();
  const std::string parent = fs::path(path_).parent_path().string();
  sync_directory(parent.empty() ? "." : parent);
}

void write_descriptions(const ModelFiles& model, const PackPlan& plan, const std::string& directory) {
  nlohmann::ordered_json config;
  if (model.is_gguf) {
    config = config_of_gguf(model);
  } else {
    const std::string path = model.path + "/config.json";
    const std::string text = read_file(path, JsonLimits{}.max_bytes);
    parse_json(text, path);
    config = nlohmann::ordered_json::parse(text);
  }
  config.erase("compression_config");
  config["quantization_config"] = plan.quantization_config;
  write_file(directory + "/config.json", config.dump(2) + "\n");
  const auto files = model.is_gguf ? tokenizer_of_gguf(model.gguf_vocabulary) : model.tokenizer_files.files;
  for (const auto& [name, bytes] : files) write_file(directory + "/" + name, bytes);
}

}  // namespace ete
