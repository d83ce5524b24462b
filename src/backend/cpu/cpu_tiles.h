// The matrix tiles of AMX: eight registers of 16 rows × 64 bytes, whose products are 16 × 16 sums of bytes' products.
//
// Thread safety: TilesInUse may be called from any thread.
#pragma once

namespace kvcache::cpu {

// Returns whether the processor has tiles and products of bytes, and the system lets this process use them. Asks the
// system for the permission, which then holds for all threads of the process.
bool MachineHasTiles();

// Returns whether the target in use is AMX.
bool TilesInUse();

// Offers the target AMX by name on a machine that has its vectors (AVX3_DL) but no tiles, because the caller emulates
// their instructions (tests/support/internal/tile_emulator.h). The best target stays that of the machine. Returns
// whether AMX can be used from now on. REQUIRES: no kernel is running.
bool OfferEmulatedTiles();

}  // namespace kvcache::cpu
