#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/ops.h"

// y = W x over packed weights, on the host. Each output element has one fixed order of reduction over K per
// (family, math, kind): it depends neither on m, nor on row ranges, nor on the number of threads (I3).
//
// Decode kernels read a panel once for up to four rows of x (sixteen with tiles) and dot it as stored; the
// block's scale multiplies the block's partial sum. Prefill kernels expand a panel's K-range to f32 and run a
// register-blocked outer product over it (Goto and van de Geijn 2008).
//
// Math::fast dots the integers of quantised weights with x rounded to int8 per 32 columns, an error of at
// most absmax / 254 of those columns in each x. So it treats decode rows in every family, prefill rows only
// where the processor has integer dots (vnni, amx): elsewhere those stay exact, which is faster. x that is
// not finite makes its row of y NaN where it is rounded, and not finite where it is not.

namespace ete {

struct MatmulKernels;

// What computes matmuls with one family and math, resolved once.
class MatmulPath {
 public:
  // Error(invalid_argument) when the family does not run here or not with this math.
  MatmulPath(KernelFamily family, Math math);
  // With kernels that run here; they outlive it.
  MatmulPath(const MatmulKernels& kernels, Math math) : kernels_(&kernels), math_(math) {}
  const MatmulKernels& kernels() const { return *kernels_; }
  // Whether rows of this kind, times weights of this format, are rounded first.
  bool rounds(RowKind kind, WeightFormat format) const;

 private:
  const MatmulKernels* kernels_;
  Math math_;
};

// Runs now, on the calling thread and the pool. x [m, x_stride], x_stride >= cols of every w (all the same);
// x is not read past cols.
void matmul_cpu(const CpuContext& context, const MatmulPath& path, RowKind kind, const float* x,
                int64_t x_stride, int64_t m, const std::vector<MatmulOutput>& outputs);

// What this processor runs, the best last; never empty: `plain` runs everywhere.
std::vector<KernelFamily> supported_families(Math math = Math::exact);
KernelFamily best_matmul_family(Math math = Math::exact);

// The family itself, or the best one for `automatic`. Error(invalid_argument) naming what runs here.
KernelFamily resolve_matmul_family(KernelFamily family, Math math);

}  // namespace ete
