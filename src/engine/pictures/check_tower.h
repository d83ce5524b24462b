// Which models take pictures, and from which towers.
//
// Thread safety: const calls.
#pragma once

#include "engine/pictures/picture_tower.h"
#include "kvcache/status.h"
#include "kvcache_engine/engine.h"

namespace kvcache {

// Returns Ok if the engine's model takes the tower's rows. Errors: kUnsupported, kInvalidArgument, as Engine::UseTower.
Status CheckTower(const Engine& engine, const PictureTower& tower);

}  // namespace kvcache
