// --mmproj and --image: the tower of a model, and pictures for it.
//
// Thread safety: values.
#pragma once

#include <string>
#include <vector>

#include "app/flags/command_line.h"
#include "kvcache_engine/engine.h"

namespace kvcache::app {

class PictureFlags {
 public:
  // Declares both flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);
  // Declares --mmproj alone.
  void AddTower(FlagSet command);

  const std::string& projector() const { return projector_; }
  bool has_pictures() const { return !images_.empty(); }

  // Gives the engine the tower of --mmproj, if there is one. Errors: those of Engine::UseTower.
  Status Use(Engine& engine) const;
  // Reads the pictures of --image. Errors: those of ReadPicture.
  Result<std::vector<PicturePtr>> Read(const Engine& engine) const;

 private:
  std::string projector_;
  std::vector<std::string> images_;
};

// Reads a picture's file; "-" is standard input. Errors: those of the file, and of Engine::PreparePicture, with the file's
// name.
Result<PicturePtr> ReadPicture(const Engine& engine, const std::string& path);

}  // namespace kvcache::app
