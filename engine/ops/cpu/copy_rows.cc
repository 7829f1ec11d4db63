#include <algorithm>
#include <cstring>

#include "engine/ops/cpu/kernels.h"

namespace ete {

namespace {

constexpr int64_t kTaskElements = 16384;

// Columns [begin, end) of a row.
void copy_part(const RowsCopy& copy, int64_t row, int64_t begin, int64_t end) {
  const float* x = copy.x + row * copy.x_stride;
  float* y = copy.y + row * copy.y_stride;
  if (copy.bias == nullptr && !copy.add_to_y) {
    std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(float));
    return;
  }
  for (int64_t i = begin; i < end; ++i) {
    float value = x[i];
    if (copy.bias != nullptr) value += copy.bias[i];
    y[i] = copy.add_to_y ? y[i] + value : value;
  }
}

struct Task {
  const RowsCopy* copy;
  int64_t first_row;
  int64_t last_row;
  int64_t begin;  // columns
  int64_t end;
};

// Several short rows, or part of a long one.
std::vector<Task> cut(int64_t m, std::span<const RowsCopy> copies) {
  std::vector<Task> tasks;
  for (const RowsCopy& copy : copies) {
    const int64_t rows = std::max<int64_t>(1, kTaskElements / copy.n);
    for (int64_t row = 0; row < m; row += rows) {
      for (int64_t begin = 0; begin < copy.n; begin += kTaskElements) {
        tasks.push_back(
            {&copy, row, std::min(row + rows, m), begin, std::min(begin + kTaskElements, copy.n)});
      }
    }
  }
  return tasks;
}

}  // namespace

void copy_rows_cpu(const CpuContext& context, int64_t m, std::span<const RowsCopy> copies) {
  const std::vector<Task> tasks = cut(m, copies);
  context.pool.parallel_for(std::ssize(tasks), [&](int64_t index, int) {
    const Task& task = tasks[static_cast<size_t>(index)];
    for (int64_t row = task.first_row; row < task.last_row; ++row) {
      copy_part(*task.copy, row, task.begin, task.end);
    }
  });
}

}  // namespace ete
