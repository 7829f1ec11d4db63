#include "engine/ops/cpu/matmul_simd_avx512.h"
#include "engine/ops/cpu/matmul_simd_tiles.h"

namespace ete {
namespace {

// Four products, then two of w and two of q, `columns` bytes deep.
template <int columns>
struct TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, columns, columns, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, columns / 4, columns / 4};
};
static_assert(sizeof(TileShapes<32>) == 64);
template <int columns>
constexpr TileShapes<columns> kTileShapes;

// Tiles of Advanced Matrix Extensions (Intel 64 and IA-32 Architectures Software Developer's Manual, volume
// 1, chapter 18).
template <int columns>
class AmxTiles {
 public:
  AmxTiles() { _tile_loadconfig(&kTileShapes<columns>); }
  // What a thread leaves in its tiles, every switch to another one saves.
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // Each set is written out: the intrinsics paste a tile's number into the instruction's text.
  template <int set>
  static void dot(const int8_t* w, const int8_t* q, int32_t* out) {
    asm volatile("" ::: "memory");  // GCC 12 does not know that loads of tiles read memory
    if constexpr (set == 0) {
      _tile_zero(0);
      _tile_loadd(4, w, columns);
      _tile_loadd(6, q, 64);
      _tile_dpbssd(0, 4, 6);
      _tile_stored(0, out, 64);
    } else if constexpr (set == 1) {
      _tile_zero(1);
      _tile_loadd(5, w, columns);
      _tile_loadd(7, q, 64);
      _tile_dpbssd(1, 5, 7);
      _tile_stored(1, out, 64);
    } else if constexpr (set == 2) {
      _tile_zero(2);
      _tile_loadd(4, w, columns);
      _tile_loadd(6, q, 64);
      _tile_dpbssd(2, 4, 6);
      _tile_stored(2, out, 64);
    } else {
      _tile_zero(3);
      _tile_loadd(5, w, columns);
      _tile_loadd(7, q, 64);
      _tile_dpbssd(3, 5, 7);
      _tile_stored(3, out, 64);
    }
  }
};

}  // namespace

const MatmulKernels& matmul_kernels_amx() {
  static const MatmulKernels kernels = with_tiles<AmxTiles>(matmul_kernels_vnni());
  return kernels;
}

}  // namespace ete
