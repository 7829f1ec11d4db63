#include "engine/ops/cpu/matmul_simd_avx512.h"
#include "engine/ops/cpu/matmul_simd_tiles.h"

namespace ete {
namespace {

struct TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 16, 64, 16, 64, 16, 64, 16};
  uint8_t rows[16] = {16, 16, 4, 16, 16, 16, 4, 16};
};
static_assert(sizeof(TileShapes) == 64);
constexpr TileShapes kTileShapes;

// Tiles of Advanced Matrix Extensions (Intel 64 and IA-32 Architectures Software Developer's Manual, volume
// 1, chapter 18). Sets of three: the product, then w and q.
class AmxTiles {
 public:
  AmxTiles() { _tile_loadconfig(&kTileShapes); }
  // What a thread leaves in its tiles, every switch to another one saves.
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // Each set is written out: the intrinsics paste a tile's number into the instruction's text.
  template <int set, int halves>
  static void dot(const int8_t* w, const int8_t* q, int32_t* out) {
    asm volatile("" ::: "memory");  // GCC 12 does not know that loads of tiles read memory
    if constexpr (set == 0) {
      _tile_zero(0);
      _tile_loadd(1, w, 16);
      _tile_loadd(2, q, 64);
      _tile_dpbssd(0, 1, 2);
      if constexpr (halves == 2) {
        _tile_loadd(3, w + 256, 16);
        _tile_loadd(2, q + 256, 64);
        _tile_dpbssd(0, 3, 2);
      }
      _tile_stored(0, out, 64);
    } else {
      _tile_zero(4);
      _tile_loadd(5, w, 16);
      _tile_loadd(6, q, 64);
      _tile_dpbssd(4, 5, 6);
      if constexpr (halves == 2) {
        _tile_loadd(7, w + 256, 16);
        _tile_loadd(6, q + 256, 64);
        _tile_dpbssd(4, 7, 6);
      }
      _tile_stored(4, out, 64);
    }
  }
};

}  // namespace

const MatmulKernels& matmul_kernels_amx() {
  static const MatmulKernels kernels = with_tiles<AmxTiles>(matmul_kernels_vnni());
  return kernels;
}

}  // namespace ete
