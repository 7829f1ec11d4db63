#include <algorithm>
#include <cstdlib>
#include <new>

#include "engine/ops/cpu/kernels.h"

namespace ete {

float* Workspace::at_least(Block* block, size_t floats) {
  if (block->floats < floats) {
    constexpr size_t kAlignment = 64;
    const size_t bytes = (floats * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    block->data.reset();
    block->data.reset(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
    block->floats = block->data == nullptr ? 0 : floats;
    if (block->data == nullptr) throw std::bad_alloc();
  }
  return block->data.get();
}

Workspace::Shared Workspace::shared(size_t floats) {
  Shared shared;
  shared.lock_ = std::unique_lock(shared_mutex_);
  shared.data_ = at_least(&shared_, floats);
  return shared;
}

void for_row_blocks(ThreadPool& pool, int64_t rows, int64_t elements_per_row,
                    const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kElementsPerTask = 8192;
  const int64_t rows_per_task =
      std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_row));
  const int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  pool.parallel_for(tasks, [&](int64_t task, int) {
    body(task * rows_per_task, std::min(rows, (task + 1) * rows_per_task));
  });
}

}  // namespace ete
