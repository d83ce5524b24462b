// Emulates the tiles of AMX in the program that this file is linked into.
#include "support/internal/tile_emulator.h"

namespace kvcache {
namespace {

[[maybe_unused]] const bool emulates_tiles = testing::EmulateTiles();

}  // namespace
}  // namespace kvcache
