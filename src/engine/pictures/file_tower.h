// The tower of a projector file (src/vision) as an engine uses it.
//
// Thread safety: free functions.
#pragma once

#include <memory>
#include <string>

#include "engine/pictures/picture_tower.h"
#include "kvcache/backend.h"
#include "kvcache/status.h"

namespace kvcache {

// Opens the file; the tower runs on `backend`, which must outlive it. Reads all of the file: its hash is a part of
// pictures' names. Errors: those of VisionTower::Load.
Result<std::unique_ptr<PictureTower>> OpenTower(const std::string& path, Backend& backend);

}  // namespace kvcache
